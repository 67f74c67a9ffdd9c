"""The file or folder that a call of a function of torch or safetensors saves to, or reads from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def path_in_call(args: tuple[Any, ...], kwargs: Mapping[str, Any], storage: str, first: int) -> str | None:
    """Return the path that a call names, also of an open file; None where there is none.

    `torch.save(obj, f)`, `torch.load(f)`, `serialize_file(..., filename)`, `safe_open(filename)`,
    `torch.distributed.checkpoint.save(state_dict, checkpoint_id=, storage_writer=)`. `storage` is the name of the
    argument with a storage; positional arguments count from number `first` to 1.
    """
    named = [kwargs.get(name) for name in ("f", "filename", "checkpoint_id")]
    for one in (*named, getattr(kwargs.get(storage), "path", None), *args[first:2]):
        path = one if isinstance(one, os.PathLike) else getattr(one, "name", one)
        if isinstance(path, str | os.PathLike):
            return os.fspath(path)
        # An object that writes to a file which it has opened, or been given.
        held = getattr(one, "__dict__", {}).values() if hasattr(one, "write") else ()
        names = [getattr(other, "name", None) for other in held if hasattr(other, "fileno")]
        if len(names) == 1 and isinstance(names[0], str):
            return names[0]
    return None
