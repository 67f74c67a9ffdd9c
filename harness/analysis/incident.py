"""The incidents of a run as they were measured: when each of its phases came, and what follows from that."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from harness.analysis.attribution import Attribution
from harness.analysis.command.attempts import Starts, is_of_launcher
from harness.analysis.command.recovery import LAUNCH_PHASES, UNOBSERVED, Recoveries
from harness.analysis.contained import charge
from harness.analysis.regroups import RUNGS, OwnStalls, Stall, StateRestore
from harness.analysis.steps import (
    CommittedStep,
    Steps,
    median_work_per_second,
    num_committed,
    showing_recovery,
    shows_recovery,
    undisturbed_before,
)
from mecefo_runtime.system.clocks import uncertainty_between
from mecefo_runtime.system.job_records import CoordinatorRestarted, Isolated, Restarting
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import (
    Held,
    IncidentsPlanned,
    Injected,
    NotDue,
    OfIncident,
    Outlasted,
    PlannedIncident,
    Released,
    RepairStarted,
    Undone,
    Unverified,
    Verified,
)

_BETWEEN: Mapping[str, tuple[str, str]] = {
    "continued_seconds": ("struck", "committed"),
    "recovery_seconds": ("struck", "committed"),
    "progress_seconds": ("struck", "progressed"),
    "detection_seconds": ("injected", "detected"),
    "notice_seconds": ("injected", "detected"),
    "verify": ("injected", "verified"),
    "detect": ("verified", "detected"),
    "isolate": ("detected", "isolated"),
    "regroup": ("isolated", "regrouped"),
    "first_step": ("regrouped", "committed"),
    "restore": ("committed", "restored"),
    "rejoin": ("injected", "rejoined"),
    "repair_wait": ("injected", "repair_started"),
    "rejoin_after_repair": ("repair_started", "rejoined"),
}
"""The two moments of each figure and phase of an incident."""
RESTORED_RATIO = 0.95
"""Throughput counts as restored at this share of its pre-fault median ..."""
RESTORED_STEPS = 5
"""... over this many consecutive steps."""


@dataclass(frozen=True, slots=True)
class MeasuredIncident:
    """One planned firing of a fault and when each of its phases was reached (CLOCK_MONOTONIC seconds; None: never).

    `detected` is the first detection that names a rank of this incident; `isolated` and `regrouped` are those of the
    regroup that led to `committed`, the first committed step whose attempt began after it had `struck`: a step that was
    in flight and committed nevertheless is no recovery, and neither is one that was left out as rejected, which taught
    the model nothing (`is_left_out`: there were such steps, and no other). Of one that took away the launcher of a
    command or its store (`is_of_launcher`) it is the first step of a later attempt: ranks that train on are orphans.
    `progressed` is when the first step
    committed after it that had not been committed before, later than `committed` in a job that had gone back.
    `restored` is when throughput was back (see `RESTORED_RATIO`). `missing` are the ranks that the job gave up for it
    and that are in none of its memberships since. `restore` says where the state came from with which it continued, of
    several regroups that which went back the furthest. `outlasted` is how long it was to be active, where it was for
    longer, until its effect was seen. `took_effect` is when the effect came, where that was later than the injection:
    of one that `is_latent`, when ranks were lost that had to read what it damaged. `read_by` is then the incident for
    which they were. `undecided` says why it is not known
    whether the job recovers. `violations` are codes of what the job does wrong up to the end of the run and this
    incident answers for (see `harness.analysis.violations`): with one of them training continued, and the job has not
    recovered. `launch_phases` are the seconds of each phase of a recovery in which the launcher of a command started
    its ranks again (see `harness.analysis.command.recovery`).

    `lifted` is when the fault ended. With a repair: when that began. Of one that lost nobody: when it was undone, or,
    over in an instant, when the ranks that the job gave up for it were back. Of the coordinator: when it was back. Of a
    command's job, which nobody repairs: when it was at work again. Of a job that started all ranks again: when it was
    where it had been.
    """

    incident: int
    fault: str
    target: Any
    step: int | None
    phase: str | None
    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    evidence: Any = None
    reason: Reason | None = None
    is_loss: bool = False
    goes_on: bool = False
    is_of_launcher: bool = False
    gives_notice: bool = False
    asks_to_leave: bool = False
    is_latent: bool = False
    is_unverified: bool = False
    undone: float | None = None
    held: float | None = None
    released: float | None = None
    injected: float | None = None
    verified: float | None = None
    detected: float | None = None
    isolated: float | None = None
    regrouped: float | None = None
    committed: float | None = None
    committed_step: int | None = None
    committed_epoch: int | None = None
    progressed: float | None = None
    restored: float | None = None
    repair_started: float | None = None
    rejoined: float | None = None
    lifted: float | None = None
    transfer_seconds: float = 0.0
    repair_steps: int | None = None
    repair_seconds: float | None = None
    missing: tuple[int, ...] = ()
    is_left_out: bool = False
    restore: StateRestore | None = None
    outlasted: str | None = None
    took_effect: float | None = None
    undecided: Reason | None = None
    violations: tuple[str, ...] = ()
    read_by: int | None = None
    in_save: str | None = None
    save: Mapping[str, Any] = field(default_factory=dict)
    launch_phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_undone(self) -> bool:
        """Whether nothing is left to be undone."""
        return self.undone is not None

    @property
    def is_in_force(self) -> bool:
        """Whether it continues, as far as the log has come: until the repair, the undo or, of an instant, the recovery.

        The end of the job ends it too; of that nothing is known here.
        """
        if self.injected is None or self.is_unverified:
            return False
        if self.is_loss:
            # What is killed leaves nothing to undo, and is gone all the same.
            return self.repair_started is None and self.lifted in (None, self.undone)
        if self.goes_on:
            return self.undone is None
        return self.committed is None or (self.undone is None and self.lifted is None)

    @property
    def struck(self) -> float | None:
        """When it was in the way of training: as it was injected, but of a notice when the ranks left or were lost.

        Where its effect came later, then: of what is stored and damaged, when ranks were lost that had to read it.
        """
        if self.is_latent or self.took_effect is not None:
            return self.took_effect
        return self.detected if self.gives_notice else self.injected

    @property
    def continued_seconds(self) -> float | None:
        """Struck -> committed, whether the job has recovered with that or not."""
        return self._seconds("continued_seconds")

    @property
    def recovery_seconds(self) -> float | None:
        """Struck -> committed; None of a job that trains on and has not recovered."""
        return None if self.violations else self.continued_seconds

    @property
    def progress_seconds(self) -> float | None:
        """Struck -> progressed; None of a job that trains on and has not recovered."""
        return None if self.violations else self._seconds("progress_seconds")

    @property
    def detection_seconds(self) -> float | None:
        """Injected -> detected: a fault can be detected by the job before the injector has verified it."""
        return None if self.gives_notice else self._seconds("detection_seconds")

    @property
    def notice_seconds(self) -> float | None:
        """Of a fault that gives notice: injected -> detected, in which the job trained on and let its ranks go."""
        return self._seconds("notice_seconds") if self.gives_notice else None

    @property
    def phases_seconds(self) -> dict[str, float | None]:
        """How long each phase took, None where it was not reached.

        `verify` injected -> verified, `detect` verified -> detected (0 when the coordinator was quicker than the
        injector's own check), `isolate` detected -> isolated, `regroup` isolated -> regrouped without the transfer of
        state, `transfer`, `first_step` regrouped -> committed, `restore` committed -> restored, `rejoin` injected ->
        rejoined. Of a repair, `repair_wait` injected -> repair started is as long as the experiment says;
        `rejoin_after_repair`, the rest of `rejoin`, is what the job took. Of a command whose launcher started its ranks
        again, those of `LAUNCH_PHASES`; with `unobserved`, the rest, they add up to `recovery_seconds`.
        """
        detect = None if self.gives_notice else self._seconds("detect")
        regroup = self._seconds("regroup")
        transfer = None if regroup is None else min(self.transfer_seconds, max(0.0, regroup))
        after_repair = self._seconds("rejoin_after_repair")
        launched: dict[str, float | None] = {}
        if self.launch_phases:
            launched = dict.fromkeys((*LAUNCH_PHASES, UNOBSERVED))
            if not self.violations:
                launched |= self.launch_phases
        return {
            "verify": self._seconds("verify"),
            "detect": None if detect is None else max(0.0, detect),
            "isolate": self._seconds("isolate"),
            "regroup": None if regroup is None or transfer is None else regroup - transfer,
            "transfer": transfer,
            **launched,
            "first_step": None if self.violations else self._seconds("first_step"),
            "restore": None if self.violations else self._seconds("restore"),
            "rejoin": self._seconds("rejoin"),
            "repair_wait": self._seconds("repair_wait"),
            "rejoin_after_repair": None if _is_before(self.rejoined, self.repair_started) else after_repair,
        }

    @property
    def uncertainty_seconds(self) -> dict[str, float]:
        """The uncertainty of each figure and phase that is measured between two clocks, by name."""
        phases = self.phases_seconds
        found: dict[str, float] = {}
        for name in _BETWEEN:
            measured, value = self._measured(name), phases[name] if name in phases else getattr(self, name)
            if measured is not None and measured.uncertainty_seconds and value is not None:
                found[name] = measured.uncertainty_seconds
        return found

    def _measured(self, name: str) -> Measured | None:
        start, end = _BETWEEN[name]
        return _difference(getattr(self, start), getattr(self, end))

    def _seconds(self, name: str) -> float | None:
        measured = self._measured(name)
        return None if measured is None else measured.seconds

    @property
    def is_phase_order_valid(self) -> bool:
        """Whether the phases came in the order that makes sense: each not before the one that causes it."""
        # Without a regroup training did not wait for the detection: of a coordinator that lost its links, say.
        change = () if self.regrouped is None else (self.detected, self.isolated, self.regrouped)
        chain = [self.injected, *change, self.committed, self.restored]
        times = [time for time in chain if time is not None]
        is_ascending = not any(_is_before(later, earlier) for earlier, later in pairwise(times))
        has_cause = self.regrouped is None or (self.detected is not None and self.isolated is not None)
        causes_of = (
            (self.held, self.injected),
            (self.injected, self.verified),
            (self.injected, self.detected),
            (self.injected, self.rejoined),
        )
        return is_ascending and has_cause and all(not _is_before(effect, cause) for cause, effect in causes_of)

    @property
    def over(self) -> float:
        """When nothing of it was left: the job had recovered, its ranks were back, and what lasts had ended."""
        ends = [self.committed, inf if self.missing else self.rejoined or 0.0]
        if self.goes_on:
            ends.append(self.undone if self.lifted is None else self.lifted)
        return max(inf if end is None else end for end in ends)

    def is_active(self, at: float) -> bool:
        """Whether its verified effect was there at that time."""
        return self.active is not None and self.active[0] <= at <= self.active[1]

    @property
    def active(self) -> tuple[float, float] | None:
        """From when to when its verified effect was there."""
        return None if self.verified is None or self.injected is None else (self.injected, self.over)

    def continued(self, is_over: bool, is_complete: bool) -> bool | None:
        """Whether a step began, was fit and committed after the fault; None when that cannot be known.

        It cannot when the fault never fired, when that is `undecided`, when the run was stopped before it could tell
        (not `is_over`), or when every planned step had already begun (`is_complete`) and none was left to show it.
        """
        if self.committed is not None:
            return True
        if self.injected is None or not is_over or self.undecided is not None:
            return None
        return False if self.is_left_out or not is_complete else None


class _Told:
    """The records of a job that tell of its incidents and of its members, by time."""

    def __init__(self, main: Sequence[Record], *, restarts_by_launcher: bool) -> None:
        self._starts = Starts(main) if restarts_by_launcher else None
        self.plans: dict[int, PlannedIncident] = {}
        self.firsts: dict[int, dict[type[Record], OfIncident]] = {}
        self._times: dict[type[Record], list[float]] = {}
        for record in main:
            if isinstance(record, IncidentsPlanned):
                self.plans.update({plan.incident: plan for plan in record.incidents})
            elif isinstance(record, OfIncident):
                self.firsts.setdefault(record.incident, {}).setdefault(type(record), record)
            else:
                self._times.setdefault(type(record), []).append(record.monotonic_seconds)

    def recovery_from(self, injection: Injected) -> tuple[float, int]:
        """See `Starts.recovery_from`."""
        return (-inf, 0) if self._starts is None else self._starts.recovery_from(injection)

    def first_of(self, kind: type[Record], since: float) -> float | None:
        """When the first record of that kind came, from `since` on."""
        times = self._times.get(kind, [])
        index = bisect_left(times, since)
        return times[index] if index < len(times) else None


def read_incidents(
    main: Sequence[Record],
    steps: Steps,
    stalls: Sequence[Stall],
    attribution: Attribution,
    *,
    restarts_by_launcher: bool,
) -> tuple[MeasuredIncident, ...]:
    """The incidents of a job; `main` holds its records by time."""
    told = _Told(main, restarts_by_launcher=restarts_by_launcher)
    recoveries = Recoveries(main) if restarts_by_launcher else None
    injections = {
        i: injected for i, firsts in told.firsts.items() if isinstance(injected := firsts.get(Injected), Injected)
    }
    detections, unplanned = attribution.detections, attribution.unplanned
    first_injected = min((injected.monotonic_seconds for injected in injections.values()), default=0.0)
    before = median_work_per_second(undisturbed_before(steps.first, first_injected, unplanned))
    causes = sorted((*detections.values(), *(loss.detected for loss in unplanned)))
    newest_began = max((step.began_seconds for step in steps.every), default=-inf)
    incidents = []
    for i in sorted(told.plans.keys() | told.firsts.keys()):
        charge()
        known, firsts = _known(i, told.plans.get(i), told.firsts.get(i, {})), told.firsts.get(i, {})
        if NotDue in firsts:
            continue
        if i in injections:
            own = OwnStalls(detections.get(i), causes, stalls)
            lost = detections.get(i), attribution.effects[i].rejoined
            known |= _phases(injections[i], firsts, *lost, told, steps, own, restarts_by_launcher)
            known["is_of_launcher"] = restarts_by_launcher and is_of_launcher(injections[i])
            # Where nothing shows a recovery, all steps that began after it were left out, or are those of orphans.
            began_later = _struck(injections[i], lost[0]) < newest_began
            known["is_left_out"] = known["committed"] is None and began_later and not known["is_of_launcher"]
            known["missing"] = tuple(sorted(attribution.effects[i].gone))
            struck = detections.get(i) if injections[i].gives_notice else injections[i].monotonic_seconds
            if recoveries is not None and struck is not None:
                reached = known["took_effect"] or struck, known["committed"], known["committed_epoch"]
                known["launch_phases"] = recoveries.phases_seconds(injections[i], *reached)
            if before is not None and struck is not None:
                known["restored"] = _restored(steps, struck, before, *told.recovery_from(injections[i]))
        incidents.append(MeasuredIncident(**known))
    return tuple(incidents)


def _known(incident: int, plan: PlannedIncident | None, firsts: Mapping[type[Record], OfIncident]) -> dict[str, Any]:
    """What is known of an incident whether it fired or not."""
    plan = plan or PlannedIncident(incident)
    injected, verified, unverified = firsts.get(Injected), firsts.get(Verified), firsts.get(Unverified)
    known: dict[str, Any] = {
        "incident": incident,
        "fault": plan.fault,
        "target": plan.target,
        "step": plan.step,
        "phase": plan.phase,
        "in_save": plan.in_save,
        "repair_steps": plan.repair_steps,
        "repair_seconds": plan.repair_seconds,
        "evidence": verified.evidence if isinstance(verified, Verified) else None,
        "reason": unverified.because if isinstance(unverified, Unverified) else None,
        "is_unverified": unverified is not None,
        "took_effect": verified.took_effect_monotonic if isinstance(verified, Verified) else None,
        "undone": _at(firsts, Undone),
        "outlasted": outlasted.planned if isinstance(outlasted := firsts.get(Outlasted), Outlasted) else None,
        "held": _at(firsts, Held),
        "released": _at(firsts, Released),
    }
    if isinstance(injected, Injected):
        said = {"fault": injected.fault, "target": injected.target, "step": injected.step, "phase": injected.phase}
        known |= {key: value for key, value in said.items() if value is not None}
        known |= {
            "in_save": injected.in_save,
            "save": injected.save,
            "ranks": injected.ranks,
            "nodes": injected.nodes,
            "is_loss": injected.is_loss,
            "goes_on": injected.goes_on,
            "gives_notice": injected.gives_notice,
            "asks_to_leave": injected.asks_to_leave,
            "is_latent": injected.is_latent,
        }
    return known


def _phases(
    injection: Injected,
    firsts: Mapping[type[Record], OfIncident],
    detected: float | None,
    rejoined: float | None,
    told: _Told,
    steps: Steps,
    stalls: OwnStalls,
    restarts_by_launcher: bool,
) -> dict[str, Any]:
    """When an incident that fired came to each of its phases."""
    injected, ranks = injection.monotonic_seconds, injection.ranks
    since = _struck(injection, detected)
    earliest, least = told.recovery_from(injection)
    following, progress = (
        next(showing_recovery(some, since, earliest_seconds=earliest, least_epoch=least), None)
        for some in (steps.every_fit, steps.first_fit)
    )
    committed = None if following is None else following.committed_seconds
    regroups = [
        stall
        for stall in (stalls.between(injected, inf if committed is None else committed) if ranks else ())
        if stall.is_loss and stall.regrouped_seconds is not None
    ]
    lifted = _at(firsts, RepairStarted)
    if lifted is None and restarts_by_launcher and injection.is_loss:
        lifted = committed
    elif lifted is None and injection.is_loss and not ranks:
        lifted = told.first_of(CoordinatorRestarted, injected)
    elif _is_restarted(told, detected, committed):
        # Nothing is gained before the job is where it was.
        lifted = None if progress is None else progress.began_seconds
    elif lifted is None and detected is not None and not injection.goes_on:
        # Lost ranks do not come back because the injector has nothing left to undo. But a rank that was given up while
        # it was held, or because of its numbers, is there, and comes back by itself.
        lifted = rejoined
    elif lifted is None and (detected is None or rejoined is not None):
        # One that was only frozen thaws.
        undone = firsts.get(Undone)
        lifted = undone.ended_seconds if isinstance(undone, Undone) else None
    return {
        "injected": injected,
        "verified": _at(firsts, Verified),
        "detected": detected,
        "isolated": None if detected is None else told.first_of(Isolated, detected),
        "regrouped": regroups[-1].regrouped_seconds if regroups else None,
        "committed": committed,
        "committed_step": None if following is None else following.step,
        "committed_epoch": None if following is None else following.epoch,
        "progressed": None if progress is None else progress.committed_seconds,
        "repair_started": _at(firsts, RepairStarted),
        "rejoined": rejoined,
        "lifted": lifted,
        "transfer_seconds": sum(stall.transfer_seconds for stall in regroups),
        "restore": max(
            (stall.restore for stall in regroups if stall.restore is not None),
            key=lambda restore: RUNGS.index(restore.rung) if restore.rung in RUNGS else 0,
            default=None,
        ),
    }


def _struck(injection: Injected, detected: float | None) -> float:
    """When it was in the way of training; never of a notice to which the job did not answer."""
    if not injection.gives_notice:
        return injection.monotonic_seconds
    return inf if detected is None else detected


def _at(firsts: Mapping[type[Record], OfIncident], kind: type[OfIncident]) -> float | None:
    record = firsts.get(kind)
    return None if record is None else record.monotonic_seconds


def _is_restarted(told: _Told, detected: float | None, committed: float | None) -> bool:
    """Whether what followed the detection of an incident was a restart of all ranks."""
    restarting = None if detected is None else told.first_of(Restarting, detected)
    return restarting is not None and (committed is None or restarting < committed)


def _restored(
    steps: Steps, injected: float, before_work_per_second: float, earliest: float, least_epoch: int
) -> float | None:
    """When the first of `RESTORED_STEPS` steps in a row was committed that were as quick as before the fault.

    None of them is committed before `earliest`, or of an epoch before `least_epoch`.
    """
    index = num_committed(steps.first, max(injected, earliest))
    # From there on all steps count and began after it, so that rows of them are the same for all incidents.
    later = max(index, bisect_right(steps.earliest_began, injected), bisect_left(steps.least_epoch, least_epoch))
    row: list[int] = []
    for number in range(index, len(steps.first)):
        step = steps.first[number]
        if step.epoch < least_epoch or not shows_recovery(
            step.began_seconds, is_left_out=step.is_left_out, injected_seconds=injected
        ):
            continue
        row.append(number)
        charge()
        if len(row) < RESTORED_STEPS:
            continue
        if row[0] >= later:
            break
        if _are_quick([steps.first[one] for one in row], before_work_per_second):
            return steps.first[row[0]].committed_seconds
        del row[0]
    quick = _quick_rows(steps, before_work_per_second)
    place = bisect_left(quick, later)
    return steps.first[quick[place]].committed_seconds if place < len(quick) else None


def _quick_rows(steps: Steps, before_work_per_second: float) -> Sequence[int]:
    """The first steps of all rows of steps that were fit, and as quick as before the fault; kept in the memo."""
    key = "restored", before_work_per_second
    found: list[int]
    row: list[int]
    found, row, num_known = steps.memo.get(key, ([], [], 0))
    for number in range(num_known, len(steps.first)):
        if not steps.first[number].is_left_out:
            row.append(number)
        if len(row) == RESTORED_STEPS:
            if _are_quick([steps.first[one] for one in row], before_work_per_second):
                found.append(row[0])
            del row[0]
    steps.memo[key] = found, row, len(steps.first)
    return found


def _are_quick(row: Sequence[CommittedStep], before_work_per_second: float) -> bool:
    seconds = sum(step.duration_seconds for step in row)
    return sum(step.work for step in row) >= RESTORED_RATIO * before_work_per_second * seconds


class Measured(NamedTuple):
    """The time between two moments, and its uncertainty: 0 where both come from one clock."""

    seconds: float
    uncertainty_seconds: float


def _difference(start: float | None, end: float | None) -> Measured | None:
    return None if start is None or end is None else Measured(end - start, uncertainty_between(start, end))


def _is_before(later: float | None, earlier: float | None) -> bool:
    """Whether it came before the other by more than the uncertainty."""
    if later is None or earlier is None:
        return False
    return later < earlier and earlier - later > uncertainty_between(later, earlier)
