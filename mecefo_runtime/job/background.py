"""State that moves while training continues: who keeps a unit up to date before computing with it, and from when.

A *shadow* of a unit is a rank that takes part in its reduction (it adds zeros) and in its optimizer step. It
therefore has the same state as the holders, and a later layout can assign it the unit at a step boundary without a
transfer. A shadow that does not have the unit yet gets it during the forward and backward passes of its first step: a
unit does not change between two optimizer steps, so what is sent meanwhile is what the step began with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mecefo_runtime.job.layout import Layout, unit_order


@dataclass(frozen=True, slots=True)
class ShadowUnit:
    """`rank` keeps `unit` up to date from `step` on.

    `source` sends it during that step; None: `rank` has it already.
    """

    unit: str
    rank: int
    step: int
    source: int | None = None


@dataclass(frozen=True, slots=True)
class Background:
    """All shadows of one epoch."""

    shadows: tuple[ShadowUnit, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.shadows)

    @property
    def last_step(self) -> int:
        """The step after whose commit every shadow is up to date, 0 without shadows."""
        return max((shadow.step for shadow in self.shadows), default=0)

    def of(self, rank: int) -> tuple[ShadowUnit, ...]:
        """The shadows that `rank` keeps."""
        return tuple(shadow for shadow in self.shadows if shadow.rank == rank)

    def units(self, layout: Layout, rank: int) -> tuple[str, ...]:
        """All units that `rank` allocates: those it computes with and those it shadows, in pipeline order."""
        return tuple(sorted({*layout.units(rank), *(shadow.unit for shadow in self.of(rank))}, key=unit_order))

    def transfers(self, step: int) -> tuple[ShadowUnit, ...]:
        """The shadows that receive their unit during `step`, in the same order on all ranks."""
        return tuple(shadow for shadow in self.shadows if shadow.step == step and shadow.source is not None)

    def holders(self, layout: Layout, step: int) -> dict[str, tuple[int, ...]]:
        """For every unit the ranks that reduce its gradient in `step`, ascending."""
        holders = layout.holders()
        for shadow in self.shadows:
            if shadow.step <= step:
                holders[shadow.unit] = tuple(sorted({*holders.get(shadow.unit, ()), shadow.rank}))
        return holders

    def reduction_groups(self, layout: Layout) -> tuple[tuple[int, ...], ...]:
        """Every set of two or more ranks that reduce together in some step of the epoch, in a fixed order."""
        steps = {0, *(shadow.step for shadow in self.shadows)}
        sets = {ranks for step in steps for ranks in self.holders(layout, step).values() if len(ranks) > 1}
        return tuple(sorted(sets))


def plan_background(
    layout: Layout,
    target: Layout,
    holdings: Mapping[int, Iterable[str]],
    unit_bytes: Mapping[str, int],
    bytes_per_step: float,
    resume_step: int,
) -> Background:
    """Let `target` be ready to run while `layout` runs, from `resume_step` on.

    A unit that a rank holds and will hold again is kept up to date from the first step. Missing units are fetched in
    pipeline order: on average at most `bytes_per_step` a step per rank, and never more than one unit ahead of that;
    sources share the sending evenly.
    """
    held = {rank: frozenset(units) for rank, units in holdings.items()}
    running = {rank: frozenset(layout.units(rank)) for rank in layout.ranks()}
    sent_bytes = dict.fromkeys(held, 0)
    shadows: list[ShadowUnit] = []
    for rank in sorted(target.ranks()):
        fetched_bytes = 0
        for unit in target.units(rank):
            if unit in running.get(rank, ()):
                continue
            if unit in held.get(rank, ()):
                shadows.append(ShadowUnit(unit, rank, resume_step))
                continue
            # Only who computes with the unit has it for certain in the steps to come.
            sources = [source for source, units in running.items() if unit in units and source != rank]
            source = min(sources, key=lambda candidate: (sent_bytes.get(candidate, 0), candidate))
            sent_bytes[source] = sent_bytes.get(source, 0) + unit_bytes[unit]
            step = resume_step + int(fetched_bytes // bytes_per_step)
            fetched_bytes += unit_bytes[unit]
            shadows.append(ShadowUnit(unit, rank, step, source))
    return Background(tuple(sorted(shadows, key=lambda s: (s.step, unit_order(s.unit), s.rank))))
