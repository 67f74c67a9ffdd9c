"""What happened when: the main job's regroups and the phases of every incident, from the event log alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from harness.analysis.attempts import COMMAND_RUNTIME, Attempt, epochs_of_pids, read_attempts, read_restarts
from harness.analysis.detections import assign_detections, own_stalls
from harness.analysis.incident import MeasuredIncident
from harness.analysis.regroups import Stall, coordinator_downs, read_stalls
from harness.analysis.steps import CommittedStep, Steps, baseline, median_work_per_second, read_steps, shows_recovery
from mecefo_runtime.system.events import MAIN_JOB, TWIN_JOB, Event

RESTORED_RATIO = 0.95
"""Throughput counts as restored at this share of its pre-fault median ..."""
RESTORED_STEPS = 5
"""... over this many consecutive steps."""


@dataclass(frozen=True)
class Timeline:
    """The main job (and its fault-free twin's steps) as times and values. Times are CLOCK_MONOTONIC seconds.

    `ended_seconds` is `job_ended`, or the last event of the job when the log was cut off. `outcome` is that of
    `job_ended`; `run_ended` the reason given by the event of that name; both None when the log does not get that far.
    `first_step` is 1, or the one after the checkpoint that the job began with. `checkpoints` are the times (from, to)
    for which training waited until the slowest rank had copied its part of one. `rejected` is when an attempt at a step
    was found not fit to be committed. `attempts` and `restarts` are those of a command's job; `runtime` says what the
    job ran on. `not_due` are incidents that chance had planned and that did not fire, each with the reason.
    """

    started_seconds: float
    ended_seconds: float
    outcome: str | None
    run_ended: str | None
    job_failed: Event | None
    num_ranks: int | None
    steps_planned: int | None
    first_step: int
    samples_per_step: int | None
    members_of: Mapping[int, int]
    steps: Steps
    twin: Steps
    stalls: tuple[Stall, ...]
    coordinator_downs: tuple[tuple[float, float], ...]
    checkpoints: tuple[tuple[float, float], ...]
    incidents: tuple[MeasuredIncident, ...]
    rejected: tuple[float, ...] = ()
    runtime: str = "mecefo"
    attempts: tuple[Attempt, ...] = ()
    restarts: tuple[tuple[float, float], ...] = ()
    not_due: tuple[tuple[int, str], ...] = ()
    # How many steps an external job left out at its end, after the last one that it committed: its GradScaler ...
    steps_left_out: int = 0
    # ... or the script itself, of which only the passes are known, none of them finite.
    spoilt_passes_left_out: int = 0

    @cached_property
    def first_injected(self) -> float | None:
        """When the first fault was injected."""
        return min((i.injected for i in self.incidents if i.injected is not None), default=None)

    @cached_property
    def baseline(self) -> tuple[CommittedStep, ...]:
        """The steps that tell the pre-fault speed."""
        first = self.first_injected
        return baseline(self.steps.first, self.ended_seconds if first is None else first)

    @cached_property
    def is_complete(self) -> bool:
        """Whether the job ended of itself with its last planned step committed."""
        if self.steps_left_out or self.spoilt_passes_left_out:
            return False
        last = max((step.step for step in self.steps.first), default=0)
        # Of a damaged log it may be anything.
        planned = self.steps_planned if isinstance(self.steps_planned, int | float) else None
        return self.outcome == "completed" and last >= (planned or 1)

    @property
    def is_over(self) -> bool:
        """Whether the job went as far as it could: neither cut off, nor interrupted, nor halted."""
        return self.job_failed is not None or self.run_ended in ("completed", "failed")

    def recovered(self, incident: MeasuredIncident) -> bool | None:
        """See `MeasuredIncident.recovered`."""
        return incident.recovered(self.is_over, self.is_complete)

    def is_degraded(self, step: CommittedStep) -> bool:
        """Whether `step` ran with a rank missing, or while a fault on its ranks or links came or was in force."""
        if self.num_ranks is not None and self.members_of.get(step.epoch, self.num_ranks) < self.num_ranks:
            return True
        injected, lifted = self._in_force
        num_before = bisect_left(injected, step.committed_seconds)
        return num_before > 0 and step.began_seconds < lifted[num_before - 1]

    @cached_property
    def _in_force(self) -> tuple[list[float], list[float]]:
        """When verified faults on ranks or links were injected, and until when one of those up to each was in force."""
        faults = sorted(
            (incident.injected, self.ended_seconds if incident.lifted is None else incident.lifted)
            for incident in self.incidents
            if incident.verified is not None and incident.ranks and incident.injected is not None
        )
        return [start for start, _ in faults], list(accumulate((end for _, end in faults), max))


def build(events: Iterable[Event]) -> Timeline:
    """The timeline of a log, whole or cut off; the order of `events` does not matter."""
    ordered = sorted(events, key=lambda event: event.monotonic_seconds)
    main = [event for event in ordered if event.job == MAIN_JOB]
    job_started = next((event for event in main if event.kind == "job_started"), None)
    job_ended = next((event for event in reversed(main) if event.kind == "job_ended"), None)
    run_ended = next((event for event in reversed(main) if event.kind == "run_ended"), None)
    fields: Mapping[str, Any] = job_started.fields if job_started else {}
    in_job = [event for event in main if event.kind not in ("residue", "run_ended")]
    started = job_started.monotonic_seconds if job_started else (in_job[0].monotonic_seconds if in_job else 0.0)
    last = job_ended or (in_job[-1] if in_job else None)
    ended = max(started, last.monotonic_seconds) if last else started
    is_command = fields.get("runtime") == COMMAND_RUNTIME
    steps = read_steps(main, MAIN_JOB, epochs_of_pids(main) if is_command else None)
    attempts = read_attempts(main, steps.every) if is_command else ()
    stalls = read_stalls(main, steps.first, ended)
    return Timeline(
        started_seconds=started,
        ended_seconds=ended,
        steps_left_out=_most_left_out(main, "steps_left_out"),
        spoilt_passes_left_out=_most_left_out(main, "spoilt_passes_left_out"),
        outcome=job_ended.fields.get("outcome") if job_ended else None,
        run_ended=run_ended.fields.get("reason") if run_ended else None,
        job_failed=next((event for event in main if event.kind == "job_failed"), None),
        num_ranks=fields.get("num_ranks"),
        steps_planned=fields.get("steps"),
        first_step=steps.first[0].step if is_command and steps.first else _first_step(main),
        samples_per_step=fields.get("samples_per_step"),
        members_of={
            int(event.fields["epoch"]): len(event.fields["members"])
            for event in main
            if event.kind in ("layout", "regrouped") and "epoch" in event.fields and "members" in event.fields
        },
        steps=steps,
        twin=read_steps(ordered, TWIN_JOB),
        stalls=stalls,
        coordinator_downs=coordinator_downs(main, ended),
        checkpoints=_checkpoints(main, steps.first),
        incidents=_read_incidents(main, steps, stalls, is_command),
        rejected=tuple(event.monotonic_seconds for event in main if event.kind == "step_unfit"),
        runtime=COMMAND_RUNTIME if is_command else "mecefo",
        attempts=attempts,
        restarts=read_restarts(attempts, ended),
        not_due=tuple(
            (int(event.fields["incident"]), str(event.fields.get("reason")))
            for event in main
            if event.kind == "not_due" and "incident" in event.fields
        ),
    )


def _checkpoints(main: Iterable[Event], steps: Sequence[CommittedStep]) -> tuple[tuple[float, float], ...]:
    blocking: dict[int, float] = {}
    for event in main:
        if event.kind == "checkpoint_written" and event.step is not None:
            seconds = float(event.fields.get("blocking_seconds", 0.0))
            blocking[event.step] = max(blocking.get(event.step, 0.0), seconds)
    return tuple(
        (step.committed_seconds, step.committed_seconds + blocking[step.step])
        for step in steps
        if step.step in blocking
    )


def _first_step(main: Iterable[Event]) -> int:
    for event in main:
        if event.kind == "checkpoint_restored":
            return (event.step or 0) + 1
        if event.kind == "step_committed":
            break
    return 1


def _read_incidents(
    main: Sequence[Event], steps: Steps, stalls: Sequence[Stall], is_command: bool
) -> tuple[MeasuredIncident, ...]:
    plans: dict[int, Mapping[str, Any]] = {}
    firsts: dict[int, dict[str, Event]] = {}
    for event in main:
        if event.kind == "incidents_planned":
            plans.update({int(plan["incident"]): plan for plan in event.fields.get("incidents", ())})
        elif "incident" in event.fields:
            firsts.setdefault(int(event.fields["incident"]), {}).setdefault(event.kind, event)
    injections = {i: by_kind["injected"] for i, by_kind in firsts.items() if "injected" in by_kind}
    following = {i: _following(steps, event.monotonic_seconds) for i, event in injections.items()}
    recoveries = {i: step.committed_seconds for i, step in following.items() if step is not None}
    detections = assign_detections([event for event in main if event.kind == "detected"], injections, recoveries)
    first_injected = min((event.monotonic_seconds for event in injections.values()), default=0.0)
    before = median_work_per_second(baseline(steps.first, first_injected))
    return tuple(
        _read_incident(
            i,
            plans.get(i, {}),
            firsts.get(i, {}),
            detections.get(i),
            following.get(i),
            main,
            steps,
            own_stalls(i, detections, stalls),
            before,
            is_command,
        )
        for i in sorted(plans.keys() | firsts.keys())
        if "not_due" not in firsts.get(i, {})
    )


def _read_incident(
    incident: int,
    plan: Mapping[str, Any],
    firsts: Mapping[str, Event],
    detected: float | None,
    following: CommittedStep | None,
    main: Sequence[Event],
    steps: Steps,
    stalls: Sequence[Stall],
    before: float | None,
    is_command: bool,
) -> MeasuredIncident:
    at = {kind: event.monotonic_seconds for kind, event in firsts.items()}
    injection = firsts.get("injected")
    said: Mapping[str, Any] = injection.fields if injection else {}
    ranks = tuple(said.get("ranks") or ())
    known: dict[str, Any] = {
        "incident": incident,
        "fault": said.get("fault", plan.get("fault", "unknown")),
        "target": said.get("target", plan.get("target")),
        "step": injection.step if injection and injection.step is not None else plan.get("step"),
        "phase": said.get("phase", plan.get("phase")),
        "ranks": ranks,
        "nodes": tuple(said.get("nodes") or ()),
        "evidence": firsts["verified"].fields.get("evidence") if "verified" in firsts else None,
        "reason": firsts["unverified"].fields.get("reason") if "unverified" in firsts else None,
        "is_undone": "undone" in firsts,
        "held": at.get("held"),
        "released": at.get("released"),
    }
    if injection is None:
        return MeasuredIncident(**known)
    injected = injection.monotonic_seconds
    committed = None if following is None else following.committed_seconds
    progress = [step for step in steps.first if _shows_recovery(step, injected)]
    regroups = [
        stall
        for stall in stalls
        if ranks and stall.is_loss and stall.regrouped_seconds is not None and injected <= stall.ended_seconds
        if committed is None or stall.ended_seconds <= committed
    ]
    rejoined = _rejoined(main, injected, ranks)
    lifted = at.get("repair_started")
    if lifted is None and said.get("is_loss") and not ranks:
        lifted = _first_of(main, "coordinator_restarted", injected)
    elif lifted is None and is_command and said.get("is_loss"):
        lifted = committed
    elif _is_restarted(main, detected, committed):
        # Nothing is gained before the job is where it was.
        lifted = progress[0].began_seconds if progress else None
    elif lifted is None and detected is not None and not said.get("goes_on"):
        # Lost ranks do not come back because the injector has nothing left to undo. But a rank that was given up while
        # it was held, or because of its numbers, is there, and comes back by itself.
        lifted = rejoined
    elif lifted is None and (detected is None or rejoined is not None):
        # One that was only frozen thaws.
        lifted = at.get("undone")
    return MeasuredIncident(
        **known,
        injected=injected,
        verified=at.get("verified"),
        detected=detected,
        isolated=None if detected is None else _first_of(main, "isolated", detected),
        regrouped=regroups[-1].regrouped_seconds if regroups else None,
        committed=committed,
        committed_step=None if following is None else following.step,
        committed_epoch=None if following is None else following.epoch,
        progressed=progress[0].committed_seconds if progress else None,
        restored=None if before is None else _restored(progress, before),
        repair_started=at.get("repair_started"),
        rejoined=rejoined,
        lifted=lifted,
        transfer_seconds=sum(stall.transfer_seconds for stall in regroups),
        is_left_out=following is None and any(step.began_seconds > injected for step in steps.every),
    )


def _most_left_out(main: Sequence[Event], field: str) -> int:
    return max((int(event.fields.get(field, 0)) for event in main if event.kind == "rank_finished"), default=0)


def _following(steps: Steps, injected: float) -> CommittedStep | None:
    """The step whose commit showed that the job was past a fault."""
    return next((step for step in steps.every if _shows_recovery(step, injected)), None)


def _shows_recovery(step: CommittedStep, injected: float) -> bool:
    return shows_recovery(step.began_seconds, is_left_out=step.is_left_out, injected_seconds=injected)


def _is_restarted(main: Sequence[Event], detected: float | None, committed: float | None) -> bool:
    """Whether what followed the detection of an incident was a restart of all ranks."""
    restarting = None if detected is None else _first_of(main, "restarting", detected)
    return restarting is not None and (committed is None or restarting < committed)


def _restored(steps: Sequence[CommittedStep], before_work_per_second: float) -> float | None:
    for first in range(len(steps) - RESTORED_STEPS + 1):
        window = steps[first : first + RESTORED_STEPS]
        seconds = sum(step.duration_seconds for step in window)
        if sum(step.work for step in window) >= RESTORED_RATIO * before_work_per_second * seconds:
            return window[0].committed_seconds
    return None


def _rejoined(main: Sequence[Event], injected: float, ranks: Sequence[int]) -> float | None:
    """When the last of those of `ranks` was back that the job had given up: of a cut link it is one end only."""
    missing: set[int] = set()
    affected_again: set[int] = set()
    for event in main:
        if event.monotonic_seconds < injected:
            continue
        if event.kind == "injected" and event.monotonic_seconds > injected and event.fields.get("is_loss"):
            affected_again |= set(event.fields.get("ranks") or ()) - missing
        elif event.kind == "detected":
            # Whom a later fault took first, only that one has to bring back.
            missing |= (set(ranks) & set(event.fields.get("lost", ()))) - affected_again
        elif event.kind == "rejoined" and missing:
            missing -= set(event.fields.get("ranks", ()))
            if not missing:
                return event.monotonic_seconds
    return None


def _first_of(main: Sequence[Event], kind: str, since: float) -> float | None:
    return next((e.monotonic_seconds for e in main if e.kind == kind and e.monotonic_seconds >= since), None)
