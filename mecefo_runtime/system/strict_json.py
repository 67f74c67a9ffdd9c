"""JSON that somebody else may have written: read so that nothing in it breaks down whoever uses it.

`json.loads` raises RecursionError of what is nested deep enough. It takes what is nested a little less, and whoever
goes through that recursively breaks down.
"""

from __future__ import annotations

import json
from typing import Any

# More than an experiment, a layout or the evidence of a fault needs.
MAX_DEPTH = 64
# Process numbers, steps and sizes in bytes.
MAX_WHOLE = 1 << 63
_CONTAINERS = (dict, list)


def loads(text: str | bytes) -> Any:
    """The value that `text` says.

    Raises:
        ValueError: it is no JSON, has a whole number of thousands of digits, or is nested deeper than `MAX_DEPTH`.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    num_opened = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    if num_opened > MAX_DEPTH and _is_deep(value):
        raise ValueError("nested too deep")
    return value


def whole(value: object, bound: int = MAX_WHOLE) -> int:
    """`value`, which must be a whole number from -`bound` to `bound`.

    Raises:
        ValueError: it is none.
    """
    # True is none.
    if type(value) is int and -bound <= value <= bound:
        return value
    raise ValueError(f"a whole number is expected, not {type(value).__name__}")


def _is_deep(value: Any) -> bool:
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        level = [
            part for one in level for part in (one.values() if type(one) is dict else one) if type(part) in _CONTAINERS
        ]
        if not level:
            return False
    return True
