"""How a command ended."""

from __future__ import annotations

from collections.abc import Mapping


def deciding_end(codes: Mapping[int, int]) -> tuple[int, int]:
    """(node, exit code) of the end that says how the job ended; `codes` are by node, in the order of the ends.

    The first that failed by itself. Where one was only killed and all others end well, they went on without it.
    """
    ends = codes.items()
    failed = [(node, code) for node, code in ends if code > 0]
    well = [(node, code) for node, code in ends if code == 0]
    return (*failed, *well, *ends)[0]
