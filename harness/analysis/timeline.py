"""The timeline of a run: the main job's regroups and the phases of every incident, from the event log alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import inf
from statistics import median
from typing import TypeVar

from harness.analysis import violations
from harness.analysis.attribution import COORDINATOR, Attribution, Loss, UnplannedLoss
from harness.analysis.command.attempt_list import JobFacts, ListedAttempt, list_attempts
from harness.analysis.command.attempts import Attempt, read_attempts, read_restarts
from harness.analysis.command.checkpoints import Checkpoints, Damaged, read_checkpoints
from harness.analysis.command.ended_ranks import EndedRank, is_grouped, read_ended_ranks
from harness.analysis.command.finite_values import NotFinite, find_not_finite
from harness.analysis.command.fruitless import Fruitless, read_fruitless
from harness.analysis.command.generations import Overlap, find_overlaps
from harness.analysis.command.job_length import Baseline, JobLength, measure_length
from harness.analysis.command.no_restart import read_no_restart
from harness.analysis.command.observation import Observation, read_observation
from harness.analysis.command.preemption import Preemption, read_preemptions
from harness.analysis.command.replica_state import ReplicaComparison, compare_replicas
from harness.analysis.command.world import read_batches, steps_may_differ, weighed
from harness.analysis.contained import Shared, analysis_failed
from harness.analysis.history import kept_steps
from harness.analysis.incident import MeasuredIncident, read_incidents
from harness.analysis.job_traits import read_traits
from harness.analysis.regroups import Stall, coordinator_downs, joined_times, read_stalls
from harness.analysis.settling import settle
from harness.analysis.steps import CommittedStep, Steps, median_step_seconds, undisturbed_before, usual_step_seconds
from mecefo_runtime.job.traits import OF_RUNTIME, JobTraits
from mecefo_runtime.system.command_records import LossNotFinite, NoStepSeen, StateChecksums
from mecefo_runtime.system.job_records import (
    AttemptStarted,
    CheckpointRestored,
    CheckpointWritten,
    JobEnded,
    JobFailed,
    JobStarted,
    LayoutTold,
    ProcessExited,
    RankFinished,
    Regrouped,
    StepCommitted,
    StepUnfit,
)
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import NotDue, RunEnded

T = TypeVar("T")

STEADY_STEPS = 3
"""So many steps in a row show that an external job has warmed up ..."""
STEADY_RATIO = 2.0
"""... of which none takes longer than this many times the median before the first fault."""
_LONGEST_WARM_UP_STEPS = 50
RANKS_DIFFER, NOT_COUNTED = "ranks_differ", "not_counted"
# In them a step is under way: data may be asked for when none is left, and a checkpoint is of a step that is over.
_COMPUTING = ("forward", "backward", "optimizer", "commit")


@dataclass(frozen=True)
class Timeline:
    """The main job (and its fault-free baseline's steps) as times and values. Times are CLOCK_MONOTONIC seconds.

    `ended_seconds` is `job_ended`, or the last event of the job when the log was cut off. `outcome` is that of
    `job_ended`; `run_ended` the reason given by the event of that name; both None when the log does not get that far.
    `first_step` is 1, or the one after the checkpoint that the job began with. `checkpoints` are the times (from, to)
    for which training waited until the slowest rank had copied its part of one; of `num_checkpoints` that were begun
    `unsaved_checkpoints` are those that were not saved as a whole: step -> (when, why). `rejected` is when an attempt
    at a step was found not fit to be committed. `completions` are when a layout was told under which a step begun
    before is completed, and the share of the work on it that was lost. `attempts`, `restarts` and `observation` are
    those of a command's job; `traits` says what kind of job it is. `not_due` are incidents that chance had planned and
    that did not fire, each with the reason.
    `losses` are those that the job told of, `unplanned` the ones that no fault explains (see `attribution`).
    `baseline_losses` are those of the baseline, in which no fault explains any, and `baseline_failed` is why it failed.
    """

    started_seconds: float
    ended_seconds: float
    outcome: str | None
    run_ended: str | None
    job_failed: JobFailed | None
    num_ranks: int | None
    num_paid_ranks: int | None
    steps_planned: int | None
    first_step: int
    samples_per_step: int | None
    members_of: Mapping[int, int]
    steps: Steps
    baseline: Steps
    stalls: tuple[Stall, ...]
    coordinator_downs: tuple[tuple[float, float], ...]
    checkpoints: tuple[tuple[float, float], ...]
    incidents: tuple[MeasuredIncident, ...]
    num_checkpoints: int = 0
    unsaved_checkpoints: Mapping[int, tuple[float, str]] = field(default_factory=dict)
    rejected: tuple[float, ...] = ()
    completions: tuple[tuple[float, float], ...] = ()
    traits: JobTraits = OF_RUNTIME
    attempts: tuple[Attempt, ...] = ()
    restarts: tuple[tuple[float, float], ...] = ()
    # By incident.
    preemptions: Mapping[int, Preemption] = field(default_factory=dict)
    observation: Observation | None = None
    not_due: tuple[NotDue, ...] = ()
    losses: tuple[Loss, ...] = ()
    unplanned: tuple[UnplannedLoss, ...] = ()
    baseline_losses: tuple[UnplannedLoss, ...] = ()
    baseline_failed: Reason | None = None
    # How many steps an external job left out at its end, after the last one that it committed: its GradScaler ...
    steps_left_out: int = 0
    # ... or the script itself, of which only the passes are known, none of them finite.
    spoilt_passes_left_out: int = 0
    # From `job_started` to `job_ended`.
    is_running: bool = False
    # The newest step of which a checkpoint was seen being saved, and saved as a whole.
    newest_saved_step: int | None = None
    # What the ranks of an external job told of their state, and (rank, step) of losses that were not finite: those of
    # ranks that tell no steps.
    state_checksums: tuple[StateChecksums, ...] = ()
    not_finite: tuple[tuple[int, int], ...] = ()
    # A command's fault-free baseline, if that has completed; the ranks that failed although the command ended well; and
    # whether the job consists of replica groups, each of which is started again without the others.
    whole_baseline: Baseline | None = None
    ended_ranks: tuple[EndedRank, ...] = ()
    is_grouped: bool = False
    # What it was made of, for what is computed only when it is asked for.
    told: Told | None = field(default=None, repr=False, compare=False)

    @property
    def fault_free(self) -> Sequence[CommittedStep]:
        """The steps of the fault-free baseline; none of one that was disturbed."""
        return () if self.is_baseline_disturbed else self.baseline.first

    @property
    def is_baseline_disturbed(self) -> bool:
        """Whether the baseline lost somebody, or failed: it is not fault-free then."""
        return bool(self.baseline_losses) or self.baseline_failed is not None

    @cached_property
    def first_injected(self) -> float | None:
        """When the first fault was injected."""
        return min((i.injected for i in self.incidents if i.injected is not None), default=None)

    @cached_property
    def before(self) -> tuple[CommittedStep, ...]:
        """The steps that tell the pre-fault speed."""
        first = self.first_injected
        until = self.ended_seconds if first is None else first
        return undisturbed_before(self.steps.first, until, self.unplanned)

    @cached_property
    def saved_checkpoints(self) -> Checkpoints | None:
        """The checkpoints of a command, and which of them its attempts loaded; None of another job."""
        if self.told is None or not self.traits.is_user_script:
            return None
        damaged = [
            Damaged(one.incident, str(one.evidence["struck"]), one.injected, inf if one.undone is None else one.undone)
            for one in self.incidents
            if one.is_latent
            and one.injected is not None
            and isinstance(one.evidence, Mapping)
            and "struck" in one.evidence
        ]
        return read_checkpoints(self.told.records, self.told.saved, self.attempts, damaged)

    @cached_property
    def warm_ups(self) -> tuple[tuple[float, float, int], ...]:
        """(from, to, attempt) of the steps of an external job's starts that came before its first steady one.

        Steady are three steps in a row of which none takes longer than twice the median before the first fault: what
        comes before is compilation, and caches that fill.
        """
        usual = median_step_seconds(self.before)
        if not self.traits.restarts_by_launcher or usual is None or len(self.before) < STEADY_STEPS:
            return ()
        firsts: dict[int, list[CommittedStep]] = {}
        for step in self.steps.every:
            own = firsts.setdefault(step.epoch, [])
            if len(own) < _LONGEST_WARM_UP_STEPS:
                own.append(step)
        found: list[tuple[float, float, int]] = []
        for attempt, steps in firsts.items():
            for index in range(len(steps) - STEADY_STEPS + 1):
                row = steps[index : index + STEADY_STEPS]
                if all(step.committed_seconds - step.began_seconds <= STEADY_RATIO * usual for step in row):
                    found += [(steps[0].began_seconds, row[0].began_seconds, attempt)] if index else []
                    break
        return tuple(found)

    def last_injected(self, seconds: float) -> MeasuredIncident | None:
        """The incident that was injected last by then."""
        times, incidents = self._by_injection
        index = bisect_right(times, seconds)
        return incidents[index - 1] if index else None

    @cached_property
    def _by_injection(self) -> tuple[list[float], list[MeasuredIncident]]:
        injected = sorted((one.injected, one.incident, one) for one in self.incidents if one.injected is not None)
        return [at for at, _, _ in injected], [one for _, _, one in injected]

    @cached_property
    def _exits(self) -> list[ProcessExited]:
        """The ends of an external job's ranks, by time."""
        if self.told is None or not self.traits.restarts_by_launcher:
            return []
        return [one for one in self.told.records if isinstance(one, ProcessExited) and one.role == "rank"]

    def noticed(self, incident: MeasuredIncident, before: float) -> float | None:
        """When a rank of an external job ended that the fault itself had not ended, the first after it; None: none."""
        since = incident.injected or 0.0
        for index in range(bisect_left(self._exits, since, key=lambda one: one.monotonic_seconds), len(self._exits)):
            one = self._exits[index]
            if one.monotonic_seconds >= before:
                break
            if one.exited_rank is not None and one.exited_rank not in incident.ranks:
                return one.monotonic_seconds
        return None

    @property
    def usual_step_seconds(self) -> float | None:
        """What a step takes as the job goes now."""
        return usual_step_seconds(self.steps.first)

    @cached_property
    def is_complete(self) -> bool:
        """Whether the job ended of itself with its last planned step committed."""
        if self.steps_left_out or self.spoilt_passes_left_out or self.steps_given_up is not None:
            return False
        if not self.traits.has_planned_steps:
            # It ends when it is through, unless something says that steps were still to come.
            return self.outcome == "completed" and self.last_step > 0 and self.length.missed is None
        return self.outcome == "completed" and self.last_step >= (self.steps_planned or 1)

    @cached_property
    def length(self) -> JobLength:
        """How far a command's job came, and should have come."""
        struck = (one for one in self.incidents if one.injected is not None and one.phase in _COMPUTING)
        return measure_length(
            self.attempts,
            self.steps.every,
            self.steps_planned,
            self.whole_baseline,
            [one.step for one in struck if one.step is not None],
            are_counted=self.steps_are_counted,
        )

    @cached_property
    def steps_given_up(self) -> tuple[int, int] | None:
        """The steps (from, to) of a command's job that were lost, and that its last attempt, which took none, left so.

        They came after the newest checkpoint that was seen. An attempt that finds all of them saved has nothing to do.
        """
        saved, attempts = self.newest_saved_step, self.attempts
        if saved is None or len(attempts) < 2 or attempts[-1].last_step is not None or self.outcome != "completed":
            return None
        return (saved + 1, self.last_step) if saved < self.last_step else None

    @cached_property
    def replicas(self) -> ReplicaComparison | None:
        """The comparison of an external job's replicas; None without a fault, or with one rank.

        Of a corrupted rank nothing else tells, where its loss is not read or not moved.
        """
        struck = [incident for incident in self.incidents if incident.injected is not None]
        is_told = self.traits.is_user_script and max((one.world_size or 1 for one in self.attempts), default=1) > 1
        if not struck or not is_told or self.first_injected is None:
            return None
        ranks = sorted({rank for incident in struck for rank in incident.ranks})
        try:
            return compare_replicas(self.state_checksums, self.first_injected, ranks)
        except Exception as error:
            # Whoever asks for it has other things to say, too.
            why = analysis_failed("comparison of the replicas", error)
            return ReplicaComparison(unknown=why, failure=why)

    def once(self, what: str, compute: Callable[[], T]) -> T:
        """What `compute` makes of this timeline, for all who ask for `what`; see `Shared.once`."""
        return self._shared.once(what, compute)

    @cached_property
    def _shared(self) -> Shared:
        return Shared()

    @cached_property
    def overlaps(self) -> tuple[Overlap, ...]:
        """Where processes of an earlier attempt of a command were still there when a later one trained."""
        if self.told is None or len(self.attempts) < 2:
            return ()
        return find_overlaps(self.told.records, self.told.committed, self.told.saved, self.ended_seconds)

    @cached_property
    def listed_attempts(self) -> tuple[ListedAttempt, ...]:
        """The attempts of a command, each with how it ended."""
        if self.told is None:
            return ()
        last = max((step.step for step in self.steps.first), default=0)
        is_saved = self.newest_saved_step is not None and self.newest_saved_step >= last
        job = JobFacts(
            began_seconds=self.started_seconds,
            ended_seconds=self.ended_seconds,
            outcome=self.outcome,
            is_running=self.is_running,
            is_through=is_saved and self.outcome == "completed",
        )
        return list_attempts(self.told.records, self.attempts, self.steps, self.incidents, self.batches, job)

    @cached_property
    def batches(self) -> Mapping[int, int]:
        """How many samples a step of all ranks of a command has, by attempt; of those of which it is known."""
        return {} if self.told is None else read_batches(self.told.records, self.attempts)

    @property
    def fruitless(self) -> Fruitless | None:
        """The attempts of a command that brought it no further."""
        return read_fruitless(self.listed_attempts) if self.traits.restarts_by_launcher else None

    @cached_property
    def steps_may_differ(self) -> bool:
        """Whether the speed is counted in steps, and those of some attempts may be of more samples than others."""
        return steps_may_differ(self.steps, self.attempts, self.batches)

    @cached_property
    def parameters_not_finite(self) -> tuple[NotFinite, ...]:
        """Ranks of a command with more parameters that are not finite than before the first fault, up to the end."""
        if self.first_injected is None:
            return ()
        newest = self.attempts[-1].started_seconds if len(self.attempts) > 1 else 0.0
        return find_not_finite(self.state_checksums, self.first_injected, newest)

    @cached_property
    def judged(self) -> tuple[MeasuredIncident, ...]:
        """The incidents, each with the violations that it answers for; of a run in progress they may still end."""
        found = self._violations_by_incident
        return tuple(
            replace(one, violations=found[one.incident]) if one.incident in found else one for one in self.incidents
        )

    @cached_property
    def _violations_by_incident(self) -> Mapping[int, tuple[str, ...]]:
        if self.told is None or self.first_injected is None:
            return {}
        lasting = () if self.replicas is None else self.replicas.lasting
        finished = (one for one in self.told.records if isinstance(one, RankFinished))
        others = (one for one in self.told.records if isinstance(one, LossNotFinite))
        found = [
            violations.lasting_loss(self.steps),
            violations.lasting_loss_of_others(others, self.state_checksums),
            violations.lasting_differences(lasting, self.state_checksums),
            violations.of_parameters(self.parameters_not_finite),
            violations.of_divergence(finished),
            *violations.of_generations(self.overlaps),
        ]
        every = dict(violations.by_incident([one for one in found if one is not None], self.incidents))
        loads = () if self.saved_checkpoints is None else self.saved_checkpoints.loads
        damaged = (one.damaged_by for one in loads if one.damaged_by is not None and one.step is not None)
        for number, code in violations.of_loads(damaged, self.incidents):
            every[number] = tuple(dict.fromkeys((*every.get(number, ()), code)))
        return every

    @property
    def steps_are_counted(self) -> bool:
        """Whether the numbers of steps are those of the training: not where it went on and nobody keeps its count."""
        return self.steps_unknown_because is None

    @cached_property
    def steps_unknown_because(self) -> str | None:
        """Why the numbers of steps are not those of the training: RANKS_DIFFER or NOT_COUNTED; None: they are."""
        if any(one.ranks_differ for one in self.attempts[1:]):
            return RANKS_DIFFER
        return NOT_COUNTED if any(one.lost_count for one in self.attempts[1:]) else None

    @cached_property
    def kept(self) -> tuple[CommittedStep, ...]:
        """Of each step the pass that the final state contains; empty where their numbers are not known."""
        return kept_steps(self.steps) if self.steps_are_counted else ()

    @cached_property
    def last_step(self) -> int:
        """The highest step that was committed, 0 before the first."""
        return max(self.steps.of_blocks("last step", lambda steps: max(step.step for step in steps)), default=0)

    @property
    def is_over(self) -> bool:
        """Whether the job went as far as it could: neither cut off, nor interrupted, nor halted."""
        return self.job_failed is not None or self.run_ended in ("completed", "failed")

    @cached_property
    def no_step_seen(self) -> NoStepSeen | None:
        """That a command ended well, and no training step was seen in it."""
        return None if self.steps.first or self.told is None else next(_of(NoStepSeen, self.told.records), None)

    @cached_property
    def no_restart(self) -> Reason | None:
        """Why nothing started a command's ranks again, as far as that is known."""
        started = None if self.told is None else next(_of(JobStarted, self.told.records), None)
        return read_no_restart(started, self.attempts, self.job_failed)

    def continued(self, incident: MeasuredIncident) -> bool | None:
        """Whether training continued after it; see `MeasuredIncident.continued`."""
        if self.no_step_seen is not None:
            # The command may have trained, and recovered, in a way that is not observed.
            return None
        return incident.continued(self.is_over, self.is_complete)

    def recovered(self, incident: MeasuredIncident) -> bool | None:
        """Whether the job recovered from it: it trains on, and as it must up to the end of the run."""
        continued = self.continued(incident)
        return continued and incident.incident not in self._violations_by_incident

    def is_degraded(self, step: CommittedStep) -> bool:
        """Whether `step` ran with a rank missing, or while a fault on its ranks or links came or was active."""
        if self.num_ranks is not None and self.members_of.get(step.epoch, self.num_ranks) < self.num_ranks:
            return True
        return self.is_under_fault(step)

    def is_under_fault(self, step: CommittedStep) -> bool:
        """Whether `step` ran while a fault on its ranks or links came or was active."""
        injected, lifted = self._in_force
        num_before = bisect_left(injected, step.committed_seconds)
        return num_before > 0 and step.began_seconds < lifted[num_before - 1]

    def lacks_unplanned(self, step: CommittedStep) -> bool:
        """Whether `step` ran without a rank whose loss no fault explains, and under no fault."""
        return _is_in(self._lacking, step.began_seconds) and not self.is_under_fault(step)

    def lacks_coordinator(self, at: float) -> bool:
        """Whether a coordinator that was lost without a fault was away at that time."""
        return _is_in(self._coordinator_lacking, at)

    def why_degraded(self, epochs: Iterable[int], since: float, until: float) -> Hashable:
        """What decides which steps of `epochs` between these times are degraded; empty where none can be."""
        injected, lifted = self._in_force
        first, end = max(0, bisect_left(injected, since) - 1), bisect_left(injected, until)
        faults = tuple((injected[i], min(lifted[i], until)) for i in range(first, end) if lifted[i] > since)
        num_ranks = self.num_ranks or 0
        short = sorted(epoch for epoch in epochs if self.members_of.get(epoch, num_ranks) < num_ranks)
        # They do not overlap, so that their ends are in order, too.
        first_lacking = bisect_right(self._lacking, since, key=lambda times: times[1])
        lacking = self._lacking[first_lacking : bisect_left(self._lacking, (until, -inf))]
        return (faults, *short, *lacking) if faults or short else ()

    @cached_property
    def usual_gap_seconds(self) -> float:
        """What usually passes between the commit of a step and the beginning of the next one."""
        return median([step.began_seconds - step.previous_seconds for step in self.before] or [0.0])

    @cached_property
    def regrouped(self) -> list[float]:
        """When stalls ended."""
        return sorted(stall.ended_seconds for stall in self.stalls)

    @cached_property
    def _lacking(self) -> list[tuple[float, float]]:
        """The times (from, to) without a rank whose loss no fault explains, in order, those that overlap joined."""
        return joined_times((loss.since, _until(loss)) for loss in self.unplanned if loss.ranks)

    @cached_property
    def _coordinator_lacking(self) -> list[tuple[float, float]]:
        """The same of the coordinator."""
        return joined_times((loss.since, _until(loss)) for loss in self.unplanned if COORDINATOR in loss.lost)

    @cached_property
    def _in_force(self) -> tuple[list[float], list[float]]:
        """When verified faults on ranks or links were injected, and until when one of those up to each was active."""
        faults = sorted(
            (incident.injected, self.ended_seconds if incident.lifted is None else incident.lifted)
            for incident in self.incidents
            if incident.verified is not None and incident.ranks and incident.injected is not None
        )
        return [start for start, _ in faults], list(accumulate((end for _, end in faults), max))


@dataclass(frozen=True, slots=True)
class Told:
    """What the main job's events told: `records` by time, without those of steps and checkpoints, which are apart.

    `baseline_records` are those of its baseline. `checkpoints` are the times (from, to) for which training waited, of
    `num_checkpoints` the `unsaved_checkpoints` those that were not saved, with when and why.
    `began_seconds` and `ended_seconds` are when the first and the last event of the job happened, `newest_seconds` the
    last of all. `committed` and `saved` are what each process reported, repeated steps included.
    """

    records: Sequence[Record]
    steps: Steps
    baseline_records: Sequence[Record]
    baseline: Steps
    first_step_told_seconds: float | None
    checkpoints: tuple[tuple[float, float], ...]
    num_checkpoints: int
    newest_saved_step: int | None
    unsaved_checkpoints: Mapping[int, tuple[float, str]]
    began_seconds: float | None
    ended_seconds: float | None
    newest_seconds: float
    committed: Sequence[StepCommitted] = ()
    saved: Sequence[CheckpointWritten] = ()


def _until(loss: UnplannedLoss) -> float:
    return inf if loss.rejoined is None else loss.rejoined


def _is_in(times: Sequence[tuple[float, float]], at: float) -> bool:
    """Whether that is in one of the times (from, up to but without)."""
    place = bisect_right(times, (at, inf)) - 1
    return place >= 0 and at < times[place][1]


def read(told: Told) -> Timeline:
    """The timeline of a log, whole, cut off or still being written."""
    main = told.records
    job_started = next(_of(JobStarted, main), None)
    job_ended = next(_of(JobEnded, reversed(main)), None)
    run_ended = next(_of(RunEnded, reversed(main)), None)
    started = job_started.monotonic_seconds if job_started else told.began_seconds or 0.0
    ended = max(started, job_ended.monotonic_seconds if job_ended else told.ended_seconds or started)
    traits = read_traits(job_started)
    has_attempts = traits.restarts_by_launcher
    attempts = read_attempts(main, told.steps) if has_attempts else ()
    # Steps of one attempt are alike; a log is read again and again while it grows.
    steps = weighed(told.steps, read_batches(main, attempts)) if len(attempts) > 1 else told.steps
    is_running = job_started is not None and job_ended is None
    stalls = read_stalls(main, steps.first, ended, told.newest_seconds)
    attribution = Attribution(main, steps, restarts_by_launcher=has_attempts)
    finished = list(_of(RankFinished, main))
    baseline_losses, baseline_failed = _of_the_baseline(told)
    timeline = Timeline(
        started_seconds=started,
        ended_seconds=ended,
        steps_left_out=max((one.steps_left_out for one in finished), default=0),
        spoilt_passes_left_out=max((one.spoilt_passes_left_out for one in finished), default=0),
        outcome=job_ended.outcome if job_ended else None,
        run_ended=run_ended.reason if run_ended else None,
        job_failed=next(_of(JobFailed, main), None),
        num_ranks=None if job_started is None else _num_places(job_started),
        num_paid_ranks=None if job_started is None else job_started.num_ranks,
        steps_planned=job_started.steps if job_started else None,
        first_step=steps.first[0].step if steps.first and not traits.has_planned_steps else _first_step(told),
        samples_per_step=job_started.samples_per_step if job_started else None,
        members_of=_members_of(main),
        steps=steps,
        baseline=_weighed_baseline(told, steps),
        stalls=stalls,
        coordinator_downs=coordinator_downs(main, ended),
        checkpoints=told.checkpoints,
        num_checkpoints=told.num_checkpoints,
        unsaved_checkpoints=told.unsaved_checkpoints,
        incidents=read_incidents(main, steps, stalls, attribution, restarts_by_launcher=has_attempts),
        rejected=tuple(one.monotonic_seconds for one in _of(StepUnfit, main)),
        completions=_completions(main),
        traits=traits,
        attempts=attempts,
        restarts=read_restarts(attempts, ended),
        preemptions=read_preemptions(main, told.saved, steps, attempts) if has_attempts else {},
        observation=read_observation(main, attempts) if traits.is_user_script else None,
        not_due=tuple(_of(NotDue, main)),
        losses=tuple(attribution.losses),
        unplanned=attribution.unplanned,
        baseline_losses=baseline_losses,
        baseline_failed=baseline_failed,
        is_running=is_running,
        newest_saved_step=told.newest_saved_step,
        state_checksums=tuple(_of(StateChecksums, main)),
        not_finite=tuple((one.rank or 0, one.step or 0) for one in _of(LossNotFinite, main)),
        whole_baseline=None
        if traits.has_planned_steps or baseline_losses or baseline_failed
        else _whole_baseline(told),
        is_grouped=is_grouped(main),
        told=told,
    )
    timeline = _settled(timeline, told)
    if not has_attempts or timeline.outcome != "completed":
        return timeline
    return replace(timeline, ended_ranks=read_ended_ranks(main, steps.every, attribution.effects, timeline.length))


def _members_of(records: Sequence[Record]) -> dict[int, int]:
    """How many members each epoch had."""
    return {
        one.epoch: len(one.members)
        for one in records
        if isinstance(one, LayoutTold | Regrouped) and one.epoch is not None and one.members is not None
    }


def _completions(records: Sequence[Record]) -> tuple[tuple[float, float], ...]:
    """When a step that a loss had interrupted was completed, and which share of its work was lost."""
    layouts = _of(LayoutTold, records)
    return tuple((one.monotonic_seconds, one.lost_work_ratio) for one in layouts if one.lost_work_ratio is not None)


def _weighed_baseline(told: Told, steps: Steps) -> Steps:
    """The steps of the baseline, with the samples of each as its work where the job's have theirs."""
    if steps.unit == told.steps.unit:
        return told.baseline
    batches = read_batches(told.baseline_records, read_attempts(told.baseline_records, told.baseline))
    return weighed(told.baseline, batches, always=True)


def _settled(timeline: Timeline, told: Told) -> Timeline:
    """With what stays undecided of its incidents."""

    def is_whole() -> bool:
        baseline = max((step.step for step in timeline.baseline.first), default=0)
        last = max(timeline.steps_planned or 0, baseline)
        return 0 < last <= timeline.last_step

    incidents = timeline.incidents
    if timeline.steps_may_differ:
        # Its speed is back only if its steps are as large as before.
        incidents = tuple(replace(one, restored=None) for one in incidents)
    incidents = settle(
        incidents,
        told.records,
        timeline.steps,
        told.saved,
        restarts_by_launcher=timeline.traits.restarts_by_launcher,
        is_whole=is_whole,
    )
    return replace(timeline, incidents=incidents)


def _whole_baseline(told: Told) -> Baseline | None:
    """What a fault-free baseline says of how long the job is; None of one that did not come to its end."""
    ended = next(_of(JobEnded, reversed(told.baseline_records)), None)
    if ended is None or ended.outcome != "completed" or not told.baseline.first:
        return None
    numbers = [step.step for step in told.baseline.first]
    sizes = [one.world_size for one in _of(AttemptStarted, told.baseline_records)]
    return Baseline(min(numbers), max(numbers), sizes[-1] if sizes else None)


def _of_the_baseline(told: Told) -> tuple[tuple[UnplannedLoss, ...], Reason | None]:
    """What the baseline lost, and why it failed (None: it did not).

    One that found no idle time is begun again: what the tool ended then is no loss. Of one that was stopped those
    losses count after which it trained.
    """
    records = told.baseline_records
    started, ended = next(_of(JobStarted, records), None), next(_of(JobEnded, reversed(records)), None)
    begun = [one.monotonic_seconds for one in _of(LayoutTold, records) if one.reason == "start"]
    since = max(begun, default=0.0)
    is_over = ended is not None and ended.outcome != "stopped"
    failed = next((one for one in _of(JobFailed, records) if one.monotonic_seconds >= since), None)
    traits = read_traits(started)
    losses = Attribution(records, told.baseline, restarts_by_launcher=traits.restarts_by_launcher).unplanned
    return (
        tuple(loss for loss in losses if loss.detected >= since and (is_over or loss.recovered is not None)),
        None if failed is None else failed.because,
    )


R = TypeVar("R", bound=Record)


def _num_places(started: JobStarted) -> int | None:
    """How many ranks train when nothing has failed."""
    if started.num_ranks is None or not started.spares:
        return started.num_ranks
    return started.num_ranks * int(started.nodes) // (int(started.nodes) + started.spares)


def _of(kind: type[R], records: Iterable[Record]) -> Iterator[R]:
    return (record for record in records if isinstance(record, kind))


def _first_step(told: Told) -> int:
    restored = next(_of(CheckpointRestored, told.records), None)
    if restored is None:
        return 1
    first = told.first_step_told_seconds
    return (restored.step or 0) + 1 if first is None or restored.monotonic_seconds <= first else 1
