"""The metrics for gates, comparisons and the exporter: one record each."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from harness.analysis.accounting import BADPUT_CAUSES
from harness.analysis.timeline import NOT_COUNTED
from harness.analysis.words import name_seconds
from harness.judging.gate_reasons import MISSING, Missing
from harness.judging.summary import DEPRECATED_KEYS, IncidentSummary, Summary
from harness.judging.units import Unit

_SUFFIXES = ("", "_ratio", "_seconds", "_tokens_per_second")


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a summary.

    `text` says in a line what it is (docs/reference/measuring.md says how it is computed). `path` leads to it in
    `summary.json`; empty: it has its own name there. Of a list it is the length. With `is_per_incident` it
    starts at each entry of `incidents`.
    `is_membership` marks phases that only faults on ranks have (the loss of the coordinator regroups nobody), and
    `of_preemptions` what only a preemption has.
    `only_grows` marks what never becomes smaller while the job continues, `is_of_before` what is known for good once
    the first fault has affected, `is_beside_baseline` what is taken over the steps that job and baseline both
    committed, `needs_baseline` what has no value without one, `needs_every_rank` what is not known of a command's job
    of which a rank was not observed (a count is then at least its value).

    For comparisons: `better` is None where a change is neither better nor worse. `is_count`: it has no noise of its
    own, any difference is one. `noise_of_speed` says how the noise of the speed within a run carries over: as points,
    as a share of the figure, or None where nothing within a single run tells how much the figure varies.

    With `is_of_restarts` it is of the comparison of the restarts, which says itself why there is none.
    `why_missing` is a code for why a run may have no value of it. `needs_count` marks what has none either
    where the numbers of steps are not known.

    `exported` is the Prometheus sample of the same value (docs/reference/metrics.md), where there is one.
    """

    name: str
    unit: Unit
    text: str
    path: tuple[str, ...] = ()
    _: KW_ONLY
    is_per_incident: bool = False
    is_membership: bool = False
    of_preemptions: bool = False
    only_grows: bool = False
    is_of_before: bool = False
    is_beside_baseline: bool = False
    needs_baseline: bool = False
    needs_every_rank: bool = False
    better: Literal["lower", "higher"] | None = None
    is_count: bool = False
    noise_of_speed: Literal["points", "share"] | None = None
    exported: str | None = None
    why_missing: Missing | None = None
    needs_count: bool = False
    is_of_restarts: bool = False

    def why_no_value(self, summary: Summary) -> str | None:
        """Why `summary` has no value of it, a code of `harness.judging.gate_reasons.MISSING`; None: not known."""
        if self.is_of_restarts:
            return _why_not_compared(self.name, summary)
        if self.needs_count and (because := summary.steps_unknown_because) is not None:
            return because if because in MISSING else NOT_COUNTED
        return self.why_missing

    def values(self, summary: Summary) -> list[float | None]:
        """Its values in `summary`: one for a figure of the run, one for each verified incident that has this phase."""
        if not self.is_per_incident:
            return [self._of(summary)]
        return [self._of(incident) for incident in summary.incidents if self._is_of(incident)]

    def uncertainties(self, summary: Summary) -> list[float]:
        """The uncertainty of each of its `values`: above 0 where it is measured between the clocks of two hosts."""
        if not self.is_per_incident:
            return [0.0]
        name = (self.path or (self.name,))[-1]
        return [
            incident.uncertainty_seconds.get(name) or 0.0 for incident in summary.incidents if self._is_of(incident)
        ]

    def largest(self, summary: Summary) -> float | None:
        """Its value in `summary`, the largest of its incidents'; None when there is none or one is missing."""
        values = self.values(summary)
        known = [value for value in values if value is not None]
        return max(known) if known and len(known) == len(values) else None

    def to_text(self, value: float | None) -> str:
        """`value` with its unit, `-` when unknown."""
        if value is None:
            return "-"
        if self.unit == "ratio":
            return f"{value:.2%}"
        if self.unit == "seconds":
            return f"-{name_seconds(-value)}" if value < 0 else name_seconds(value)
        return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"

    def _is_of(self, incident: IncidentSummary) -> bool:
        """Whether an incident has such a figure."""
        is_preempted = incident.preemption is not None or not self.of_preemptions
        return incident.verified and is_preempted and bool(incident.ranks or not self.is_membership)

    def _of(self, figures: Summary | IncidentSummary) -> float | None:
        value: Any = figures
        for key in self.path or (self.name,):
            if value is None:
                return None
            value = value.get(key) if isinstance(value, Mapping) else getattr(value, key)
        if isinstance(value, tuple):
            return float(len(value))
        return None if value is None or isinstance(value, bool) else float(value)


def _phase(name: str, text: str, *path: str, is_membership: bool = True, **how: Any) -> Metric:
    how = {"better": "lower"} | how
    return Metric(name, "seconds", text, path, is_per_incident=True, is_membership=is_membership, **how)


def _preemption(name: str, unit: Unit, text: str, *path: str, **more: Any) -> Metric:
    """A figure that only preemptions have."""
    place = ("preemption", *(path or (name,)))
    how: dict[str, Any] = {"better": "lower", "is_count": unit == "number", "why_missing": "not_preempted", **more}
    return Metric(name, unit, text, place, is_per_incident=True, of_preemptions=True, **how)


def _launch_phase(phase: str, text: str) -> Metric:
    """Of a command whose launcher started its ranks again; see `harness.analysis.command.recovery`."""
    path = "phases_seconds", phase
    return _phase(f"recovery_{phase}_seconds", text, *path, is_membership=False, why_missing="phase_not_observed")


_LAUNCH_TEXTS: Mapping[str, str] = {
    "reaction": "fault to the first reaction of a surviving rank or the launcher",
    "teardown": "that reaction to the end of the last old process",
    "failed_attempts": "attempts between that came to no step",
    "launch": "end of the last old process to the start of the first new one",
    "start": "start of the first new process to that of the last",
    "imports": "start of the last new process to the last call of init_process_group",
    "process_group": "that call to the last return of it",
    "model": "process group to the first read of a saved state, or the first forward pass",
    "load": "first read of a saved state to the end of the last",
    "resumed_step": "the load, or else the first forward pass, to the next committed step",
    "unobserved": "recovery without the phases that were observed",
}

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "throughput_drop_ratio",
            "ratio",
            "1 - throughput during the fault / before it",
            better="lower",
            noise_of_speed="points",
            exported="chaos_throughput_drop_ratio",
        ),
        Metric(
            "throughput_drop_while_training_ratio",
            "ratio",
            "the same over the steps alone that the job took after the outage",
            better="lower",
            noise_of_speed="points",
        ),
        Metric(
            "outage_seconds",
            "seconds",
            "how long no step was committed under faults",
            better="lower",
        ),
        Metric(
            "throughput_drop_whole_run_ratio",
            "ratio",
            "the same, with the mean of the whole run",
            better="lower",
            noise_of_speed="points",
        ),
        Metric(
            "paid_capacity_ratio",
            "ratio",
            "speed of the whole run / speed before, had spare nodes trained, too",
            better="higher",
            noise_of_speed="points",
        ),
        Metric("throughput_noise_ratio", "ratio", "how much two stretches without a fault differ"),
        Metric(
            "throughput_before_tokens_per_second",
            "token_rate",
            "median before the first fault",
            ("throughput_tokens_per_second", "before"),
            is_of_before=True,
            better="higher",
            noise_of_speed="share",
        ),
        Metric(
            "throughput_during_tokens_per_second",
            "token_rate",
            "mean from fault to repair",
            ("throughput_tokens_per_second", "during"),
            better="higher",
            noise_of_speed="share",
        ),
        Metric(
            "throughput_after_tokens_per_second",
            "token_rate",
            "median after the last lost rank rejoined",
            ("throughput_tokens_per_second", "after"),
            better="higher",
            noise_of_speed="share",
        ),
        Metric(
            "loss_deviation_ratio",
            "ratio",
            "final loss against the fault-free baseline's",
            needs_count=True,
            why_missing="no_baseline",
            is_beside_baseline=True,
            needs_baseline=True,
            better="lower",
        ),
        Metric(
            "loss_curve_max_deviation_ratio",
            "ratio",
            "largest such difference of any step",
            needs_count=True,
            why_missing="no_baseline",
            is_beside_baseline=True,
            needs_baseline=True,
            better="lower",
        ),
        Metric(
            "final_loss", "number", "mean of the last 10 steps, nats per token", is_beside_baseline=True, better="lower"
        ),
        Metric(
            "slowdown_ratio",
            "ratio",
            "how much longer a command took than its fault-free baseline",
            why_missing="no_baseline",
            needs_baseline=True,
            better="lower",
        ),
        Metric(
            "baseline_loss",
            "number",
            "the same of the fault-free baseline",
            needs_count=True,
            why_missing="no_baseline",
            is_beside_baseline=True,
            needs_baseline=True,
        ),
        Metric(
            "steps_committed",
            "number",
            "committed steps",
            needs_count=True,
            only_grows=True,
            better="higher",
            is_count=True,
            exported="training_steps_total",
        ),
        Metric(
            "steps_lost",
            "number",
            "planned steps never committed, and recomputed steps",
            needs_count=True,
            only_grows=True,
            better="lower",
            is_count=True,
            exported="chaos_steps_lost_total",
        ),
        Metric(
            "steps_repeated",
            "number",
            "committed steps that were recomputed",
            needs_count=True,
            only_grows=True,
            better="lower",
            is_count=True,
            exported="training_steps_repeated_total",
        ),
        Metric(
            "samples_lost", "number", "samples missed or used twice", only_grows=True, better="lower", is_count=True
        ),
        Metric(
            "resume_differs",
            "number",
            "what differs between a training and itself after its restarts: batches, rates, states, ...",
            needs_every_rank=True,
            is_of_restarts=True,
            better="lower",
            is_count=True,
        ),
        Metric(
            "first_differing_step",
            "number",
            "the first step that is another one than before the restart",
            needs_every_rank=True,
            is_of_restarts=True,
            better="higher",
            is_count=True,
        ),
        Metric(
            "samples_repeated",
            "number",
            "samples that a restart made a command use twice in an epoch",
            needs_every_rank=True,
            is_of_restarts=True,
            better="lower",
            is_count=True,
        ),
        Metric(
            "samples_missed",
            "number",
            "samples that a restart made a command leave out of an epoch",
            needs_every_rank=True,
            is_of_restarts=True,
            better="lower",
            is_count=True,
        ),
        Metric(
            "diverged_units",
            "number",
            "layers with different state in different ranks at the end",
            needs_every_rank=True,
            better="lower",
            is_count=True,
        ),
        Metric(
            "unrecovered_incidents",
            "number",
            "faults after which no step was committed, or that left the training wrong to its end",
            better="lower",
            is_count=True,
        ),
        Metric(
            "generations_overlap_seconds",
            "seconds",
            "how long processes of an earlier attempt were there after a later one's first step began",
            better="lower",
        ),
        Metric(
            "overlapping_steps",
            "number",
            "steps that earlier attempts took alongside later ones",
            better="lower",
            is_count=True,
        ),
        Metric(
            "overlapping_saves",
            "number",
            "checkpoints that earlier attempts saved alongside later ones",
            better="lower",
            is_count=True,
        ),
        Metric(
            "orphaned_processes",
            "number",
            "processes that the command left running at its end, and chaos ended",
            better="lower",
            is_count=True,
        ),
        Metric(
            "parameters_not_finite",
            "number",
            "values of parameters, NaN or infinite, beyond those before the first fault, at the last look",
            better="lower",
            is_count=True,
        ),
        Metric(
            "unplanned_losses",
            "number",
            "losses of ranks, or of the coordinator, that no fault explains",
            needs_every_rank=True,
            better="lower",
            is_count=True,
            exported="training_unplanned_losses",
        ),
        _phase(
            "hang_rule_fired_seconds",
            "fault to when the user's own rule for a hang (job.hang_rule) would have fired",
            is_membership=False,
            why_missing="hang_rule_silent",
        ),
        Metric(
            "hang_rule_false_alarms",
            "number",
            "how often that rule would have fired before the first fault",
            why_missing="no_hang_rule",
            only_grows=True,
            better="lower",
            is_count=True,
        ),
        Metric(
            "fruitless_attempts",
            "number",
            "attempts of a command that committed no new step, but for those that a fault ended",
            why_missing="only_commands",
            needs_count=True,
            only_grows=True,
            better="lower",
            is_count=True,
        ),
        Metric(
            "fruitless_seconds",
            "seconds",
            "time in those attempts",
            why_missing="only_commands",
            needs_count=True,
            only_grows=True,
            better="lower",
        ),
        Metric(
            "ranks_lost_for_good",
            "number",
            "how many ranks fewer than before a command had at its end",
            why_missing="only_commands",
            better="lower",
            is_count=True,
        ),
        Metric(
            "world_size_after",
            "number",
            "ranks of a command's last attempt",
            ("world_size", "after"),
            why_missing="only_commands",
            better="higher",
            is_count=True,
        ),
        Metric(
            "global_batch_after_samples",
            "number",
            "samples of a step of all ranks in a command's last attempt",
            ("global_batch_samples", "after"),
            why_missing="batch_unseen",
            is_count=True,
        ),
        Metric("layout_changes", "number", "regroups", only_grows=True, is_count=True),
        Metric("degraded_share_ratio", "ratio", "share of samples x layers computed approximately"),
        Metric("projected_share_ratio", "ratio", "share of samples x layers with low-rank weight gradients alone"),
        Metric(
            "approximated_layers",
            "number",
            "layers that one step approximated at most, over all replicas",
            ("approximation", "approximated_layers"),
            why_missing="never_approximates",
            only_grows=True,
            is_count=True,
        ),
        Metric(
            "unfit_steps",
            "number",
            "rejected steps: recomputed or skipped because of their values",
            only_grows=True,
            better="lower",
            is_count=True,
        ),
        Metric(
            "checkpoints_failed",
            "number",
            "checkpoints of which a part was not saved",
            why_missing="no_checkpoint_seen",
            only_grows=True,
            better="lower",
            is_count=True,
            exported="training_checkpoints_failed_total",
        ),
        Metric(
            "checkpoints_saved",
            "number",
            "steps of a command whose checkpoint was seen being saved",
            why_missing="no_checkpoint_seen",
            only_grows=True,
            better="higher",
            is_count=True,
        ),
        Metric(
            "checkpoints_unusable",
            "number",
            "checkpoints of a command that a restart could have read and that are damaged or not finite",
            why_missing="no_checkpoint_read",
            better="lower",
            is_count=True,
        ),
        Metric(
            "checkpoint_fallbacks",
            "number",
            "attempts of a command that loaded an older checkpoint than the newest saved",
            why_missing="no_load_seen",
            better="lower",
            is_count=True,
        ),
        Metric(
            "diagnosis_recall_ratio",
            "ratio",
            "share of the affected ranks and links that the job diagnosed",
            needs_every_rank=True,
            better="higher",
        ),
        Metric(
            "diagnosis_precision_ratio",
            "ratio",
            "share of the diagnosed ranks and links that were affected",
            needs_every_rank=True,
            better="higher",
        ),
        Metric(
            "false_accusations",
            "number",
            "false positives: ranks and links named by the job but not affected",
            needs_every_rank=True,
            better="lower",
            is_count=True,
        ),
        Metric(
            "goodput_ratio",
            "ratio",
            "productive time / wall clock",
            better="higher",
            noise_of_speed="points",
            exported="training_goodput_ratio",
        ),
        Metric("wall_clock_seconds", "seconds", "from the job's start to its end", only_grows=True, better="lower"),
        Metric(
            "productive_seconds",
            "seconds",
            "time of the job without badput",
            exported="training_productive_seconds_total",
        ),
        Metric(
            "step_seconds",
            "seconds",
            "median duration of a step before the first fault",
            is_of_before=True,
            better="lower",
            noise_of_speed="share",
        ),
        *(
            Metric(
                f"badput_{cause}_seconds",
                "seconds",
                f"time lost to: {cause.replace('_', ' ')}",
                ("badput_seconds", cause),
                better="lower",
            )
            for cause in BADPUT_CAUSES
        ),
        _phase(
            "recovery_seconds",
            "fault to the first step begun and committed after it, of a job that recovered",
            is_membership=False,
            why_missing="not_recovered",
        ),
        Metric(
            "recovery_steps",
            "number",
            "the same in usual steps: as a multiple of the median step before the first fault",
            is_per_incident=True,
            better="lower",
            why_missing="not_recovered",
        ),
        _phase(
            "progress_seconds",
            "fault to the first new step committed after it, of a job that recovered",
            is_membership=False,
            why_missing="not_recovered",
        ),
        _phase("detection_seconds", "fault to its detection by the job"),
        _phase("diagnosis_seconds", "fault to its first correct diagnosis by the job", needs_every_rank=True),
        _phase(
            "verify_seconds",
            "fault to the verification of its effect",
            "phases_seconds",
            "verify",
            is_membership=False,
            better=None,
        ),
        _phase(
            "restore_seconds", "recovery to 95% of the throughput", "phases_seconds", "restore", is_membership=False
        ),
        _phase("detect_seconds", "verification to detection", "phases_seconds", "detect"),
        _phase(
            "isolate_seconds", "detection until all survivors aborted the in-flight step", "phases_seconds", "isolate"
        ),
        _phase("regroup_seconds", "rebuilding process groups, without state transfer", "phases_seconds", "regroup"),
        _phase("transfer_seconds", "transfer of parameters and optimizer state", "phases_seconds", "transfer"),
        _phase(
            "first_step_seconds", "rebuilt process groups to the next committed step", "phases_seconds", "first_step"
        ),
        *(_launch_phase(phase, text) for phase, text in _LAUNCH_TEXTS.items()),
        _phase("rejoin_seconds", "fault to the return of the lost ranks", "phases_seconds", "rejoin"),
        _phase("repair_wait_seconds", "fault to the start of the repair", "phases_seconds", "repair_wait", better=None),
        _phase(
            "rejoin_after_repair_seconds",
            "start of the repair to the return of the lost ranks",
            "phases_seconds",
            "rejoin_after_repair",
        ),
        _preemption("notice_to_checkpoint_seconds", "seconds", "notice to the first checkpoint saved after it"),
        _preemption("grace_used_seconds", "seconds", "notice to the end of the command's last process, or SIGKILL"),
        Metric(
            "grace_used_ratio",
            "ratio",
            "the share of the grace that this is",
            is_per_incident=True,
            of_preemptions=True,
            better="lower",
            why_missing="not_preempted",
        ),
        _preemption("steps_lost_by_preemption", "number", "steps to be done again after the requeue", "steps_lost"),
        _preemption(
            "checkpoints_after_notice", "number", "checkpoints saved between the notice and the end", better="higher"
        ),
        _preemption(
            "ranks_left_in_order", "number", "ranks that ended by themselves without an exception", better="higher"
        ),
        _preemption("ranks_killed", "number", "ranks that SIGKILL ended at the end of the grace"),
        _preemption("ranks_stood_still", "number", "those of them that took no step before it"),
        _preemption("ranks_not_reached", "number", "ranks that the notice did not reach"),
    )
}


def _why_not_compared(name: str, summary: Summary) -> str:
    if name.startswith("samples_"):
        return "no_restart" if summary.samples_unknown is None else summary.samples_unknown.code
    if not summary.resumes:
        return "no_restart"
    if summary.resume_differs is not None:
        return "no_difference"
    why = [reason.code for one in summary.resumes for reason in (one.unknown, *one.unobserved) if reason is not None]
    return why[0] if why else "nothing_compared"


def find(name: str) -> Metric | None:
    """The metric of that name, with or without the unit at its end; None when there is none."""
    name = name.strip().lower().replace("-", "_")
    name = DEPRECATED_KEYS.get(name, name)
    return next((METRICS[name + suffix] for suffix in _SUFFIXES if name + suffix in METRICS), None)


def nearest(name: str, names: list[str]) -> str | None:
    """The known name that is closest to `name`."""
    known = [*names, *(name.removesuffix(suffix) for name in names for suffix in _SUFFIXES if suffix)]
    matches = difflib.get_close_matches(name.strip().lower().replace("-", "_"), known, n=1)
    return matches[0] if matches else None
