"""Whether the values of checkpoints are finite, by a child of the job's own Python: lowest priority, limited.

The child reads with `weights_only`, so that no code of a checkpoint runs, and maps files instead of reading them whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints import finite_child
from harness.checkpoints.findings import LOAD_FAILED, NO_PYTHON, NO_TIME, NOT_FINITE, REFUSED, Damage
from harness.checkpoints.metadata import read_pieces
from harness.checkpoints.whole import METADATA
from harness.node.processes_by_env import environment_of

# A program finds its libraries by these; none of them belongs to the run.
_KEPT_VARIABLES = ("PATH", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH", "LANG")
_SITE_FOLDER = "chaos/external/site"
POLL_SECONDS = 0.1
_ZIP_MAGIC = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class Python:
    """The interpreter of a rank, and what of its environment it needs."""

    program: str
    environment: Mapping[str, str]

    @classmethod
    def of_process(cls, pid: int) -> Python | None:
        """The interpreter of a running process; None where it is not known."""
        try:
            resolved = str(Path(f"/proc/{pid}/exe").readlink())
            named = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        except (OSError, UnicodeDecodeError):
            return None
        if not Path(resolved).name.startswith("python"):
            return None
        # A virtual environment's interpreter is a link: what it links to does not know its packages.
        is_link = Path(named).is_absolute() and os.path.realpath(named) == os.path.realpath(resolved)
        known = environment_of(pid)
        kept = {name: known[name] for name in _KEPT_VARIABLES if name in known}
        if "PYTHONPATH" in kept:
            paths = kept["PYTHONPATH"].split(os.pathsep)
            kept["PYTHONPATH"] = os.pathsep.join(path for path in paths if not path.endswith(_SITE_FOLDER))
        return cls(named if is_link else resolved, kept)


@dataclass(frozen=True, slots=True)
class Values:
    """The result for one checkpoint: `damage`, or why not all of its files were read (`unchecked`)."""

    damage: tuple[Damage, ...] = ()
    unchecked: str | None = None
    num_read: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    checkpoint: Path
    file: Path
    offset: int
    length: int
    kind: str

    @property
    def name(self) -> str:
        return self.file.name if self.file == self.checkpoint else str(self.file.relative_to(self.checkpoint))


def look(
    checkpoints: Sequence[Path],
    python: Python | None,
    timeout_seconds: float,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Mapping[Path, Values]:
    """Read what is at `checkpoints`, files or folders that are whole, in this order; not once it `is_stopped`."""
    parts = [part for checkpoint in checkpoints for part in _parts_of(checkpoint)]
    if not parts:
        return dict.fromkeys(checkpoints, Values())
    if python is None or timeout_seconds <= 0:
        why = NO_PYTHON if python is None else NO_TIME
        return {
            one: Values(unchecked=why if any(part.checkpoint == one for part in parts) else None) for one in checkpoints
        }
    said, why_not_all = _ask(parts, python, timeout_seconds, is_stopped)
    return {one: _read(one, parts, said, why_not_all) for one in checkpoints}


def _ask(
    parts: Sequence[_Part], python: Python, timeout_seconds: float, is_stopped: Callable[[], bool]
) -> tuple[Mapping[int, Mapping[str, Any]], str]:
    """The answers of the child by the index of the part, and why others have none."""
    asked = json.dumps([[str(part.file), part.offset, part.length, part.kind] for part in parts])
    environment = {**python.environment, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    source = Path(finite_child.__file__).read_text(encoding="utf-8")
    try:
        child = subprocess.Popen(
            [python.program, "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            text=True,
            encoding="utf-8",
        )
    except OSError:
        return {}, NO_PYTHON
    why, until, output = NO_PYTHON, time.monotonic() + timeout_seconds, None
    unsent: str | None = asked
    while output is None:
        try:
            output, _ = child.communicate(unsent, timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            unsent = None
            if time.monotonic() > until or is_stopped():
                child.kill()
                output, _ = child.communicate()
                why = NO_TIME
    found: dict[int, Mapping[str, Any]] = {}
    for line in output.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(line)
            found[int(said["index"])] = said
    return found, why


def _read(checkpoint: Path, parts: Sequence[_Part], said: Mapping[int, Mapping[str, Any]], why_not: str) -> Values:
    own = [(part, said.get(index)) for index, part in enumerate(parts) if part.checkpoint == checkpoint]
    damage: list[Damage] = []
    for part, answer in own:
        if answer is None:
            continue
        if "error" in answer:
            damage.append(Damage(LOAD_FAILED, part.name, error=answer["error"]))
        for tensor, count in answer.get("not_finite", {}).items():
            damage.append(Damage(NOT_FINITE, part.name, part=tensor, count=count))
    num_read = sum(answer is not None for _, answer in own)
    was_refused = any(answer is not None and "refused" in answer for _, answer in own)
    unchecked = why_not if num_read < len(own) else REFUSED if was_refused else None
    return Values(tuple(damage), unchecked, num_read)


def _parts_of(checkpoint: Path) -> Sequence[_Part]:
    files = [checkpoint] if checkpoint.is_file() else sorted(one for one in checkpoint.rglob("*") if one.is_file())
    found: list[_Part] = []
    for metadata in [file for file in files if file.name == METADATA]:
        with suppress(OSError, ValueError):
            for piece in read_pieces(metadata):
                file = metadata.parent / piece.name
                files = [one for one in files if one != file]
                if _begins_with_zip(file, piece.offset):
                    found.append(_Part(checkpoint, file, piece.offset, piece.length, "zip"))
    for file in files:
        if file.suffix == ".safetensors":
            found.append(_Part(checkpoint, file, 0, 0, "safetensors"))
        elif _begins_with_zip(file, 0):
            found.append(_Part(checkpoint, file, 0, 0, "zip"))
    return found


def _begins_with_zip(file: Path, offset: int) -> bool:
    with suppress(OSError), file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
    return False
