"""Run by the job's own Python, with nothing but it and torch: which values of checkpoints are not finite.

Standard input has a list as JSON of [file, offset, length, kind], `kind` being `zip` or `safetensors`; for each one
line is written: a JSON object with `index` and either `not_finite` (by tensor, the first ones), `refused` (weights_only
does not read it) or `error` (it cannot be read).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_NAMED = 8
CHUNK = 1 << 22
_NAMES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def tensors_of(torch: Any, value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All tensors in nested containers, by their path in them."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < 64 and isinstance(value, dict):
        for key, one in value.items():
            yield from tensors_of(torch, one, f"{name}.{key}" if name else str(key), depth + 1)
    elif depth < 64 and isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from tensors_of(torch, one, f"{name}.{number}" if name else str(number), depth + 1)


def num_not_finite(torch: Any, tensor: Any) -> int:
    """How many of its values are NaN or infinite."""
    if tensor.is_sparse or not (tensor.is_floating_point() or tensor.is_complex()) or tensor.device.type == "meta":
        return 0
    flat = tensor.detach().reshape(-1)
    if flat.element_size() == 1:
        flat = flat.float()
    return sum(int((~torch.isfinite(flat[at : at + CHUNK])).sum()) for at in range(0, flat.numel(), CHUNK))


def read_safetensors(torch: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The tensors of floating-point numbers of a file of safetensors."""
    with Path(path).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        for name, tensor in header.items():
            kind = None if name == "__metadata__" else _NAMES.get(tensor["dtype"])
            if kind is None:
                continue
            begin, end = tensor["data_offsets"]
            file.seek(8 + length + begin)
            raw = bytearray(file.read(end - begin))
            if raw:
                yield name, torch.frombuffer(raw, dtype=getattr(torch, kind))


def look(torch: Any, path: str, offset: int, length: int, kind: str) -> dict[str, Any]:
    """The answer for one file, or for a piece of one."""
    try:
        if kind == "safetensors":
            found = read_safetensors(torch, path)
        elif offset or length:
            with Path(path).open("rb") as file:
                file.seek(offset)
                piece = io.BytesIO(file.read(length))
            found = tensors_of(torch, torch.load(piece, map_location="cpu", weights_only=True))
        else:
            found = tensors_of(torch, torch.load(path, map_location="cpu", weights_only=True, mmap=True))
        counts = ((name, num_not_finite(torch, tensor)) for name, tensor in found)
        named = {name: count for name, count in counts if count}
    except pickle.UnpicklingError as error:
        return {"refused": str(error).partition("\n")[0][:200]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:200]}
    return {"not_finite": dict(list(named.items())[:MAX_NAMED]), "count": sum(named.values())}


def main() -> None:
    """Look at all of them, at the lowest priority."""
    os.nice(19)
    import torch

    torch.set_num_threads(1)
    for index, (path, offset, length, kind) in enumerate(json.load(sys.stdin)):
        print(json.dumps({"index": index, **look(torch, path, offset, length, kind)}), flush=True)


if __name__ == "__main__":
    main()
