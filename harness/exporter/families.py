"""A run's state as Prometheus metrics: names, types, labels, meanings (table: `docs/reference/metrics.md`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from harness.analysis.accounting import BADPUT_CAUSES, PRODUCTIVE
from harness.analysis.contained import as_far_as_it_goes
from harness.analysis.ranks import FIDELITY
from harness.exporter.figures import Figures
from harness.judging.verdict import EXIT_CODES
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import RunStarted

RECOVERY = "recovery"
_MAX_LABEL_CHARACTERS = 200

# By the values of the labels; None: not known, which is no sample.
Values = Mapping[Any, float | None]


class RunCollector(Collector):
    """The figures of a run; `clock` is CLOCK_MONOTONIC as far as the run has come."""

    def __init__(self, figures: Figures, clock: Callable[[], float]) -> None:
        self._figures = figures
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """All families that have a value."""
        with self._figures.state.lock:
            parts = (_run, _steps, _ranks, self._goodput, self._time, _chaos, _drop, _verdict)
            failed: list[Reason] = []
            found = [
                family
                for part in parts
                for family in as_far_as_it_goes(
                    "metrics", partial(part, self._figures), failed, size=self._figures.state.size
                )
            ]
            text = "Groups of figures of which some could not be computed."
            return [*found, *_gauge("chaos_figures_failed", text, len(failed))]

    def _goodput(self, figures: Figures) -> Iterable[Metric]:
        if not figures.has_job:
            return
        ratio = figures.goodput_ratio(self._clock())
        yield from _gauge("training_goodput_ratio", "Productive time over wall clock since the job started.", ratio)

    def _time(self, figures: Figures) -> Iterable[Metric]:
        if not figures.has_job:
            return
        told = figures.told_seconds()
        text = "Wall clock of committed steps, at the speed before the first fault."
        yield from _counter("training_productive_seconds", text, told[PRODUCTIVE])
        yield from _counters(
            "training_badput_seconds",
            "Wall clock that was not productive, by cause.",
            ("cause",),
            {(cause,): told[cause] for cause in BADPUT_CAUSES},
        )


def _run(figures: Figures) -> Iterable[Metric]:
    if figures.info:
        info = InfoMetricFamily("chaos_run", "The run, always 1.")
        info.add_metric((), {key: _label(value) for key, value in figures.info.items()})
        yield info
    text, started = "Unix time at which the run started.", figures.state.first_of(RunStarted)
    yield from _gauge("chaos_run_start_timestamp_seconds", text, None if started is None else started.time_seconds)
    text = "1 from the start of the job to its end, else 0."
    yield from _gauge("training_running", text, float(figures.timeline.is_running))
    text = "Events that could not be parsed: damaged, or of another version."
    yield from _counter("chaos_events_unread", text, figures.state.num_unread)


def _steps(figures: Figures) -> Iterable[Metric]:
    times, last = figures.timeline, figures.state.newest_step()
    yield from _gauge("training_step", "The newest committed step.", None if last is None else last.step)
    yield from _gauge("training_steps_planned", "Planned number of steps.", times.steps_planned or None)
    yield from _counter("training_steps", "Committed steps, each counted once.", len(times.steps.first))
    text = "Steps committed again after the job had restored an earlier state."
    yield from _counter("training_steps_repeated", text, len(times.steps.redone))
    if figures.has_layout:
        text = "Rejected attempts at a step, by outcome."
        yield from _counters(
            "training_unfit_steps", text, ("verdict",), {(key,): n for key, n in figures.rejected.items()}
        )
    text = "Checkpoints of which at least a part was written."
    yield from _counter("training_checkpoints", text, figures.state.num_checkpoints)
    if figures.timeline.num_checkpoints:
        text = "Checkpoints of which at least a part was not saved."
        yield from _counter("training_checkpoints_failed", text, len(figures.timeline.unsaved_checkpoints))
    yield from _counter("training_tokens", "Tokens of the committed steps, each step counted once.", figures.tokens)
    yield from _counter("training_samples", "Samples of the committed steps, each step counted once.", figures.samples)
    if last is not None:
        yield from _gauge("training_loss", "Loss of the newest step, in nats per token.", last.loss)
        yield from _gauge("training_gradient_norm", "Norm of the newest step's gradient.", last.grad_norm)
        yield from _gauge("training_learning_rate", "Learning rate of the newest step.", last.learning_rate)
    histogram = HistogramMetricFamily("training_step_seconds", "Time from the previous commit to this one.")
    histogram.add_metric((), *figures.step_seconds)
    yield histogram
    yield from _gauge("training_tokens_per_second", "Throughput over the last few steps.", figures.tokens_per_second)
    at = None if last is None else last.committed_seconds + figures.state.unix_offset_seconds
    yield from _gauge("training_last_commit_timestamp_seconds", "Unix time of the newest commit.", at)


def _ranks(figures: Figures) -> Iterable[Metric]:
    ranks, last = figures.state.ranks, figures.state.newest_step()
    epochs = [epoch for epoch in (ranks.epoch, None if last is None else last.epoch) if epoch is not None]
    yield from _gauge("training_epoch", "Epoch of the newest membership.", max(epochs, default=None))
    if figures.has_layout:
        text = "Memberships formed, by reason."
        yield from _counters("training_regroups", text, ("reason",), {(key,): n for key, n in figures.regroups.items()})
        text = "State that the slowest rank of each regroup transferred."
        yield from _counter("training_transfer_bytes", text, figures.transfer_bytes)
    if figures.has_job:
        text = "Losses that no fault explains, as known so far."
        yield from _gauge("training_unplanned_losses", text, len(figures.timeline.unplanned))
    if ranks.states:
        by_state = {(state,): float(n) for state, n in figures.rank_counts.items()}
        yield from _gauges("training_ranks", "Ranks by state.", ("state",), by_state)
    is_up = ranks.is_coordinator_up if figures.timeline.is_running else None
    text = "1 while the job has a coordinator."
    yield from _gauge("training_coordinator_up", text, None if is_up is None else float(is_up))
    if layers := figures.layers:
        held = {(str(rank),): float(number) for rank, (number, _) in layers.items()}
        degraded = {(str(rank),): float(number) for rank, (_, number) in layers.items()}
        yield from _gauges("training_layers_held", "Layers that the rank holds.", ("rank",), held)
        text = "Approximated layers, over all replicas."
        yield from _gauge("training_degraded_layers", text, sum(degraded.values()))
        yield from _gauges("training_rank_degraded_layers", "Layers that the rank approximates.", ("rank",), degraded)
    if ranks.devices:
        kinds = ("ecc_single_bit", "ecc_double_bit", "xid")
        counts: dict[tuple[str, ...], float] = {}
        for rank, errors in ranks.devices.items():
            numbers = (errors.ecc_sbe, errors.ecc_dbe, sum(errors.xids.values()))
            counts |= {(str(rank), kind, FIDELITY): number for kind, number in zip(kinds, numbers, strict=True)}
        text = "Errors of the rank's device; of fidelity telemetry: reported by a fault, not measured."
        yield from _counters("training_device_errors", text, ("rank", "error", "fidelity"), counts)
        xids = {(str(rank), FIDELITY): float(errors.last_xid) for rank, errors in ranks.devices.items()}
        yield from _gauges("training_device_last_xid", "The newest XID.", ("rank", "fidelity"), xids)


def _chaos(figures: Figures) -> Iterable[Metric]:
    fault = ("fault",)
    planned = {(kind,): float(n) for kind, n in figures.planned.items()}
    yield from _gauges("chaos_faults_planned", "Planned incidents of the run.", fault, planned)
    text = "Incidents by outcome."
    yield from _counters("chaos_faults", text, ("fault", "outcome"), dict(figures.outcomes))
    active = {(kind,): float(n) for kind, n in figures.active.items()}
    yield from _gauges("chaos_fault_active", "Incidents that are active.", fault, active)
    phases: dict[tuple[str, ...], float | None] = {}
    for kind, incident in figures.newest.items():
        phases[kind, RECOVERY] = incident.recovery_seconds
        phases |= {(kind, phase): seconds for phase, seconds in incident.phases_seconds.items()}
    text = "Recovery of the newest incident of the kind, by phase."
    yield from _gauges("chaos_recovery_seconds", text, ("fault", "phase"), phases)
    text = "Incidents after which a new step was committed."
    yield from _counters("chaos_recoveries", text, fault, {(kind,): n for kind, n in figures.recoveries.items()})
    yield from _counter("chaos_steps_lost", "Steps recomputed, or never committed.", figures.steps_lost)
    text = "Incidents with a pending undo."
    yield from _gauge("chaos_undo_pending", text, figures.undo_pending)
    failures = {(kind,): n for kind, n in figures.undo_failures.items()}
    yield from _counters("chaos_undo_failed", "Failed undos.", fault, failures)


def _drop(figures: Figures) -> Iterable[Metric]:
    text = "1 - throughput during the faults / before the first one."
    yield from _gauge("chaos_throughput_drop_ratio", text, figures.throughput_drop_ratio)


def _verdict(figures: Figures) -> Iterable[Metric]:
    summary = figures.summary
    if summary is None:
        return
    gates: dict[tuple[str, ...], float | None] = {}
    for gate in summary.gates:
        value = float("nan") if gate.passed is None else float(gate.passed)
        # Asked for and built in, it has the same answer twice.
        gates[(_label(gate.expression),)] = value
    text = "1: the gate passed, 0: it failed, NaN: undecided."
    yield from _gauges("chaos_gate_passed", text, ("gate",), gates)
    verdicts = {(verdict,): float(verdict == summary.verdict) for verdict in EXIT_CODES}
    yield from _gauges("chaos_verdict", "1 for the verdict of the run, 0 for the others.", ("verdict",), verdicts)


def _gauge(name: str, text: str, value: float | None) -> Iterable[Metric]:
    if value is not None:
        yield GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float | None) -> Iterable[Metric]:
    if value is not None:
        yield CounterMetricFamily(name, text, value=value)


def _gauges(name: str, text: str, labels: tuple[str, ...], values: Values) -> Iterable[Metric]:
    yield from _labelled(GaugeMetricFamily(name, text, labels=labels), values)


def _counters(name: str, text: str, labels: tuple[str, ...], values: Values) -> Iterable[Metric]:
    yield from _labelled(CounterMetricFamily(name, text, labels=labels), values)


def _labelled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Iterable[Metric]:
    known = {labels: value for labels, value in values.items() if value is not None}
    for labels, value in known.items():
        family.add_metric(labels, value)
    if known:
        yield family


def _label(text: str) -> str:
    return text if len(text) <= _MAX_LABEL_CHARACTERS else f"{text[: _MAX_LABEL_CHARACTERS - 3]}..."
