"""The text that a job trains on, as bytes, and which part of it every sample is. Imports torch only to make tensors."""

from __future__ import annotations

import functools
import os
import stat
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# Enough for every run that fits a laptop, read in a moment.
MAX_STANDARD_LIBRARY_BYTES = 8_000_000
# Not part of every installation, or not written by hand.
_LEFT_OUT_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "ensurepip"}
    | {"lib-dynload", "pydoc_data", "__pycache__"}
)


class DataError(ValueError):
    """The training text cannot be used; the message names the path and says what to do."""


def read_corpus(path: str | None, *, sequence_length: int = 1) -> bytes:
    """The text at `path`, at least one sequence of `sequence_length` tokens long.

    `path` is a UTF-8 text file, or a folder whose text files are joined in the order of their names, with all folders
    below; hidden files and files that are not UTF-8 text are skipped there. None stands for the sources of Python's own
    standard library. Each text is read once per process: a forked child finds it read.

    Raises:
        DataError: it is missing, unreadable, not text, or too short.
    """
    text = _read_standard_library() if path is None else _read(_absolute(path))
    if len(text) <= sequence_length:
        raise DataError(
            f"{path or 'the standard library'} has {len(text)} bytes of text, a sequence needs {sequence_length + 1}: "
            "give a longer text or a shorter sequence length"
        )
    return text


class Corpus:
    """A text, cut into samples: windows of `sequence_length` + 1 bytes that do not overlap.

    Samples are numbered over the whole run, from 0. Each pass over the text visits every window once, in an order of
    its own that follows from `seed`; the bytes behind the last whole window are not used.

    Raises:
        DataError: the text is shorter than one window.
    """

    def __init__(self, text: bytes, sequence_length: int, seed: int) -> None:
        import numpy as np

        self.sequence_length = sequence_length
        self.num_windows = len(text) // (sequence_length + 1)
        if not self.num_windows:
            raise DataError(f"{len(text)} bytes of text are too few for a sequence of {sequence_length} + 1 bytes")
        used = np.frombuffer(text, np.uint8, self.num_windows * (sequence_length + 1))
        self._windows = used.reshape(self.num_windows, sequence_length + 1)
        self._seed = seed
        self._orders: dict[int, np.ndarray] = {}

    def window(self, sample: int) -> int:
        """The window of the text that `sample` is."""
        index_of_pass, position = divmod(sample, self.num_windows)
        return int(self._order(index_of_pass)[position])

    def batch(self, samples: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(inputs_BT, targets_BT) of the samples: int64 byte values, targets one byte further on than inputs."""
        import numpy as np
        import torch

        windows_BW = torch.from_numpy(self._windows[[self.window(sample) for sample in samples]].astype(np.int64))
        return windows_BW[:, :-1].contiguous(), windows_BW[:, 1:].contiguous()

    def _order(self, index_of_pass: int) -> np.ndarray:
        """The windows in the order of one pass."""
        import numpy as np

        if index_of_pass not in self._orders:
            # One step can lie across the border of two passes, more are not needed at a time.
            for old in list(self._orders)[:-1]:
                del self._orders[old]
            generator = np.random.Generator(np.random.PCG64([self._seed, index_of_pass]))
            self._orders[index_of_pass] = generator.permutation(self.num_windows)
        return self._orders[index_of_pass]


def samples_of_step(step: int, samples_per_step: int) -> range:
    """The samples of a step; steps count from 1, samples from 0."""
    return range((step - 1) * samples_per_step, step * samples_per_step)


def sample_checksum(sample: int) -> int:
    """A hash of the sample's number below 2^36, so that sums over 10^5 samples stay exact in float64.

    SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"; constants as in
    https://prng.di.unimi.it/splitmix64.c): a sample skipped here does not make up for one used twice there.
    """
    mixed = (sample + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 31) >> 28


def checksum(samples: Sequence[int]) -> int:
    """The sum of the samples' checksums, whatever their order."""
    return sum(map(sample_checksum, samples))


def _absolute(path: str) -> str:
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError:
        raise DataError(
            f"{path} names the home of a user that this machine does not know: give the whole path"
        ) from None


@functools.cache
def _read(path: str) -> bytes:
    """The text at an absolute path, not empty."""
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            return _read_folder(path)
        if not stat.S_ISREG(mode):
            raise DataError(f"{path} is neither a file nor a folder: give a UTF-8 text file or a folder of them")
        text = Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: give a UTF-8 text file or a folder of them") from None
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): check the path and its permissions") from None
    if not text:
        raise DataError(f"{path} is empty: give a file with text in it")
    if not _is_text(text):
        raise DataError(f"{path} is not UTF-8 text: convert it, or give another file")
    return text


def _read_folder(folder: str) -> bytes:
    texts = [text for path in _walk(Path(folder)) if _is_text(text := path.read_bytes())]
    joined = b"\n".join(texts)
    if not joined.strip():
        raise DataError(f"{folder} has no UTF-8 text file in it: give a folder that has, or a file")
    return joined


@functools.cache
def _read_standard_library() -> bytes:
    folder = Path(sysconfig.get_path("stdlib"))
    texts: list[bytes] = []
    num_bytes = 0
    for path in _walk(folder, _LEFT_OUT_FOLDERS):
        if path.suffix != ".py" or not _is_text(text := path.read_bytes()):
            continue
        num_bytes += len(text) + 1
        if num_bytes > MAX_STANDARD_LIBRARY_BYTES:
            break
        texts.append(text)
    if not texts:
        raise DataError(f"this Python has no sources of its standard library at {folder}: name a text file or a folder")
    return b"\n".join(texts)


def _walk(folder: Path, left_out: frozenset[str] = frozenset()) -> Iterator[Path]:
    """All files below a folder in the order of their names, without hidden ones and without folders so named."""

    def fail(error: OSError) -> None:
        raise error

    for directory, folders, files in os.walk(folder, onerror=fail):
        # os.walk continues with what is left in this list, in its order.
        folders[:] = sorted(name for name in folders if name not in left_out and not name.startswith("."))
        for name in sorted(files):
            path = Path(directory, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _is_text(content: bytes) -> bool:
    """Whether these bytes are UTF-8 without a NUL, which no text has and most other files have."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in content
