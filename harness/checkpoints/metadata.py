"""Which bytes of which files a checkpoint of `torch.distributed.checkpoint` consists of, without running code of it.

Its `.metadata` is a pickle. Every class and function that it names is replaced by an inert one before it is built:
nothing is imported, and nothing that it says is called. Torch is not needed.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` bytes at `offset` of the file `name`."""

    name: str
    offset: int
    length: int


class _Inert:
    """In the place of whatever class or function a pickle names: it keeps what it is given, and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _Inert:
        return object.__new__(cls)

    def __init__(self, *arguments: Any, **_: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Of a dict of another class."""

    def append(self, value: Any) -> None:
        """Of a list of another class."""

    def extend(self, values: Any) -> None:
        """Of a list of another class."""

    def add(self, value: Any) -> None:
        """Of a set of another class."""


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        del module_name
        return type(global_name.rpartition(".")[2] or "_", (_Inert,), {})

    def persistent_load(self, pid: Any, /) -> Any:
        del pid
        return _Inert()


def read_pieces(path: Path) -> tuple[Piece, ...]:
    """The pieces that the file `.metadata` at `path` names, by file and offset.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none, is cut off, or is too large.
    """
    if (num_bytes := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{num_bytes} bytes")
    try:
        metadata = _InertUnpickler(io.BytesIO(path.read_bytes())).load()
    except Exception as error:
        # A damaged pickle may fail in any way.
        raise ValueError(f"{type(error).__name__}: {error}") from error
    state = getattr(metadata, "state", None)
    storage = state.get("storage_data") if isinstance(state, dict) else None
    if not isinstance(storage, dict):
        raise ValueError("it names no files")
    pieces = {_piece(one) for one in storage.values()}
    return tuple(sorted(pieces, key=lambda piece: (piece.name, piece.offset)))


def _piece(info: Any) -> Piece:
    known = getattr(info, "state", None)
    if not isinstance(known, dict):
        raise ValueError("it names no place of a piece")
    name, offset, length = (known.get(key) for key in ("relative_path", "offset", "length"))
    if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
        raise ValueError("it names no place of a piece")
    if offset < 0 or length < 0 or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"it names {name!r} at {offset}")
    return Piece(name, offset, length)
