"""Parameters of an external job that stay NaN or infinite after a fault, also where the loss does not show it.

A script may clean its loss (`torch.nan_to_num`) and go on with weights that are lost. A model may also hold infinities
from the beginning (a mask): what counts is that there are more than before the fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mecefo_runtime.system.command_records import StateChecksums


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A rank whose parameters hold more values that are not finite than before the fault, up to its last look.

    `values` is how many more, seen first after `since_step`, at `since_seconds` (CLOCK_MONOTONIC); `tensor` is one that
    has more of them, where that is known.
    """

    rank: int
    tensor: str | None
    values: int
    since_step: int
    since_seconds: float


def find_not_finite(
    looks: Iterable[StateChecksums], injected_seconds: float, newest_start_seconds: float = 0.0
) -> tuple[NotFinite, ...]:
    """By rank. `looks` are by time; `injected_seconds` is when the first fault was injected.

    Only ranks that looked since `newest_start_seconds`, the beginning of the newest attempt, hold anything at the end.
    Of a rank that did not look before the fault nothing can be said.
    """
    before: dict[int, list[StateChecksums]] = {}
    after: dict[int, list[StateChecksums]] = {}
    for look in looks:
        if look.rank is not None and look.step is not None and look.not_finite_values is not None:
            of_when = before if look.monotonic_seconds < injected_seconds else after
            of_when.setdefault(look.rank, []).append(look)
    found = (
        _lasting(rank, before[rank], later)
        for rank, later in sorted(after.items())
        if rank in before and later[-1].monotonic_seconds >= newest_start_seconds
    )
    return tuple(one for one in found if one is not None)


def _lasting(rank: int, before: Sequence[StateChecksums], after: Sequence[StateChecksums]) -> NotFinite | None:
    usual = max(look.not_finite_values or 0 for look in before)
    first: StateChecksums | None = None
    for look in reversed(after):
        if (look.not_finite_values or 0) <= usual:
            break
        first = look
    if first is None:
        return None
    tensor = _with_more(first.not_finite, before) or _with_more(after[-1].not_finite, before)
    more = (after[-1].not_finite_values or 0) - usual
    return NotFinite(rank, tensor, more, first.step or 0, first.monotonic_seconds)


def _with_more(now: Mapping[str, int], before: Sequence[StateChecksums]) -> str | None:
    usual: dict[str, int] = {}
    for look in before:
        for tensor, values in look.not_finite.items():
            usual[tensor] = max(values, usual.get(tensor, 0))
    return next((tensor for tensor, values in now.items() if values > usual.get(tensor, 0)), None)
