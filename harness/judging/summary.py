"""The summary of a run as values. Its JSON is `summary.json`, whose keys are the names of the fields, in their order.

Units stand in the names. What cannot be known is None, never NaN. `harness.judging.summarize` makes one from events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any, ClassVar, TypeVar

from harness.analysis.approximation import Approximation
from harness.analysis.command.attempt_list import ListedAttempt
from harness.analysis.command.checkpoints import AttemptLoad, CheckpointHealth, Pointer
from harness.analysis.command.preemption import Preemption
from harness.analysis.command.world import Sizes
from harness.analysis.figures import Figures
from harness.analysis.hosts import HostFigures
from harness.analysis.integrity import LossFigures
from harness.analysis.overlaps import OverlappingRun
from harness.analysis.regroups import StateRestore
from harness.analysis.resume.read import ResumeFigures
from harness.analysis.throughput import Speeds, ThroughputFigures
from harness.judging.gate_reasons import gate_text
from harness.judging.units import Unit
from mecefo_runtime.job.traits import JobTraits, traits_of
from mecefo_runtime.system.json_values import LEFT_OUT, from_json
from mecefo_runtime.system.reason import Reason

T = TypeVar("T")
Seconds = Mapping[str, float | None]
"""By phase (see `MeasuredIncident.phases_seconds`), or by cause (see `accounting.BADPUT_CAUSES`)."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The answer of one gate.

    `value` and `threshold` are in base units (ratio, seconds, number, work per second), which `unit` names; `passed` is
    None, inconclusive, when there is no value. `why` is the reason that it did not pass, and `reason` its sentence.
    """

    FINITE_ONLY: ClassVar[bool] = True

    expression: str
    value: float | None = None
    passed: bool | None = None
    builtin: bool = False
    reason: str | None = None
    unit: Unit | None = None
    comparison: str | None = None
    threshold: float | None = None
    why: Reason | None = None

    def left_open(self, why: Reason) -> GateResult:
        """The same without an answer, and why."""
        return replace(self, passed=None, reason=gate_text(why), why=why)


@dataclass(frozen=True, slots=True)
class NamedCause:
    """The ranks that the job named as the cause of an incident; see `harness.analysis.diagnosis.Diagnosis`.

    `struck` and `named` are ranks, or `coordinator`.
    """

    score: str
    struck: tuple[int | str, ...] = ()
    named: tuple[int | str, ...] = ()
    how: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class IncidentSummary:
    """One incident of a run. Its productive and badput seconds add up to `wall_clock_seconds`: what it answers for.

    `evidence` is what was seen of its effect, `unverified_reason` why none was. `recovered` is None where nobody knows;
    `undecided` is a code for that, where the run could not tell (see `harness.analysis.undecided`). `why` is the reason
    with its code: why it was not injected or verified, else why its recovery is undecided.
    With `is_of_launcher` it took away the launcher of a command, or its store: only a later attempt is a recovery.
    `recovery_steps` is the recovery as a multiple of the median step before the first fault, the usual step.
    `violations` are codes (`harness.analysis.violations.CODES`) of what the job did wrong to the end of the run and
    this incident answers for: it trained on, `continued_seconds` after the fault, and has not recovered.
    `uncertainty_seconds` has the uncertainty of each figure and phase that is measured between two clocks, by name.
    `newest_usable_step` is that of the newest checkpoint that could be loaded when the ranks had ended after it.
    `read_by_incident` is the incident for which the job read what this one damaged, `reads_damage_of` the reverse.
    `preemption` are the figures of a preemption, `grace_used_ratio` the share of its grace that was used.
    `state_restored` is the one of the run's `state_restores` that it led to, `at_seconds` counted from the job's start.
    """

    incident: int
    fault: str
    target: Any = None
    step: int | None = None
    phase: str | None = None
    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    injected: bool = False
    verified: bool = False
    evidence: Any = None
    unverified_reason: str | None = None
    undone: bool = False
    recovered: bool | None = None
    is_of_launcher: bool = False
    violations: tuple[str, ...] = ()
    continued_seconds: float | None = None
    recovery_step: int | None = None
    attempt: int | None = None
    recovery_attempt: int | None = None
    recovery_seconds: float | None = None
    recovery_steps: float | None = None
    progress_seconds: float | None = None
    detection_seconds: float | None = None
    notice_seconds: float | None = None
    hang_rule_fired_seconds: float | None = None
    diagnosis: NamedCause | None = None
    diagnosis_seconds: float | None = None
    phases_seconds: Seconds = field(default_factory=dict)
    uncertainty_seconds: Seconds = field(default_factory=dict, metadata=LEFT_OUT)
    phase_order_valid: bool = True
    wall_clock_seconds: float | None = None
    productive_seconds: float | None = None
    badput_seconds: Seconds = field(default_factory=dict)
    state_restored: StateRestore | None = None
    undecided: str | None = None
    why: Reason | None = None
    in_save: str | None = field(default=None, metadata=LEFT_OUT)
    save: Mapping[str, Any] = field(default_factory=dict, metadata=LEFT_OUT)
    newest_usable_step: int | None = field(default=None, metadata=LEFT_OUT)
    read_by_incident: int | None = field(default=None, metadata=LEFT_OUT)
    reads_damage_of: tuple[int, ...] = field(default=(), metadata=LEFT_OUT)
    preemption: Preemption | None = field(default=None, metadata=LEFT_OUT)
    grace_used_ratio: float | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Emulated:
    """The device that each rank emulated; a second of it lasted `time_scale` seconds.

    `provenance` is that of its table. Throughput and the fault-free step are in the device's seconds; all other times
    of the summary are real.
    """

    device_model: str
    provenance: str
    device: str
    model: str
    time_scale: float
    throughput_tokens_per_second: Speeds = field(default_factory=Speeds)
    step_seconds: float | None = None

    @classmethod
    def of(cls, emulation: Mapping[str, Any], measured: ThroughputFigures) -> Emulated:
        """By what the log says of the job, and by what was measured of the run.

        Raises:
            KeyError, TypeError, ValueError: the log says something else.
        """
        scale = float(emulation["time_scale"])
        speeds, step_seconds = measured.throughput_tokens_per_second, measured.step_seconds
        known = (speeds.before, speeds.during, speeds.after)
        return cls(
            **{name: str(emulation[name]) for name in ("device_model", "provenance", "device", "model")},
            time_scale=scale,
            throughput_tokens_per_second=Speeds(*(None if one is None else one * scale for one in known)),
            step_seconds=None if step_seconds is None else step_seconds / scale,
        )


@dataclass(frozen=True, slots=True)
class UnplannedLossSummary:
    """What the job lost at one time without any fault of the plan; see `harness.analysis.attribution.UnplannedLoss`."""

    ranks: tuple[int, ...] = ()
    role: str | None = None
    step: int | None = None
    at_seconds: float | None = None
    how: tuple[str, ...] = ()
    exit_codes: tuple[int, ...] = ()
    detection_seconds: float | None = None
    recovery_seconds: float | None = None
    rejoined: bool = False
    mixed_with: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    attempts: tuple[int, ...] = ()
    uncertainty_seconds: Seconds = field(default_factory=dict, metadata=LEFT_OUT)


DEPRECATED_KEYS = {
    f"twin_{name}": f"baseline_{name}"
    for name in ("outcome", "planned", "steps_committed", "wall_clock_seconds", "work_per_second", "loss")
}
"""Earlier names of keys, which are still written and read, and today's."""


@dataclass(frozen=True, kw_only=True)
class RunFigures(Figures):
    """Which run it was, and what came of it."""

    name: str | None
    verdict: str = "inconclusive"
    exit_code: int = 5
    reasons: tuple[str, ...] = ()
    status: str | None
    seed: int | None
    experiment_hash: str | None
    job_outcome: str | None
    baseline_outcome: str | None
    runtime: str = "mecefo"
    command: str | None
    started_in: str | None
    strategy: str | None
    dilation_ratio: float | None
    process_group_timeout_seconds: float | None = None
    timeouts: Mapping[str, str] = field(default_factory=dict)
    hang_rule: str | None = None
    hang_rule_seconds: float | None = None
    hang_rule_false_alarms: int | None = None


@dataclass(frozen=True, kw_only=True)
class PacingFigures(Figures):
    """By which clock the ranks computed."""

    pacing: str | None
    emulated: Emulated | None
    ratings: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class PlanFigures(Figures):
    """What the experiment asked for."""

    baseline_planned: bool = False
    data_parallel: int | None
    pipeline_bubble_ratio: float | None


@dataclass(frozen=True, kw_only=True)
class StepFigures(Figures):
    """Steps that the job committed and lost, and its attempts."""

    steps_planned: int | None
    steps_committed: int | None
    steps_lost: int | None
    steps_repeated: int | None
    steps_unknown_because: str | None
    attempts: int | None
    fruitless_attempts: int | None
    fruitless_seconds: float | None
    fruitless_steps: tuple[int | None, ...] = ()
    attempt_list: tuple[ListedAttempt, ...] = ()
    num_ranks: int | None
    num_observed_ranks: int | None
    steps_from_scratch: int | None
    samples_lost: int | None


@dataclass(frozen=True, kw_only=True)
class WorldFigures(Figures):
    """The ranks of a command's job and the samples of a step of all of them, before, during and after its faults."""

    world_size: Sizes = field(default_factory=Sizes)
    global_batch_samples: Sizes = field(default_factory=Sizes)
    ranks_lost_for_good: int | None


@dataclass(frozen=True, kw_only=True)
class BaselineFigures(Figures):
    """How fast the fault-free baseline of a command was, and how much longer the job took."""

    baseline_steps_committed: int | None
    baseline_wall_clock_seconds: float | None
    baseline_work_per_second: float | None
    slowdown_ratio: float | None


@dataclass(frozen=True, kw_only=True)
class IncidentFigures(Figures):
    """The faults and other losses, and what the job made of them."""

    group_backends: tuple[str, ...] | None
    layout_changes: int | None
    incidents: tuple[IncidentSummary, ...] = ()
    incidents_not_due: int = 0
    unplanned_losses: tuple[UnplannedLossSummary, ...] = ()
    state_restores: tuple[StateRestore, ...] = ()
    diagnosis_recall_ratio: float | None
    diagnosis_precision_ratio: float | None
    false_accusations: int | None
    unrecovered_incidents: int | None


@dataclass(frozen=True, kw_only=True)
class GenerationFigures(Figures):
    """Processes of earlier attempts that were there alongside later ones, or were left running at the end."""

    generations_overlap_seconds: float | None
    overlapping_steps: int | None
    overlapping_saves: int | None
    orphaned_processes: int | None
    orphaned_ranks: tuple[int, ...] = ()
    parameters_not_finite: int | None


@dataclass(frozen=True, kw_only=True)
class TimeFigures(Figures):
    """Where the time went; see `harness.analysis.accounting`."""

    wall_clock_seconds: float | None
    productive_seconds: float | None
    badput_seconds: Seconds = field(default_factory=dict)
    goodput_ratio: float | None


@dataclass(frozen=True, kw_only=True)
class StateFigures(Figures):
    """Whether the ranks computed and saved what they were to."""

    diverged_units: int | None
    degraded_share_ratio: float | None
    projected_share_ratio: float | None
    approximation: Approximation | None
    unfit_steps: int | None
    checkpoints_failed: int | None


@dataclass(frozen=True, kw_only=True)
class CheckpointFigures(Figures):
    """The checkpoints of a command, and which of them its attempts loaded: `harness.analysis.command.checkpoints`."""

    checkpoints_saved: int | None
    checkpoints_unusable: int | None
    checkpoint_fallbacks: int | None
    newest_usable_step: int | None
    checkpoints: tuple[CheckpointHealth, ...] = ()
    attempt_loads: tuple[AttemptLoad, ...] = ()
    checkpoint_pointers: tuple[Pointer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MachineFigures(Figures):
    """Whether the machine was fast enough for its ranks."""

    compute_cpu_seconds: float | None
    dilation_overrun_ratio: float | None
    overrun_segments_ratio: float | None
    worst_overrun_seconds: float | None
    overlapping_runs: tuple[OverlappingRun, ...] = ()
    hosts: tuple[HostFigures, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Summary(
    MachineFigures,
    CheckpointFigures,
    StateFigures,
    TimeFigures,
    ResumeFigures,
    GenerationFigures,
    IncidentFigures,
    LossFigures,
    BaselineFigures,
    ThroughputFigures,
    WorldFigures,
    StepFigures,
    PlanFigures,
    PacingFigures,
    RunFigures,
):
    """All figures of a run, its gates and its verdict. `docs/reference/measuring.md` defines them.

    `summary.json` has the fields of the last base first, as dataclasses order them, and those of this class at its end.

    `reason_codes` are the reasons of the verdict, and `reasons` their sentences, in the same order; so are
    `caveat_codes` and `caveats`. A summary of an earlier version has the sentences alone.
    """

    FINITE_ONLY: ClassVar[bool] = True
    ALSO_WRITTEN: ClassVar[Mapping[str, str]] = DEPRECATED_KEYS

    caveats: tuple[str, ...] = ()
    gates: tuple[GateResult, ...] = ()
    reason_codes: tuple[Reason, ...] = ()
    caveat_codes: tuple[Reason, ...] = ()
    no_restart: Reason | None = None

    @classmethod
    def of(cls, *parts: Figures) -> Summary:
        """The summary of these parts, one of each; neither judged yet, nor with caveats."""
        return cls(**{name: value for part in parts for name, value in vars(part).items()})

    @property
    def traits(self) -> JobTraits:
        """What kind of job it was."""
        return traits_of("command" if self.command else self.runtime)

    def reasons_without(self, is_left_out: Callable[[Reason], bool]) -> tuple[tuple[Reason | None, str], ...]:
        """The reasons and their sentences, but for those; without a code in a summary of an earlier version."""
        pairs = zip_longest(self.reason_codes[: len(self.reasons)], self.reasons)
        return tuple((code, sentence) for code, sentence in pairs if code is None or not is_left_out(code))

    @classmethod
    def from_older(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """`raw` with all of today's keys: null where an earlier version did not write them, under any name."""
        renamed = {new: raw[old] for old, new in DEPRECATED_KEYS.items() if old in raw}
        return {**_nulls(cls), **renamed, **raw}


def read_summary(raw: object) -> Summary:
    """Read a `summary.json`, which another version may have written.

    Raises:
        ValueError: it is no summary.
    """
    return from_json(Summary, raw, lenient=True)


def unknown(part: type[T]) -> T:
    """A part of a summary, or a whole one, of which no figure is known."""
    return from_json(part, _nulls(part), lenient=True)


def _nulls(part: Any) -> Mapping[str, None]:
    return dict.fromkeys(one.name for one in fields(part))


UNKNOWN = unknown(Summary)
