"""The results of an emulated run, from its event log alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from harness.analysis.integrity import overruns
from harness.analysis.state import RunState
from harness.analysis.steps import CommittedStep
from mecefo_chaos.studies.forecast.forecast import rates_of
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, Cell, device_of, job_of
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import JobStarted, LayoutTold, RankFinished, Regrouped

# A run in which more compute segments took longer than they were to, or in which steps of one membership are further
# from its median in the mean, says more of the machine than of the method.
MAX_OVERRUN_RATIO = 0.05
MAX_UNREST_RATIO = 0.05
_MIN_SETTLED_STEPS = 5
_CHANGES = ("loss", "rejoin")


class NotEmulated(Exception):
    """The log is of no emulated run that came to its end; the text says what it lacks."""


@dataclass(frozen=True, slots=True)
class EmulatedRun:
    """One run. Seconds are the device's, those of the wall clock over `time_scale`, unless they are called real.

    Settled steps are those that follow another one of the same membership, in which no state is fetched any more.
    `settled_step_seconds` is their mean, each taken as long as the median of its membership, so that a single step that
    the machine disturbed does not count; `plain_step_seconds` is the mean of what they took. `free_step_seconds` is the
    median failure-free step, `predicted_step_seconds` the forecast for the same ranks lost.
    `num_events` losses and rejoins cost `regroup_real_seconds` each, the standstill from its detection until a changed
    membership works (of software: no device model scales it), and `other_seconds`, which are transfers of state, work
    thrown away and slower steps until all is balanced. Where communication is hidden, links are so fast that state
    moves in no time: `transfer_seconds` are those of its bytes between nodes. A run without a `seed` is failure-free.
    """

    cell: Cell
    seed: int | None
    time_scale: float
    num_steps: int
    free_step_seconds: float
    predicted_free_step_seconds: float
    num_settled_steps: int = 0
    settled_step_seconds: float | None = None
    plain_step_seconds: float | None = None
    predicted_step_seconds: float | None = None
    mean_down: float = 0.0
    num_events: int = 0
    regroup_real_seconds: float | None = None
    other_seconds: float | None = None
    transfer_seconds: float | None = None
    overrun_ratio: float | None = None
    worst_overrun_seconds: float | None = None

    @property
    def is_usable(self) -> bool:
        """Whether its figures count: the machine kept up, and there was something to see."""
        kept_up = self.overrun_ratio is not None and self.overrun_ratio <= MAX_OVERRUN_RATIO
        has_seen = self.num_settled_steps >= _MIN_SETTLED_STEPS and self.unrest_ratio <= MAX_UNREST_RATIO
        return kept_up and (self.seed is None or has_seen)

    @property
    def unrest_ratio(self) -> float:
        """By how much the mean of the settled steps is longer than it is with medians for them."""
        if self.plain_step_seconds is None or self.settled_step_seconds is None:
            return 0.0
        return self.plain_step_seconds / self.settled_step_seconds - 1

    def settled_drop_ratio(self, free_step_seconds: float | None = None) -> float:
        """Of tokens/s, against the run's own failure-free steps, or a baseline's."""
        assert self.settled_step_seconds is not None
        return 1 - (free_step_seconds or self.free_step_seconds) / self.settled_step_seconds

    @property
    def predicted_drop_ratio(self) -> float:
        """The forecast's, for the same ranks lost."""
        assert self.predicted_step_seconds is not None
        return 1 - self.predicted_free_step_seconds / self.predicted_step_seconds

    @property
    def event_seconds(self) -> float:
        """What a loss, or a rejoin, costs beside slower layouts."""
        return (self.regroup_real_seconds or 0.0) + (self.other_seconds or 0.0) + (self.transfer_seconds or 0.0)


def with_events(settled_drop_ratio: float, event_seconds: float, interval_seconds: float) -> float:
    """The drop under a process in which a loss and a rejoin come once in `interval_seconds`."""
    return 1 - (1 - settled_drop_ratio) * (1 - 2 * event_seconds / interval_seconds)


def read_emulated(events: Sequence[Event], cell: Cell, seed: int | None) -> EmulatedRun:
    """What the log of the run of `cell` and `seed` says.

    Raises:
        NotEmulated: it is the log of something else, or of a run that did not come to its end.
    """
    state = RunState()
    for event in events:
        state.feed(event)
    started = state.first_of(JobStarted)
    told = None if started is None else started.emulation
    if not told or not isinstance(told.get("time_scale"), int | float):
        raise NotEmulated("it emulates no device")
    timeline = state.timeline
    if timeline.outcome != "completed":
        raise NotEmulated("its job did not come to its end")
    scale, steps = float(told["time_scale"]), timeline.steps.first
    first_injected = timeline.first_injected
    before = [s for s in steps if first_injected is None or s.committed_seconds <= first_injected]
    if len(before) < 3:
        raise NotEmulated("it has no failure-free steps to compare with")
    free_seconds = median(step.duration_seconds for step in before[1:]) / scale
    rates = rates_of(job_of(cell), METHODS[cell.method].policy)
    share = overruns(state.of(RankFinished))
    run = EmulatedRun(
        cell=cell,
        seed=seed,
        time_scale=scale,
        num_steps=len(steps),
        free_step_seconds=free_seconds,
        predicted_free_step_seconds=rates.free.step_seconds,
        overrun_ratio=None if share is None else share[0],
        worst_overrun_seconds=None if share is None else share[1],
    )
    if first_injected is None:
        return run
    settled = _settled(state, steps, first_injected)
    if not settled:
        return run
    counted = [step for of_epoch in settled.values() for step in of_epoch]
    mean_seconds = fmean(
        median(step.duration_seconds for step in of_epoch) for of_epoch in settled.values() for _ in of_epoch
    )
    members = {one.epoch: frozenset(one.members or ()) for one in state.of(LayoutTold)}
    everybody = frozenset(range(job_of(cell).cluster.num_ranks))
    weighted = [(len(some), everybody - members[epoch]) for epoch, some in settled.items()]
    predicted = [(num, rating.step_seconds) for num, dead in weighted if (rating := rates.rating(dead)) is not None]
    changes = {one.epoch for one in state.of(Regrouped) if one.reason in _CHANGES}
    moved_bytes = 0 if cell.is_exposed else sum(one.transfer_bytes or 0 for one in state.of(Regrouped))
    link_seconds = device_of(cell).links.between_nodes.bytes_seconds(moved_bytes)
    stalled = sum(s.ended_seconds - s.began_seconds - s.transfer_seconds for s in timeline.stalls)
    since = max(step.committed_seconds for step in before)
    after = [step for step in steps if step.committed_seconds > since]
    extra = steps[-1].committed_seconds - since - len(after) * mean_seconds
    return EmulatedRun(
        **{name: getattr(run, name) for name in _COMMON},
        num_settled_steps=len(counted),
        settled_step_seconds=mean_seconds / scale,
        plain_step_seconds=fmean(step.duration_seconds for step in counted) / scale,
        predicted_step_seconds=sum(n * seconds for n, seconds in predicted) / sum(n for n, _ in predicted),
        mean_down=sum(num * len(dead) for num, dead in weighted) / len(counted),
        num_events=len(changes),
        regroup_real_seconds=stalled / len(changes) if changes else None,
        other_seconds=(extra - stalled) / scale / len(changes) if changes else None,
        transfer_seconds=link_seconds / len(changes) if changes else None,
    )


_COMMON = (
    *("cell", "seed", "time_scale", "num_steps", "free_step_seconds", "predicted_free_step_seconds"),
    *("overrun_ratio", "worst_overrun_seconds"),
)


def _settled(state: RunState, steps: Sequence[CommittedStep], since: float) -> dict[int, list[CommittedStep]]:
    """By epoch the steps after `since` that follow another one of it, where nothing is fetched."""
    fetching = {one.epoch for one in state.of(LayoutTold) if one.num_fetched_in_background}
    found: dict[int, list[CommittedStep]] = defaultdict(list)
    for previous, step in pairwise(steps):
        follows = previous.epoch == step.epoch and step.step == previous.step + 1
        if follows and step.epoch not in fetching and previous.committed_seconds > since:
            found[step.epoch].append(step)
    return dict(found)
