"""Attribution of losses: the one rule that assigns each loss of the job to a fault, or to none.

A fault explains the loss of a rank that it affected while its effect on that rank is not over. It is over
- of a fault that takes ranks away, when the rank is back in the job;
- of one that goes on for a time, when a step that began after its end is committed;
- of one that is done in an instant, when a step that began after it is committed;
- of one that corrupts numbers, never: they may be found at any time later, and cost the rank its place then.
Whatever the fault, its effect is not over while a rank that the job gave up for it is away.

Of several such faults the one injected last has it. A rank that the job sends away by its own judgement while a fault
is at work is the job's answer to that fault, be it right or wrong. Every other loss is unplanned.

Of a command's job the launcher is lost if a signal ends it, and the rank that ends first if all are started again or
SIGKILL ended it and the job with it. Who fails of a fault need not be whom it affected. A fault explains every end from
its injection (of one that goes on: from its end) to the first step that is committed after it and was not before: an
attempt that dies while it does again what was lost, or before any step, dies of the fault that made it necessary. One
done in an instant that takes nobody explains every end at any time later: it has changed numbers.

SIGKILL comes from outside. It is the fault's if the process is one that the fault affected, or ran on a rank that it
affected when it came (or at any time while it goes on); or if the attempt before or after died of SIGKILL after the
same step, as one does that always needs too much memory. Else it is unplanned, whatever is at work.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from signal import SIGKILL, SIGTERM

from harness.analysis.command.attempts import Starts
from harness.analysis.contained import charge
from harness.analysis.regroups import takes_coordinator
from harness.analysis.steps import Steps, num_committed, showing_recovery
from mecefo_runtime.system.clocks import uncertainty_between
from mecefo_runtime.system.command_records import StepsCounted
from mecefo_runtime.system.host import pid_of
from mecefo_runtime.system.job_records import (
    AttemptStarted,
    CoordinatorRestarted,
    Detected,
    JobFailed,
    ProcessExited,
    ProcessStarted,
    RankFinished,
    RankStarted,
    Regrouped,
    Rejoined,
)
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import Aborted, Halted, Injected, Interrupted, RepairStarted, Undone, Unverified

COORDINATOR = "coordinator"
SUPERVISOR = "supervisor"
LAUNCHER = "launcher"
Culprit = int | str
"""A rank, COORDINATOR, or LAUNCHER."""
FOR_NUMBERS = "health"
"""The words of `detected`, field `how`, by which the job sends away a rank that runs: for its numbers, or its links."""
_EVICTIONS = (FOR_NUMBERS, "peers")


@dataclass(slots=True)
class Effect:
    """What one injected fault did to the job (CLOCK_MONOTONIC seconds; None: it did not come to that).

    `recovered` and `settled` are when the first step was committed that began after it, and after its end. `detected`
    is when the job first gave up a rank for it, `rejoined` when it had taken all of those back; `missing` are those
    that it has not. `gone` are the lost ranks that no later membership has, that of a restart included; `returned` is
    when the last of them was in one. Of a command's job `progressed` is when the first step after it was committed that
    had not been before, `pids` are the processes that it affected, and `attempt` is that in which it came.
    """

    incident: int
    injected: float
    ranks: frozenset[int]
    is_loss: bool
    goes_on: bool
    is_of_coordinator: bool
    recovered: float | None
    progressed: float | None = None
    pids: frozenset[int] = frozenset()
    attempt: int = 0
    settled: float | None = None
    repair_started: float | None = None
    detected: float | None = None
    rejoined: float | None = None
    returned: float | None = None
    missing: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    back: dict[int, float] = field(default_factory=dict)

    def explains(self, lost: Culprit, at: float, how: str | None) -> bool:
        """Whether it explains the loss of a rank, or of the coordinator, at that time."""
        if not isinstance(lost, int):
            return self.is_of_coordinator and at <= self._over
        if lost not in self.ranks:
            return False
        if lost in self.gone or how == FOR_NUMBERS:
            return True
        return at <= (self.back.get(lost, inf) if self.is_loss else max(self._over, self.back.get(lost, 0.0)))

    def is_at_work(self, at: float) -> bool:
        """Whether it was active, or the job was recovering from it, at that time."""
        if at < self.injected:
            return False
        returned = 0.0 if self.detected is None else inf if self.returned is None else self.returned
        if self.is_loss:
            # Between its recovery and its repair the job continues steadily, with fewer ranks.
            is_in_repair = self.repair_started is not None and self.repair_started <= at <= returned
            return at <= self._over or is_in_repair
        return at <= max(self._over, returned)

    def has_consequences(self, at: float) -> bool:
        """Whether a command's job had not got further yet, at that time, than it was when the fault came."""
        return self.injected <= at and (self.progressed is None or at <= self.progressed)

    def is_killer_of(self, ended: ProcessExited) -> bool:
        """Whether it may have ended this process by SIGKILL."""
        if ended.exited_pid in self.pids:
            return True
        was_there = self.goes_on or ended.rank_attempt is None or ended.rank_attempt <= self.attempt
        return was_there and ended.exited_rank in self.ranks

    @property
    def spans(self) -> tuple[tuple[float, float], ...]:
        """The times (from, to) in which it was at work, both included; see `is_at_work`."""
        returned = 0.0 if self.detected is None else inf if self.returned is None else self.returned
        if not self.is_loss:
            return ((self.injected, max(self._over, returned)),)
        if self.repair_started is None:
            return ((self.injected, self._over),)
        return (self.injected, self._over), (max(self.injected, self.repair_started), returned)

    @property
    def is_instant(self) -> bool:
        """Whether it is done in an instant, and takes nobody away."""
        return not self.is_loss and not self.goes_on

    @property
    def _over(self) -> float:
        over = self.settled if self.goes_on or self.is_of_coordinator else self.recovered
        return inf if over is None else over


class _Effects:
    """The effects of a job by when they were injected, and by what they affect.

    Losses are explained in the order of time, so an effect that is over is looked at once more and then no longer: what
    a loss costs does not go with the number of faults before it.
    """

    def __init__(self, *, restarts_by_launcher: bool) -> None:
        self._restarts_by_launcher = restarts_by_launcher
        self._numbers: dict[int, int] = {}
        self._every: list[Effect] = []
        self._instants: list[Effect] = []
        # Those that may be at work, and by what they affect those that may explain a loss of it.
        self._active: list[Effect] = []
        self._is_active: set[int] = set()
        self._of: dict[Culprit, list[Effect]] = {}
        self._newest_of: dict[Culprit, Effect] = {}

    def add(self, effect: Effect) -> None:
        """A fault was injected."""
        self._numbers[effect.incident] = len(self._numbers)
        insort(self._every, effect, key=_injected)
        if effect.is_instant:
            insort(self._instants, effect, key=_injected)
        coordinator: tuple[Culprit, ...] = (COORDINATOR,) if effect.is_of_coordinator else ()
        for culprit in (*effect.ranks, *coordinator):
            own = self._of.setdefault(culprit, [])
            insort(own, effect, key=_injected)
            self._newest_of[culprit] = own[-1]
        self.changed(effect)

    def changed(self, effect: Effect) -> None:
        """It may be at work again."""
        if effect.incident not in self._is_active:
            self._is_active.add(effect.incident)
            insort(self._active, effect, key=_injected)

    def candidates(self, at: float, oldest: float) -> list[Effect]:
        """Of a command's job those that may explain a loss at that time, by when they were injected.

        Nobody asks for a time before `oldest` any more. Of those that were done in an instant the last one stands for
        all.
        """
        charge(len(self._active))
        kept = [effect for effect in self._active if any(until >= oldest for _, until in self._spans(effect))]
        if len(kept) < len(self._active):
            self._active, self._is_active = kept, {effect.incident for effect in kept}
        found = {effect.incident: effect for effect in kept}
        number = bisect_right(self._instants, at, key=_injected)
        for effect in self._instants[max(0, number - 1) : number]:
            found[effect.incident] = effect
        return sorted(found.values(), key=_injected)

    def latest_at_work(self, at: float) -> Effect | None:
        """Of those on ranks that were at work at that time, the one injected last; nobody asks for an earlier time."""
        kept: list[Effect] = []
        found: Effect | None = None
        while self._active and found is None:
            effect = self._active.pop()
            charge()
            if effect.ranks and effect.is_at_work(at):
                found = effect
            if any(until >= at for _, until in effect.spans):
                kept.append(effect)
            else:
                self._is_active.discard(effect.incident)
        self._active += reversed(kept)
        return found

    def explaining(self, lost: Culprit, at: float, how: str | None) -> Effect | None:
        """Of those that explain a loss (see `Effect.explains`), the one injected last."""
        affected = lost if isinstance(lost, int) else COORDINATOR
        if how == FOR_NUMBERS and isinstance(lost, int):
            # Wrong numbers may be found at any time later.
            return self._newest_of.get(lost)
        own = self._of.get(affected, [])
        # What does not explain it does not explain a later loss either.
        while own and not own[-1].explains(lost, at, how):
            own.pop()
        return own[-1] if own else None

    def injected_between(self, since: float, until: float) -> Iterable[int]:
        """The incidents injected after `since` and before `until`."""
        first = bisect_right(self._every, since, key=_injected)
        last = bisect_left(self._every, until, key=_injected)
        return (effect.incident for effect in self._every[first:last])

    def at_work_at(self, times: Sequence[float]) -> list[set[int]]:
        """The incidents that were at work at each of `times`, or of a command's job had consequences."""
        each = ((*span, effect.incident) for effect in self._every for span in self._spans(effect))
        spans = sorted(span for span in each if span[0] <= span[1])
        found: list[set[int]] = [set() for _ in times]
        active: list[tuple[float, int]] = []
        place = 0
        for number in sorted(range(len(times)), key=times.__getitem__):
            at = times[number]
            while place < len(spans) and spans[place][0] <= at:
                heappush(active, spans[place][1:])
                place += 1
            while active and active[0][0] < at:
                heappop(active)
            charge(len(active))
            found[number] = {incident for _, incident in active}
        return found

    def in_order(self, incidents: Collection[int]) -> tuple[int, ...]:
        """The same incidents in the order in which they were told."""
        return tuple(sorted(incidents, key=self._numbers.__getitem__))

    def _spans(self, effect: Effect) -> Sequence[tuple[float, float]]:
        if not self._restarts_by_launcher:
            return effect.spans
        return (*effect.spans, (effect.injected, inf if effect.progressed is None else effect.progressed))


class _Killers:
    """Which processes any fault may have ended by SIGKILL, looked up without a look at every fault."""

    def __init__(self) -> None:
        self._pids: set[int] = set()
        # By rank: the last attempt in which a fault on it was there.
        self._until_attempt: dict[int, float] = {}

    def add(self, effect: Effect) -> None:
        """Another fault."""
        self._pids |= effect.pids
        until = inf if effect.goes_on else float(effect.attempt)
        for rank in effect.ranks:
            self._until_attempt[rank] = max(until, self._until_attempt.get(rank, until))

    def may_have_ended(self, ended: ProcessExited) -> bool:
        """Whether `Effect.is_killer_of` holds of any of the faults."""
        if ended.exited_pid in self._pids:
            return True
        if ended.exited_rank is None or ended.exited_rank not in self._until_attempt:
            return False
        return ended.rank_attempt is None or ended.rank_attempt <= self._until_attempt[ended.exited_rank]


def _injected(effect: Effect) -> float:
    return effect.injected


def _happened(record: Record) -> float:
    return record.monotonic_seconds


@dataclass(slots=True)
class Loss:
    """A rank, or the coordinator, that the job lost, `at` the time when it noticed.

    `incident` is what explains it, None where nothing does; `is_answer`: the job sent it away because of that one.
    `since` is when its process ended, which `exit_code` says how, or the last commit before, after which it must have
    been lost; `step` is that of this commit. `back` is when it was a member again. `pid` and `attempt` are those of a
    command's process.
    """

    lost: Culprit
    at: float
    how: str | None
    since: float
    step: int | None
    exit_code: int | None = None
    pid: int | None = None
    attempt: int | None = None
    incident: int | None = None
    is_answer: bool = False
    back: float | None = None


@dataclass(frozen=True, slots=True)
class UnplannedLoss:
    """What the job lost at one time without any fault of the plan (CLOCK_MONOTONIC seconds; None: never).

    `with_supervisor`: the supervisor of a node of those ranks ended, and they with it. `step` is the last one that was
    committed before, `resumed` when the job was at work again, `recovered` when the first step was committed that
    began after it, `rejoined` when all of them were back. `mixed_with` are the incidents that were at work at the time,
    or injected before the job was past it: what either of them took cannot be told. `pids` and `attempts` are those of
    a command's processes.
    """

    lost: tuple[Culprit, ...]
    how: tuple[str, ...]
    exit_codes: tuple[int, ...]
    step: int | None
    since: float
    detected: float
    resumed: float | None
    recovered: float | None
    rejoined: float | None
    mixed_with: tuple[int, ...]
    with_supervisor: bool = False
    pids: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()

    @property
    def detection_seconds(self) -> float:
        """Since -> detected."""
        return self.detected - self.since

    @property
    def recovery_seconds(self) -> float | None:
        """Since -> recovered."""
        return None if self.recovered is None else self.recovered - self.since

    @property
    def uncertainty_seconds(self) -> dict[str, float]:
        """The uncertainty of those two, by name, where they are measured between two clocks."""
        ends = {"detection_seconds": self.detected, "recovery_seconds": self.recovered}
        known = {name: uncertainty_between(self.since, end) for name, end in ends.items() if end is not None}
        return {name: seconds for name, seconds in known.items() if seconds}

    @property
    def role(self) -> str | None:
        """What was lost beside the ranks, or without any."""
        named = next((lost for lost in self.lost if isinstance(lost, str)), None)
        return SUPERVISOR if named is None and self.with_supervisor else named

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks among what was lost."""
        return tuple(lost for lost in self.lost if isinstance(lost, int))


class Attribution:
    """The losses of a job and the faults that explain them; `main` holds its records by time."""

    def __init__(self, main: Sequence[Record], steps: Steps, *, restarts_by_launcher: bool = False) -> None:
        self._restarts_by_launcher = restarts_by_launcher
        # By attempt of a command: the rank that ended first, otherwise than it should.
        self._failed: dict[int, ProcessExited] = {}
        self._finished_pids: set[int] = set()
        self.effects: dict[int, Effect] = {}
        self._known = _Effects(restarts_by_launcher=restarts_by_launcher)
        self._killers = _Killers()
        self.losses: list[Loss] = []
        # The newest loss of each, and those of which it is not back yet.
        self._last_of: dict[Culprit, Loss] = {}
        self._away: dict[Culprit, list[Loss]] = {}
        # By rank, the effects that it was lost to, as long as it is not back.
        self._lost_to: dict[Culprit, dict[int, Effect]] = {}
        self._steps = steps.every
        # Those that can show that the job is past a loss.
        self._fit = steps.every_fit
        self._exits: dict[int, ProcessExited] = {}
        self._node_of: dict[int, int] = {}
        self._supervisors: list[ProcessExited] = []
        self._regroups: list[float] = []
        # Effects on the coordinator that is not back yet.
        self._coordinators_lost: list[Effect] = []
        self._starts = Starts(main) if restarts_by_launcher else None
        self._is_ending = False
        # The coordinator said goodbye: what still runs is ended by the tool.
        self._is_over = False
        # Of a command: its first steps, whether their numbers go on in later attempts, its attempt, and the launchers
        # that run.
        self._first_steps, self._is_counted = steps.first_fit, True
        self._attempt = 0
        self._start: AttemptStarted | None = None
        self._launchers: set[int] = set()
        self._launchers_are_gone = False
        # How the attempt before ended, if by SIGKILL, and not by that of a fault.
        self._killed: Loss | None = None
        for record in main:
            self._read(record)

    @property
    def detections(self) -> dict[int, float]:
        """When the job first lost a rank to each incident, or answered to it otherwise; of those that it did."""
        found = {i: effect.detected for i, effect in self.effects.items() if effect.detected is not None}
        for loss in self.losses:
            if loss.is_answer and loss.incident is not None:
                found[loss.incident] = min(loss.at, found.get(loss.incident, loss.at))
        return found

    @property
    def unplanned(self) -> tuple[UnplannedLoss, ...]:
        """The losses that no fault explains, those together that came before the job was past the first of them."""
        groups: list[list[Loss]] = []
        resumed: float | None = None
        for loss in self.losses:
            if loss.incident is not None:
                continue
            if groups and (resumed is None or loss.at < resumed):
                groups[-1].append(loss)
            else:
                groups.append([loss])
            resumed = self._resumed([loss])[0]
        at_work = self._known.at_work_at([min(loss.since for loss in group) for group in groups])
        return tuple(self._told(group, found) for group, found in zip(groups, at_work, strict=True))

    def _told(self, group: list[Loss], at_work: Collection[int]) -> UnplannedLoss:
        """What is told of losses; `at_work` are the incidents that were when the first of them came."""
        since, back = min(loss.since for loss in group), [loss.back for loss in group]
        known = [at for at in back if at is not None]
        resumed, recovered = self._resumed(group)
        until = inf if recovered is None else recovered
        nodes = {self._node_of.get(loss.lost) for loss in group if isinstance(loss.lost, int)}
        first = bisect_left(self._supervisors, since, key=_happened)
        last = bisect_right(self._supervisors, until, key=_happened)
        supervisors = [one for one in self._supervisors[first:last] if one.exited_node in nodes]
        codes = {loss.exit_code for loss in group} | {one.exit for one in supervisors}
        return UnplannedLoss(
            lost=tuple(dict.fromkeys(sorted((loss.lost for loss in group), key=str))),
            how=tuple(sorted({loss.how for loss in group if loss.how is not None})),
            exit_codes=tuple(sorted(code for code in codes if code is not None)),
            step=group[0].step,
            since=since,
            detected=min(loss.at for loss in group),
            resumed=resumed,
            recovered=recovered,
            rejoined=max(known) if len(known) == len(back) else None,
            mixed_with=self._known.in_order({*at_work, *self._known.injected_between(since, until)}),
            with_supervisor=bool(supervisors),
            pids=tuple(loss.pid for loss in group if loss.pid is not None),
            attempts=tuple(sorted({loss.attempt for loss in group if loss.attempt is not None})),
        )

    def _resumed(self, group: Sequence[Loss]) -> tuple[float | None, float | None]:
        """When the job was at work again after those losses, and when it committed what it then began."""
        at = max(loss.at for loss in group)
        steps = showing_recovery(self._fit, at)
        if any(loss.lost == LAUNCHER for loss in group) and (before := num_committed(self._steps, at)):
            # Its ranks train on for a moment, until they are ended, too: only a later attempt is a recovery.
            steps = (step for step in steps if step.epoch > self._steps[before - 1].epoch)
        step = next(iter(steps), None)
        if step is None:
            return None, None
        # Who begins it is told of the regroup before the coordinator says that it is over.
        last = bisect_right(self._regroups, step.committed_seconds) - 1
        regrouped = self._regroups[last] if last >= 0 and self._regroups[last] >= at else step.began_seconds
        return max(step.began_seconds, regrouped), step.committed_seconds

    # ---- what happened ----

    def _read(self, record: Record) -> None:
        at = record.monotonic_seconds
        match record:
            case Injected():
                self._inject(record)
            case Aborted() | Halted() | Interrupted() | JobFailed():
                if isinstance(record, JobFailed) and self._restarts_by_launcher:
                    self._end_last_attempt()
                # From then on the tool itself ends what still runs.
                self._is_ending = True
            case Undone() | RepairStarted() | Unverified() if record.incident in self.effects:
                self._tell(self.effects[record.incident], record)
            case RankFinished():
                self._finished_pids.add(record.pid)
            case ProcessExited(role="rank", rank_attempt=int(attempt)) if self._restarts_by_launcher:
                is_goodbye = record.exit == 0 or (record.exit is None and record.exited_pid in self._finished_pids)
                # When its launchers are gone, the tool ends what they left behind.
                is_left_behind = record.exit == -SIGKILL and self._launchers_are_gone
                if not is_goodbye and not is_left_behind:
                    self._failed.setdefault(attempt, record)
            case AttemptStarted():
                self._start_attempt(record)
            case StepsCounted() if record.count_kept_by == "nobody" and record.step == 1 and self._attempt > 1:
                self._stop_counting()
            case ProcessStarted(role="launcher", started_pid=int(pid)):
                self._launchers.add(pid)
                self._launchers_are_gone = False
            case RankStarted(rank=int(rank), node=int(node)):
                self._node_of[rank] = node
            case ProcessExited(exited_rank=int(rank)):
                self._exit(rank, record)
            case ProcessExited(role="launcher"):
                self._launchers.discard(record.exited_pid or 0)
                self._launchers_are_gone = not self._launchers
                if record.exit is not None and record.exit < 0:
                    self._lose(LAUNCHER, at, None, record)
            case ProcessExited(role="supervisor") if not (self._is_ending or self._is_over):
                self._supervisors.append(record)
            case ProcessExited(role="coordinator") if not takes_coordinator(record):
                self._is_over = True
            case ProcessExited() if takes_coordinator(record):
                self._lose(COORDINATOR, at, None, record)
            case Detected():
                for rank in record.lost:
                    self._lose(rank, at, record.how, self._exits.pop(rank, None))
            case Rejoined():
                self._join(record.ranks, at)
                self._rejoin(frozenset(record.ranks), at)
            case Regrouped():
                self._regroups.append(at)
                self._join(record.members or (), at)
            case CoordinatorRestarted():
                self._join([COORDINATOR], at)
                for effect in self._coordinators_lost:
                    effect.settled = at if effect.settled is None else effect.settled
                self._coordinators_lost.clear()
            case _:
                pass

    def _inject(self, record: Injected) -> None:
        effect = Effect(
            incident=record.incident,
            injected=record.monotonic_seconds,
            ranks=frozenset(record.ranks),
            is_loss=record.is_loss,
            goes_on=record.goes_on,
            is_of_coordinator=f"role={COORDINATOR}" in str(record.target),
            recovered=self._committed_after(record.monotonic_seconds, *self._recovery_from(record)),
            pids=frozenset(_pids_of(record)),
            attempt=self._attempt,
        )
        effect.progressed = self._progressed(effect, record.monotonic_seconds, *self._recovery_from(record))
        if self.effects.setdefault(effect.incident, effect) is effect:
            self._known.add(effect)
            self._killers.add(effect)
            if effect.is_of_coordinator:
                self._coordinators_lost.append(effect)

    def _tell(self, effect: Effect, record: Undone | RepairStarted | Unverified) -> None:
        match record:
            case Unverified():
                # What has lost nobody is over as what never loses anybody.
                effect.is_loss = effect.is_loss and bool(effect.missing)
            case Undone():
                effect.settled = effect.settled or self._committed_after(record.monotonic_seconds)
                if effect.goes_on:
                    effect.progressed = self._progressed(effect, record.monotonic_seconds)
            case RepairStarted():
                effect.repair_started = record.monotonic_seconds
        self._known.changed(effect)

    def _recovery_from(self, record: Injected) -> tuple[float, int]:
        return (-inf, 0) if self._starts is None else self._starts.recovery_from(record)

    def _committed_after(self, at: float, earliest: float = -inf, least_epoch: int = 0) -> float | None:
        steps = showing_recovery(self._fit, at, earliest_seconds=earliest, least_epoch=least_epoch)
        step = next(steps, None)
        return None if step is None else step.committed_seconds

    def _progressed(self, effect: Effect, at: float, earliest: float = -inf, least_epoch: int = 0) -> float | None:
        """When the first new step was committed that began after that time.

        Where nobody knows the numbers of the steps, the first one counts, new or not.
        """
        if not self._is_counted:
            return effect.recovered
        steps = showing_recovery(self._first_steps, at, earliest_seconds=earliest, least_epoch=least_epoch)
        step = next(steps, None)
        return None if step is None else step.committed_seconds

    def _stop_counting(self) -> None:
        """From now on the numbers of steps are not those of the training: what is new is not known."""
        self._is_counted = False
        for effect in self.effects.values():
            effect.progressed = effect.settled if effect.goes_on else effect.recovered
            self._known.changed(effect)

    def _exit(self, rank: int, record: ProcessExited) -> None:
        loss = self._last_of.get(rank)
        if loss is not None and loss.back is None and loss.exit_code is None:
            # Its connections were closed before whoever started it heard of its end.
            loss.exit_code = record.exit
        else:
            self._exits[rank] = record

    def _lose(self, lost: Culprit, at: float, how: str | None, ended: ProcessExited | None) -> None:
        last = num_committed(self._steps, at) - 1
        committed, step = (self._steps[last].committed_seconds, self._steps[last].step) if last >= 0 else (at, None)
        loss = Loss(lost, at, how, committed, step)
        if ended is not None and (last < 0 or ended.monotonic_seconds > committed):
            loss.since, loss.exit_code = ended.monotonic_seconds, ended.exit
        if self._restarts_by_launcher and ended is not None:
            loss.pid, loss.attempt = ended.exited_pid, ended.rank_attempt
        self._explain(loss, ended)
        if loss.incident is not None or not self._is_ending:
            self.losses.append(loss)
            self._last_of[lost] = loss
            self._away.setdefault(lost, []).append(loss)

    def _start_attempt(self, record: AttemptStarted) -> None:
        last = self._failed.get(self._attempt)
        if last is not None and last.exit == -SIGTERM and _has_grown(self._start, record):
            # To start more ranks, the launchers end those that run.
            del self._failed[self._attempt]
        self._end_attempts(record.attempt_number, record.monotonic_seconds)
        self._attempt, self._start = record.attempt_number, record

    def _end_attempts(self, before: float, back: float | None) -> None:
        """The attempts of a command before that number are over, and what they failed of is known."""
        for attempt in sorted(number for number in self._failed if number < before):
            ended = self._failed.pop(attempt)
            if ended.exited_rank is None:
                continue
            self._lose(ended.exited_rank, ended.monotonic_seconds, None, ended)
            self.losses[-1].back = back

    def _end_last_attempt(self) -> None:
        """The job fails, and nobody starts it again: of whoever was killed from outside, not of a fault, it is told."""
        killed = [number for number, ended in self._failed.items() if ended.exit == -SIGKILL]
        if killed and (ended := self._failed.pop(max(killed))).exited_rank is not None:
            self._lose(ended.exited_rank, ended.monotonic_seconds, None, ended)

    def _explain_end(self, loss: Loss, ended: ProcessExited | None) -> None:
        """Of a command's rank or launcher that ended."""
        is_killed = loss.exit_code == -SIGKILL and isinstance(loss.lost, int) and ended is not None
        before = self._killed if is_killed and _is_same_death(self._killed, loss) else None
        is_ours = ended is not None and self._killers.may_have_ended(ended)
        self._killed = loss if is_killed and not is_ours else None
        # What ended an attempt is looked at when the next one has begun: others may be asked for of an earlier time.
        oldest = min([loss.at, *(one.monotonic_seconds for one in self._failed.values())])
        for effect in self._known.candidates(loss.at, oldest):
            is_instant = not effect.is_loss and not effect.goes_on and effect.injected <= loss.at
            # Wrong numbers make a process fail, soon or late. SIGKILL comes from outside of it.
            is_instant = is_instant and loss.exit_code != -SIGKILL
            has_consequences = isinstance(loss.lost, int) and effect.has_consequences(loss.at)
            if not (is_instant or effect.is_at_work(loss.at) or has_consequences):
                continue
            is_again = before is not None and effect.has_consequences(before.at)
            if is_killed and ended is not None and not effect.is_killer_of(ended) and not is_again:
                continue
            loss.incident = effect.incident
            if before is not None and before.incident is None and is_again:
                before.incident = effect.incident

    def _explain(self, loss: Loss, ended: ProcessExited | None) -> None:
        if self._restarts_by_launcher:
            self._explain_end(loss, ended)
            return
        own = self._known.explaining(loss.lost, loss.at, loss.how)
        if own is not None:
            loss.incident = own.incident
            own.detected = loss.at if own.detected is None else own.detected
            if isinstance(loss.lost, int):
                own.missing.add(loss.lost)
                own.gone.add(loss.lost)
                own.returned = None
                self._lost_to.setdefault(loss.lost, {})[own.incident] = own
            self._known.changed(own)
        elif loss.how in _EVICTIONS:
            answered = self._known.latest_at_work(loss.at)
            if answered is not None:
                loss.incident, loss.is_answer = answered.incident, True

    def _join(self, members: Iterable[Culprit], at: float) -> None:
        back = frozenset(members)
        for loss in (loss for member in back & self._away.keys() for loss in self._away.pop(member)):
            loss.back = at if loss.back is None else loss.back
        touched: dict[int, Effect] = {}
        for rank in back & self._lost_to.keys():
            for effect in self._lost_to[rank].values():
                if rank in effect.gone:
                    touched[effect.incident] = effect
                    effect.back[rank] = at
                    effect.gone.discard(rank)
            self._forget(rank)
        for effect in touched.values():
            effect.returned = effect.returned if effect.gone else at

    def _rejoin(self, ranks: frozenset[int], at: float) -> None:
        touched: dict[int, Effect] = {}
        for rank in ranks & self._lost_to.keys():
            for effect in self._lost_to[rank].values():
                if rank in effect.missing:
                    touched[effect.incident] = effect
                    effect.missing.discard(rank)
            self._forget(rank)
        for effect in touched.values():
            if not effect.missing and effect.rejoined is None:
                effect.rejoined = at

    def _forget(self, rank: Culprit) -> None:
        """Effects that a rank is back from are of no more interest when it comes back once more."""
        effects = self._lost_to.pop(rank)
        own = {number: one for number, one in effects.items() if rank in one.gone or rank in one.missing}
        if own:
            self._lost_to[rank] = own


def _has_grown(before: AttemptStarted | None, later: AttemptStarted) -> bool:
    """Whether agents have joined: there are more ranks, and the launchers count no restart."""
    if before is None or before.world_size is None or later.world_size is None:
        return False
    is_restart = later.num_restarts is None or later.num_restarts != before.num_restarts
    return later.world_size > before.world_size and not is_restart


def _is_same_death(before: Loss | None, loss: Loss) -> bool:
    """Whether two attempts, one right after the other, were killed after the same step."""
    if before is None or before.attempt is None or loss.attempt is None:
        return False
    return before.attempt + 1 == loss.attempt and before.step == loss.step


def _pids_of(record: Injected) -> Iterable[int]:
    for process in record.processes:
        if (pid := pid_of(process)) is not None:
            yield pid
