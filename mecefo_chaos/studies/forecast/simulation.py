"""Simulates one job under given losses, from event to event.

Between two events nothing is stepped through: so many whole steps of so many seconds fit. The step that is in flight at
a loss is completed: what counts of it is a head start of the next one. A rank that is back joins at the next step
boundary.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, inf, nextafter
from typing import Protocol

import numpy as np

from harness.analysis.regroups import RUNGS
from mecefo_chaos.studies.forecast.layouts import Change
from mecefo_chaos.studies.forecast.memory import Memory, Version, Work
from mecefo_chaos.studies.forecast.model import CAUSES, Loss, Outcome, Policy, Rating, Recovery, Saving

# Times are sums of many: what is less than this is nothing.
_NOTHING_SECONDS = 1e-9


class Rates(Protocol):
    """What each set of lost ranks makes of a job; see `Layouts`."""

    @property
    def free(self) -> Rating:
        """Without failures."""

    def rating(self, dead: frozenset[int]) -> Rating | None:
        """Without the `dead` ranks; None: the job cannot run."""

    def change(self, before: frozenset[int], after: frozenset[int]) -> Change:
        """From the layout without `before` to the one without `after`."""


@dataclass(slots=True)
class _Stall:
    """Training stands still for `seconds`, by `cause`; what `saver` saves is safe then.

    In the first `drain_seconds` those that do not know of a loss yet continue with their step; `kept_ratio` of it
    counts.
    """

    cause: str
    seconds: float
    saver: _Saver | None = None
    drain_seconds: float = 0.0
    kept_ratio: float = 0.0


@dataclass(slots=True)
class _Steps:
    """`num` steps of `rating`; the first is `extra_seconds` longer. The ranks in `dead` take no part in them."""

    rating: Rating
    dead: frozenset[int]
    num: float = inf
    extra_seconds: float = 0.0


class _Saver:
    """Checkpoints, or snapshots: one every so many steps."""

    def __init__(self, cause: str, saving: Saving, step_seconds: float) -> None:
        self.cause = cause
        self.saving = saving
        self.every_steps = max(1, round(saving.interval_seconds / step_seconds))
        self.num_since = 0.0
        self.work = Work()


def simulate(
    rates: Rates,
    policy: Policy,
    recovery: Recovery,
    losses: Sequence[Loss],
    horizon_seconds: float,
    free_seconds: float,
    num_ranks: int,
    seed: int = 0,
    num_nodes: int = 1,
) -> Outcome:
    """What a job does in `horizon_seconds`; a step of the configured job without failures takes `free_seconds`.

    `losses` are in order of time. What is drawn beside them (whether a snapshot outlives a loss) is drawn from `seed`.
    """
    job = _Job(rates, policy, recovery, free_seconds, np.random.default_rng([seed, 1]), num_nodes)
    absences: list[_Absence] = []
    down_seconds = 0.0
    for loss in losses:
        if loss.at_seconds >= horizon_seconds:
            break
        down_seconds += _end(absences, job, loss.at_seconds)
        ranks = job.lose(loss.at_seconds, loss.ranks, loss.nodes)
        if not ranks:
            continue
        heapq.heappush(absences, _Absence(loss.at_seconds + loss.repair_seconds, loss.at_seconds, ranks, loss.nodes))
        if job.is_waiting and recovery.replacement_seconds is not None:
            replaced_seconds = loss.at_seconds + recovery.replacement_seconds
            absences = [replace(one, until_seconds=min(one.until_seconds, replaced_seconds)) for one in absences]
            heapq.heapify(absences)
    down_seconds += _end(absences, job, nextafter(horizon_seconds, 0))
    down_seconds += sum((horizon_seconds - one.since_seconds) * len(one.ranks) for one in absences)
    return job.finish(horizon_seconds, down_seconds / (num_ranks * horizon_seconds))


@dataclass(frozen=True, slots=True, order=True)
class _Absence:
    """`ranks` are down, and `nodes` without their memory."""

    until_seconds: float
    since_seconds: float
    ranks: tuple[int, ...]
    nodes: tuple[int, ...]

    @property
    def rank_seconds(self) -> float:
        return (self.until_seconds - self.since_seconds) * len(self.ranks)


def _end(absences: list[_Absence], job: _Job, until_seconds: float) -> float:
    """Who is back by then is back, all of an instant together; returns for how many seconds ranks were down."""
    down_seconds = 0.0
    while absences and absences[0].until_seconds <= until_seconds:
        back = [heapq.heappop(absences)]
        while absences and absences[0].until_seconds == back[0].until_seconds:
            back.append(heapq.heappop(absences))
        ranks, nodes = ([number for one in back for number in getattr(one, name)] for name in ("ranks", "nodes"))
        job.repair(back[0].until_seconds, ranks, nodes)
        down_seconds += sum(one.rank_seconds for one in back)
    return down_seconds


class _Job:
    def __init__(
        self,
        rates: Rates,
        policy: Policy,
        recovery: Recovery,
        free_seconds: float,
        generator: np.random.Generator,
        num_nodes: int,
    ) -> None:
        self._rates = rates
        self._policy = policy
        self._recovery = recovery
        self._free_seconds = free_seconds
        self._policy_seconds = rates.free.step_seconds
        self._generator = generator
        self._now = 0.0
        self._in_step_seconds = 0.0
        self._dead: frozenset[int] = frozenset()
        # Whose state is in place: of the layout that runs, or ran last.
        self._settled_dead: frozenset[int] = frozenset()
        self._queue: list[_Stall | _Steps] = [_Steps(rates.free, frozenset())]
        self._lost_seconds = dict.fromkeys(CAUSES, 0.0)
        self._work = Work()
        # From the loss of state until training continues; and as long as ranks are lacking for it.
        self._is_down = self.is_waiting = False
        self._restore_seconds = 0.0
        self._unrecovered: list[float] = []
        self._recoveries: list[float] = []
        self._num_losses = self._num_regroups = 0
        given = (("snapshot", recovery.snapshot), ("checkpoint", recovery.checkpoint))
        self._savers = [_Saver(cause, saving, self._policy_seconds) for cause, saving in given if saving is not None]
        memory = recovery.memory
        self._memory = None if memory is None else Memory(memory, num_nodes, self._policy_seconds)
        self._rungs: Counter[str] = Counter()

    # ---- events ----

    def lose(self, at_seconds: float, ranks: Sequence[int], nodes: Sequence[int]) -> tuple[int, ...]:
        """Those of `ranks` that were alive are lost, and what is in the memory of `nodes`; returns the ranks."""
        self._advance(at_seconds)
        if self._memory is not None:
            self._memory.lose(at_seconds, nodes)
        lost = tuple(rank for rank in ranks if rank not in self._dead)
        if not lost:
            return ()
        self._dead |= frozenset(lost)
        self._num_losses += 1
        self._unrecovered.append(at_seconds)
        interrupted = self._queue[0]
        detection = _Stall("detection", self._recovery.detection_seconds)
        self._queue = [detection]
        if self._policy.stops_on_loss or self._is_down:
            self._start_again()
            return lost
        rating = self._rates.rating(self._dead)
        change = self._rates.change(self._settled_dead, self._dead) if rating is not None else Change(is_lost=True)
        if rating is None or change.is_lost:
            self._start_again()
        else:
            self._rungs["peer"] += 1
            self._complete(interrupted, detection, change, change.first or rating)
            self._regroup(rating, change)
        return lost

    def repair(self, at_seconds: float, ranks: Sequence[int], nodes: Sequence[int]) -> None:
        """`ranks` are back, and `nodes` with an empty memory."""
        self._advance(at_seconds)
        if self._memory is not None:
            self._memory.come_back(at_seconds, nodes)
        self._dead -= frozenset(ranks)
        if self.is_waiting:
            self._restart()
            return
        # It joins at the next step boundary; what is under way is finished before, with one step at least.
        rating = self._rates.rating(self._dead)
        assert rating is not None, "there was a layout with fewer ranks"
        place = next(place for place, part in enumerate(self._queue) if isinstance(part, _Steps))
        steps = self._queue[place]
        assert isinstance(steps, _Steps)
        steps.num = min(steps.num, 1)
        self._queue = self._queue[: place + 1]
        self._regroup(rating, self._rates.change(steps.dead, self._dead))

    def finish(self, horizon_seconds: float, down_ratio: float) -> Outcome:
        """The end of what is simulated."""
        self._advance(horizon_seconds)
        if self._in_step_seconds:
            steps = next(part for part in self._queue if isinstance(part, _Steps))
            self._commit(steps, self._in_step_seconds / self._seconds(steps))
        work = self._work
        lost = self._lost_seconds | {
            "degraded_speed": self._lost_seconds["degraded_speed"] + work.degraded_speed_seconds,
            "redundancy": work.redundancy_seconds,
        }
        return Outcome(
            wall_clock_seconds=horizon_seconds,
            productive_seconds=work.productive_seconds,
            settled_seconds=work.seconds,
            lost_seconds=lost,
            num_steps=work.num_steps,
            num_losses=self._num_losses,
            num_regroups=self._num_regroups,
            degraded_ratio=work.degraded_steps / work.num_steps if work.num_steps else 0.0,
            down_ratio=down_ratio,
            recovery_seconds=tuple(self._recoveries),
            projected_ratio=work.projected_steps / work.num_steps if work.num_steps else 0.0,
            rungs={rung: self._rungs[rung] for rung in RUNGS},
        )

    # ---- what follows an event ----

    def _complete(self, interrupted: _Stall | _Steps, detection: _Stall, change: Change, after: Rating) -> None:
        """What counts of the step in flight, now and until its ranks know of the loss; the rest is done again."""
        done_seconds, to_do_seconds = self._in_step_seconds, 0.0
        if isinstance(interrupted, _Steps):
            compute_seconds = min(interrupted.rating.compute_seconds, self._seconds(interrupted))
            done_seconds = min(done_seconds, compute_seconds)
            to_do_seconds = compute_seconds - done_seconds
        most_seconds = max(0.0, min(after.compute_seconds, after.step_seconds) - change.owed_seconds)
        kept_seconds = min(change.kept_ratio * done_seconds, most_seconds)
        self._lost_seconds["repeated_work"] += self._in_step_seconds - kept_seconds
        self._in_step_seconds = kept_seconds
        if change.kept_ratio:
            detection.kept_ratio = change.kept_ratio
            detection.drain_seconds = min(to_do_seconds, (most_seconds - kept_seconds) / change.kept_ratio)

    def _regroup(self, rating: Rating, change: Change) -> None:
        self._num_regroups += 1
        seconds, extra_seconds = self._recovery.regroup_seconds, self._recovery.first_step_seconds
        self._queue += [_Stall("regroup", seconds), _Stall("transfer", change.transfer_seconds)]
        if change.first is not None:
            # Whose layout it is does not matter: all state is in place when it ends.
            self._queue.append(_Steps(change.first, self._dead, max(1, change.num_first_steps), extra_seconds))
            self._queue.append(_Stall("regroup", seconds))
            self._num_regroups += 1
        self._queue.append(_Steps(rating, self._dead, extra_seconds=extra_seconds))

    def _start_again(self) -> None:
        """State is gone: back to what was saved, as soon as there are ranks enough."""
        self._is_down, self.is_waiting = True, True
        self._lost_seconds["repeated_work"] += self._in_step_seconds
        self._in_step_seconds = 0.0
        self._restore_seconds = self._go_back()
        self._queue.append(_Stall("restart", inf))
        self._restart()

    def _restart(self) -> None:
        rating = None if self._policy.stops_on_loss and self._dead else self._rates.rating(self._dead)
        if rating is None:
            return
        self.is_waiting = False
        self._queue.pop()
        self._queue.append(_Stall("restart", self._recovery.restart_seconds + self._restore_seconds))
        self._queue.append(_Steps(rating, self._dead, extra_seconds=self._recovery.first_step_seconds))

    def _go_back(self) -> float:
        """Throw away what was not saved; returns how long it takes to read what was."""
        usable = [saver for saver in self._savers if self._generator.random() < saver.saving.survival_ratio]
        newest = max(usable, key=lambda saver: saver.work.num_steps, default=None)
        kept = Work() if newest is None else newest.work
        rung = "start" if newest is None or not kept.num_steps else newest.cause
        restore_seconds = 0.0 if newest is None or rung == "start" else newest.saving.restore_seconds
        if self._memory is not None:
            version: Version | None = None
            if (found := self._memory.usable(self._now)) is not None and found[0].work.num_steps >= kept.num_steps:
                version, rung = found
                kept, saving = version.work, self._memory.saving
                restore_seconds = saving.restore_seconds + (saving.rebuild_seconds if rung == "parity" else 0.0)
            self._memory.go_back_to(version)
        self._rungs[rung] += 1
        self._lost_seconds["repeated_work"] += self._work.seconds - kept.seconds
        self._work = kept
        for saver in self._savers:
            saver.num_since = 0.0
            if saver not in usable:
                saver.work = Work()
        return restore_seconds

    # ---- time ----

    def _advance(self, until_seconds: float) -> None:
        while until_seconds - self._now > _NOTHING_SECONDS:
            part = self._queue[0]
            if isinstance(part, _Steps):
                self._train(part, until_seconds)
                continue
            seconds = min(part.seconds, until_seconds - self._now)
            drained_seconds = min(seconds, part.drain_seconds)
            kept_seconds = part.kept_ratio * drained_seconds
            self._in_step_seconds += kept_seconds
            self._lost_seconds[part.cause] += seconds - kept_seconds
            self._now += seconds
            part.seconds -= seconds
            part.drain_seconds -= drained_seconds
            if part.seconds <= _NOTHING_SECONDS:
                self._queue.pop(0)
                if part.saver is not None:
                    part.saver.work = self._work

    def _train(self, steps: _Steps, until_seconds: float) -> None:
        self._is_down = False
        self._settled_dead = steps.dead
        seconds = self._seconds(steps)
        num = min(
            [1.0 if steps.extra_seconds else inf, steps.num, *(s.every_steps - s.num_since for s in self._savers)]
        )
        available_seconds = until_seconds - self._now + self._in_step_seconds
        num = min(num, floor((available_seconds + _NOTHING_SECONDS) / seconds))
        if num:
            if self._unrecovered:
                first_seconds = self._now - self._in_step_seconds + seconds
                self._recoveries += [first_seconds - lost_seconds for lost_seconds in self._unrecovered]
                self._unrecovered.clear()
            before, began = self._work, self._now - self._in_step_seconds
            self._commit(steps, num)
            if self._memory is not None:
                self._memory.note(began, seconds, before, self._work)
            self._now += num * seconds - self._in_step_seconds
            self._in_step_seconds = steps.extra_seconds = 0.0
            steps.num -= num
            if not steps.num:
                self._queue.pop(0)
            self._save()
        else:
            self._in_step_seconds += until_seconds - self._now
            self._now = until_seconds

    def _seconds(self, steps: _Steps) -> float:
        """How long its next step takes, with what of it is spent on snapshots."""
        on_snapshots = 0.0 if self._memory is None else self._memory.step_extra_seconds
        return steps.rating.step_seconds + steps.extra_seconds + on_snapshots

    def _save(self) -> None:
        for saver in self._savers:
            if saver.num_since >= saver.every_steps:
                saver.num_since = 0.0
                self._queue.insert(0, _Stall(saver.cause, saver.saving.save_seconds, saver))

    def _commit(self, steps: _Steps, num: float) -> None:
        """`num` steps are over; their extra time is the regroup's."""
        self._lost_seconds["regroup"] += steps.extra_seconds * min(num, 1)
        if self._memory is not None:
            self._lost_seconds["snapshot"] += num * self._memory.step_extra_seconds
        work, seconds = self._work, steps.rating.step_seconds
        self._work = Work(
            work.productive_seconds + num * self._free_seconds,
            work.degraded_speed_seconds + num * (seconds - self._policy_seconds),
            work.redundancy_seconds + num * (self._policy_seconds - self._free_seconds),
            work.num_steps + num,
            work.degraded_steps + num * steps.rating.degraded_ratio,
            work.projected_steps + num * steps.rating.projected_ratio,
        )
        for saver in self._savers:
            saver.num_since += num
