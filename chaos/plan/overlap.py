"""Which incidents are active at once, as far as that is known before the run, and which of them conflict.

Moments in steps and in seconds are not compared: how long a step takes is known only when it is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from chaos.errors import UsageError
from chaos.experiment.limits import Limits
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import PHASES, Duration, Trigger
from chaos.plan.incident import Incident
from chaos.refusals import refusal_text
from mecefo_runtime.job.layout import Cluster

# A step and how many of its phases went before, or seconds and 0.
Moment = tuple[float, int]
_NEVER: Moment = (math.inf, 0)


@dataclass(frozen=True, slots=True)
class Interval:
    """From `first` to `last`, both included."""

    clock: Literal["steps", "seconds"]
    first: Moment
    last: Moment

    def overlaps(self, other: Interval) -> bool:
        """Whether some moment is known to be in both."""
        return self.clock == other.clock and self.first <= other.last and other.first <= self.last

    @property
    def beginning(self) -> Interval:
        """Its first moment alone."""
        return Interval(self.clock, self.first, self.first)


def interval_of(trigger: Trigger, length: Duration | Literal["moment"] | None) -> Interval | None:
    """When something is known to be active that begins at `trigger` and lasts `length` (None: to the job's end).

    None: its begin is not known beforehand. Where only its end is not known, because one is in steps and the other
    in seconds, the first moment stands for all. The last step counts in full: the repair begins when it is committed.
    """
    if trigger.is_outside_steps:
        return None
    if trigger.at_seconds is not None:
        first: Moment = (trigger.at_seconds, 0)
        if isinstance(length, Duration) and length.seconds is not None:
            return Interval("seconds", first, (trigger.at_seconds + length.seconds, 0))
        return Interval("seconds", first, _NEVER if length is None else first)
    # A snapshot of a step is copied and encoded after it.
    num_phases = PHASES.index(trigger.phase) if trigger.phase in PHASES else len(PHASES)
    first = (trigger.step or 0, num_phases)
    if isinstance(length, Duration) and length.steps is not None:
        return Interval("steps", first, (first[0] + length.steps, len(PHASES)))
    return Interval("steps", first, _NEVER if length is None else first)


@dataclass(frozen=True, slots=True)
class Placed:
    """An incident, the key of the experiment that it comes from, when it is active, and `Fault.exclusive` of it."""

    incident: Incident
    key: str
    interval: Interval | None
    exclusive: str | None = None

    @property
    def keeps_away(self) -> Interval | None:
        """When the ranks of a loss are not drawn for other faults, and those of this fault not for a loss."""
        if self.interval is None or self.incident.is_loss:
            return self.interval
        return self.interval.beginning

    @property
    def processes(self) -> frozenset[tuple[str, int]]:
        """What it affects: ranks, and the supervisors of whole nodes."""
        target = self.incident.target
        return frozenset(("rank", rank) for rank in target.ranks) | {("supervisor", node) for node in target.nodes}


def taken_ranks(new: Placed, placed: Iterable[Placed]) -> set[int]:
    """Ranks on which `new` is not drawn.

    Those that are down then, those affected while it lasts if it is a loss, and those that another fault has to itself.
    """
    mine = new.keeps_away
    if mine is None:
        return set()
    taken: set[int] = set()
    for other in placed:
        theirs = other.keeps_away if new.incident.is_loss or other.incident.is_loss else None
        if theirs is not None and mine.overlaps(theirs):
            taken.update(other.incident.target.ranks)
        is_same = new.exclusive is not None and new.exclusive == other.exclusive and not other.incident.target.links
        if (
            is_same
            and new.interval is not None
            and other.interval is not None
            and new.interval.overlaps(other.interval)
        ):
            taken.update(other.incident.target.ranks)
    return taken


def check(placed: Iterable[Placed], cluster: Cluster, limits: Limits) -> None:
    """Refuse what cannot be, the first of it in the order of the run.

    Raises:
        UsageError: an incident affects what is still down, leaves no rank alive, or is beyond `limits`.
    """
    placed = list(placed)
    for one in placed:
        if one.interval is None:
            _check_one(one, (), cluster, limits)
    for clock in ("steps", "seconds"):
        known = [(one.interval, one) for one in placed if one.interval is not None and one.interval.clock == clock]
        active: list[tuple[Interval, Placed]] = []
        for interval, one in sorted(known, key=lambda pair: pair[0].first):
            active = [pair for pair in active if interval.first <= pair[0].last]
            _check_one(one, [earlier for _, earlier in active], cluster, limits)
            active.append((interval, one))


def common(one: ResolvedTarget, other: ResolvedTarget) -> str | None:
    """What both targets affect, in words, the first of it; None if they affect nothing in common."""
    if one.links or other.links:
        links = sorted(set(one.links) & set(other.links))
        return f"link {links[0][0]}-{links[0][1]}" if links else None
    if ranks := sorted(set(one.ranks) & set(other.ranks)):
        return f"rank {ranks[0]}"
    is_same = one.role == other.role and not (one.ranks or other.ranks)
    return f"the {one.role}" if is_same and one.role else "the job" if is_same else None


def check_exclusive(placed: Iterable[Placed]) -> None:
    """Refuse faults that would be active together although one of them needs its target to itself.

    Raises:
        UsageError: two are, as far as that is known before the run.
    """
    active: dict[tuple[str, str], list[tuple[Interval, Placed]]] = {}
    known = [(one.interval, one.exclusive, one) for one in placed if one.interval is not None and one.exclusive]
    for interval, exclusive, one in sorted(known, key=lambda entry: entry[0].first):
        same = active.setdefault((exclusive, interval.clock), [])
        # What ends when another begins leaves it room; what begins with it does not, however long it lasts.
        same[:] = [entry for entry in same if interval.first < entry[0].last or interval.first == entry[0].first]
        for _, other in same:
            if (where := common(one.incident.target, other.incident.target)) is not None and not _ends_before(
                other, one
            ):
                mine, theirs = one.incident, other.incident
                lasts = "to the end of the job" if theirs.lifetime is None else f"for {theirs.lifetime}"
                raise UsageError(
                    f"{mine.fault} on {mine.target} at {mine.trigger}, but {other.key} ({theirs.fault}) is active on "
                    f"{where} from {theirs.trigger} {lasts}, and only one fault at a time can change {exclusive}: "
                    "choose another target, or times that do not overlap",
                    key=one.key,
                )
        same.append((interval, one))


def _ends_before(one: Placed, other: Placed) -> bool:
    """Whether `one`, which lasts so many steps, is over when the step of `other` begins."""
    lifetime, begin, end = one.incident.lifetime, one.incident.trigger.step, other.incident.trigger.step
    if lifetime is None or lifetime.steps is None or begin is None or end is None:
        return False
    return begin + lifetime.steps <= end


def is_possible(new: Placed, placed: Iterable[Placed], cluster: Cluster, limits: Limits) -> str | None:
    """Why `new` cannot be beside `placed`, which can be; None if it can."""
    beside = [
        one
        for one in placed
        if one.interval is not None and new.interval is not None and one.interval.overlaps(new.interval)
    ]
    try:
        check([*beside, new], cluster, limits)
        check_exclusive([*beside, new])
    except UsageError as error:
        return error.message
    return None


def _check_one(one: Placed, active: Sequence[Placed], cluster: Cluster, limits: Limits) -> None:
    incident = one.incident
    if not incident.target.ranks:
        return
    down = [earlier for earlier in active if earlier.incident.is_loss]
    what = f"{incident.fault} on {incident.target} at {incident.trigger}"
    mine = one.processes
    gone = frozenset[tuple[str, int]]().union(*(earlier.processes for earlier in down))
    # A link needs both of its ends.
    if mine <= gone or (incident.target.links and mine & gone):
        first = next(earlier for earlier in reversed(down) if earlier.processes & mine)
        repair = first.incident.repair
        until = f"until {repair} later" if repair is not None else "for good"
        raise UsageError(
            f"{what}, but {first.key} took it down at {first.incident.trigger} {until}: choose another target, "
            "a later step or an earlier repair",
            key=one.key,
        )
    if incident.is_loss:
        dead = {rank for loss in (*down, one) for rank in loss.incident.target.ranks}
        if len(dead) == cluster.num_ranks:
            raise UsageError(
                f"{what} leaves none of the job's {cluster.num_ranks} ranks alive: choose a smaller target"
                + (", or an earlier repair of those lost before" if down else ""),
                key=one.key,
            )
    affected = {rank for other in (*active, one) for rank in other.incident.target.ranks}
    violation = limits.violation(affected, cluster)
    if violation is not None:
        raise UsageError(f"{what}: {refusal_text(violation)}", key=one.key)
