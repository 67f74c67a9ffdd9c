"""A run's state as Prometheus metrics: names, types, labels, meanings (`docs/reference/metrics.md` is made of them)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from prometheus_client import Metric
from prometheus_client.registry import Collector

from harness.analysis.accounting import BADPUT_CAUSES, PRODUCTIVE
from harness.analysis.contained import as_far_as_it_goes
from harness.analysis.ranks import FIDELITY
from harness.exporter.figures import REGROUP_REASONS, REJECTED_VERDICTS, Figures
from harness.judging.verdict import EXIT_CODES
from mecefo_runtime.system.metric_family import Family, by_name
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import RunStarted

RECOVERY = "recovery"
_MAX_LABEL_CHARACTERS = 200


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


FAMILIES = by_name(
    Family(
        "chaos_run_info",
        "info",
        "always 1. `faults`: the kinds that are planned, joined by commas; `strategy` and `model` empty for "
        "your own training script",
        ("experiment", "strategy", "backend", "runtime", "model", "faults"),
    ),
    Family("chaos_run_start_timestamp_seconds", "gauge", "Unix time at which the run began"),
    Family(
        "chaos_events_unread_total",
        "counter",
        "events that could not be understood: of a damaged log, or of another version",
    ),
    Family("training_running", "gauge", "1 from the start of the job to its end, else 0"),
    Family("training_step", "gauge", "the newest committed step"),
    Family("training_steps_planned", "gauge", "planned steps of the job; absent where unknown"),
    Family("training_steps_total", "counter", "steps committed, each once"),
    Family(
        "training_steps_repeated_total", "counter", "steps committed again after the job went back to an earlier step"
    ),
    Family(
        "training_unfit_steps_total",
        "counter",
        f"rejected attempts at a step, because of its values: {_codes(REJECTED_VERDICTS)}",
        ("verdict",),
    ),
    Family(
        "training_tokens_total",
        "counter",
        "tokens of the committed steps, each step once; absent where the job does not report them",
    ),
    Family(
        "training_samples_total",
        "counter",
        "samples of the committed steps, each step once; absent where the job does not report them",
    ),
    Family(
        "training_loss",
        "gauge",
        "loss of the newest step, in nats per token; `NaN` and `+Inf` are exported as they are",
    ),
    Family("training_gradient_norm", "gauge", "norm of the newest step's gradient"),
    Family("training_learning_rate", "gauge", "learning rate of the newest step"),
    Family("training_step_seconds", "histogram", "from the previous commit to this one, stalls included"),
    Family("training_tokens_per_second", "gauge", "throughput over the last few steps"),
    Family("training_last_commit_timestamp_seconds", "gauge", "Unix time of the newest commit"),
    Family(
        "training_epoch",
        "gauge",
        "the membership in which the newest step was committed, or a newer one that has been formed; for your "
        "own training script the attempt",
    ),
    Family("training_regroups_total", "counter", f"memberships formed: {_codes(REGROUP_REASONS)}", ("reason",)),
    Family("training_transfer_bytes_total", "counter", "state that the slowest rank of each regroup had to transfer"),
    Family(
        "training_ranks",
        "gauge",
        "ranks that are `starting` (no report yet), `alive` (members), `lost` (hit by a fault, or known to be "
        "lost, and not back)",
        ("state",),
    ),
    Family(
        "training_host_observed",
        "gauge",
        "1 while the agent on the host is there, 0 when it is lost; absent where the job is on one host",
        ("host", "node"),
    ),
    Family(
        "training_unplanned_losses",
        "gauge",
        "losses of ranks, or of the coordinator, that no fault explains so far; a loss that a fault later "
        "explains is removed",
    ),
    Family(
        "training_coordinator_up",
        "gauge",
        "1 while the job has a coordinator; absent for your own training script, and when the job is over",
    ),
    Family(
        "training_layers_held",
        "gauge",
        "layers that the rank holds; 0 for one that is lost; absent for your own training script",
        ("rank",),
    ),
    Family(
        "training_degraded_layers",
        "gauge",
        "layers that run degraded, over all replicas (one layer in two replicas counts two)",
    ),
    Family("training_rank_degraded_layers", "gauge", "layers that run degraded on the rank", ("rank",)),
    Family("training_checkpoints_total", "counter", "checkpoints of which a part was written, each once"),
    Family(
        "training_checkpoints_failed_total",
        "counter",
        "checkpoints of which a part was not saved; absent while none was seen",
    ),
    Family("training_goodput_ratio", "gauge", "productive time over wall clock since the start of the job"),
    Family(
        "training_productive_seconds_total",
        "counter",
        "wall clock that went into steps that count, at the speed of before the first fault",
    ),
    Family(
        "training_badput_seconds_total", "counter", f"the rest of the wall clock: {_codes(BADPUT_CAUSES)}", ("cause",)
    ),
    Family(
        "training_device_errors_total",
        "counter",
        "ECC errors (`ecc_single_bit`, `ecc_double_bit`) and XIDs (`xid`) of the rank's device. "
        '`fidelity="telemetry"`: written by a fault, not measured',
        ("rank", "error", "fidelity"),
    ),
    Family(
        "training_device_last_xid",
        "gauge",
        "the newest XID, as DCGM's exporter has it in `DCGM_FI_DEV_XID_ERRORS`",
        ("rank", "fidelity"),
    ),
    Family("chaos_faults_planned", "gauge", "planned incidents of the run", ("fault",)),
    Family(
        "chaos_faults_total",
        "counter",
        "incidents by outcome: `verified` (its effect was observed), `unverified`, `not_due` (its time did not "
        "come). Each counts once; 0 from the beginning for planned kinds",
        ("fault", "outcome"),
    ),
    Family(
        "chaos_fault_active",
        "gauge",
        "active incidents: from the injection until the repair, the undo or, for instantaneous faults, the recovery",
        ("fault",),
    ),
    Family(
        "chaos_recovery_seconds",
        "gauge",
        "times of the newest incident of that kind: `recovery` (injected to committed), `verify`, `detect`, "
        "`isolate`, `regroup`, `transfer`, `first_step`; beyond them `restore` (committed to full speed), "
        "`rejoin` (injected to the return of all lost ranks), `repair_wait` and `rejoin_after_repair` (its two "
        "parts)",
        ("fault", "phase"),
    ),
    Family(
        "chaos_recoveries_total",
        "counter",
        "incidents from which the job recovered; of faults that corrupt numbers or took the launcher or the "
        "store, counted when the job is over",
        ("fault",),
    ),
    Family(
        "chaos_steps_lost_total",
        "counter",
        "recomputed steps, and at the end of a completed job those that were never committed",
    ),
    Family("chaos_undo_pending", "gauge", "incidents that are not completely undone yet"),
    Family("chaos_undo_failed_total", "counter", "undoes that failed", ("fault",)),
    Family(
        "chaos_figures_failed",
        "gauge",
        "groups of figures of which some could not be computed; the others are served all the same",
    ),
    Family(
        "chaos_throughput_drop_ratio",
        "gauge",
        "1 - throughput under the faults so far / before the first one; absent before it",
    ),
    Family(
        "chaos_gate_passed", "gauge", "1 passed, 0 failed, `NaN` undecided; absent until the run is judged", ("gate",)
    ),
    Family(
        "chaos_verdict",
        "gauge",
        f"1 for the run's verdict, 0 for the other ones ({_codes(EXIT_CODES)}); absent until the run is judged",
        ("verdict",),
    ),
)


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
            return [*found, *_one("chaos_figures_failed", len(failed))]

    def _goodput(self, figures: Figures) -> Iterable[Metric]:
        if not figures.has_job:
            return
        ratio = figures.goodput_ratio(self._clock())
        yield from _one("training_goodput_ratio", ratio)

    def _time(self, figures: Figures) -> Iterable[Metric]:
        if not figures.has_job:
            return
        told = figures.told_seconds()
        yield from _one("training_productive_seconds_total", told[PRODUCTIVE])
        yield from _each(
            "training_badput_seconds_total",
            {(cause,): told[cause] for cause in BADPUT_CAUSES},
        )


def _run(figures: Figures) -> Iterable[Metric]:
    if figures.info:
        yield FAMILIES["chaos_run_info"].of_labels({key: _label(value) for key, value in figures.info.items()})
    started = figures.state.first_of(RunStarted)
    yield from _one("chaos_run_start_timestamp_seconds", None if started is None else started.time_seconds)
    yield from _one("training_running", float(figures.timeline.is_running))
    yield from _one("chaos_events_unread_total", figures.state.num_unread)


def _steps(figures: Figures) -> Iterable[Metric]:
    times, last = figures.timeline, figures.state.newest_step()
    yield from _one("training_step", None if last is None else last.step)
    yield from _one("training_steps_planned", times.steps_planned or None)
    yield from _one("training_steps_total", len(times.steps.first))
    yield from _one("training_steps_repeated_total", len(times.steps.redone))
    if figures.has_layout:
        yield from _each("training_unfit_steps_total", {(key,): n for key, n in figures.rejected.items()})
    yield from _one("training_checkpoints_total", figures.state.num_checkpoints)
    if figures.timeline.num_checkpoints:
        yield from _one("training_checkpoints_failed_total", len(figures.timeline.unsaved_checkpoints))
    yield from _one("training_tokens_total", figures.tokens)
    yield from _one("training_samples_total", figures.samples)
    if last is not None:
        yield from _one("training_loss", last.loss)
        yield from _one("training_gradient_norm", last.grad_norm)
        yield from _one("training_learning_rate", last.learning_rate)
    yield FAMILIES["training_step_seconds"].of_buckets(*figures.step_seconds)
    yield from _one("training_tokens_per_second", figures.tokens_per_second)
    at = None if last is None else last.committed_seconds + figures.state.unix_offset_seconds
    yield from _one("training_last_commit_timestamp_seconds", at)


def _ranks(figures: Figures) -> Iterable[Metric]:
    ranks, last = figures.state.ranks, figures.state.newest_step()
    epochs = [epoch for epoch in (ranks.epoch, None if last is None else last.epoch) if epoch is not None]
    yield from _one("training_epoch", max(epochs, default=None))
    if figures.has_layout:
        yield from _each("training_regroups_total", {(key,): n for key, n in figures.regroups.items()})
        yield from _one("training_transfer_bytes_total", figures.transfer_bytes)
    if figures.has_job:
        yield from _one("training_unplanned_losses", len(figures.timeline.unplanned))
    if ranks.states:
        by_state = {(state,): float(n) for state, n in figures.rank_counts.items()}
        yield from _each("training_ranks", by_state)
    if hosts := figures.hosts:
        observed = {(host.name, "" if host.node is None else str(host.node)): float(not host.is_lost) for host in hosts}
        yield from _each("training_host_observed", observed)
    is_up = ranks.is_coordinator_up if figures.timeline.is_running else None
    yield from _one("training_coordinator_up", None if is_up is None else float(is_up))
    if layers := figures.layers:
        held = {(str(rank),): float(number) for rank, (number, _) in layers.items()}
        degraded = {(str(rank),): float(number) for rank, (_, number) in layers.items()}
        yield from _each("training_layers_held", held)
        yield from _one("training_degraded_layers", sum(degraded.values()))
        yield from _each("training_rank_degraded_layers", degraded)
    if ranks.devices:
        kinds = ("ecc_single_bit", "ecc_double_bit", "xid")
        counts: dict[tuple[str, ...], float] = {}
        for rank, errors in ranks.devices.items():
            numbers = (errors.ecc_sbe, errors.ecc_dbe, sum(errors.xids.values()))
            counts |= {(str(rank), kind, FIDELITY): number for kind, number in zip(kinds, numbers, strict=True)}
        yield from _each("training_device_errors_total", counts)
        xids = {(str(rank), FIDELITY): float(errors.last_xid) for rank, errors in ranks.devices.items()}
        yield from _each("training_device_last_xid", xids)


def _chaos(figures: Figures) -> Iterable[Metric]:
    planned = {(kind,): float(n) for kind, n in figures.planned.items()}
    yield from _each("chaos_faults_planned", planned)
    yield from _each("chaos_faults_total", dict(figures.outcomes))
    active = {(kind,): float(n) for kind, n in figures.active.items()}
    yield from _each("chaos_fault_active", active)
    phases: dict[tuple[str, ...], float | None] = {}
    for kind, incident in figures.newest.items():
        phases[kind, RECOVERY] = incident.recovery_seconds
        phases |= {(kind, phase): seconds for phase, seconds in incident.phases_seconds.items()}
    yield from _each("chaos_recovery_seconds", phases)
    yield from _each("chaos_recoveries_total", {(kind,): n for kind, n in figures.recoveries.items()})
    yield from _one("chaos_steps_lost_total", figures.steps_lost)
    yield from _one("chaos_undo_pending", figures.undo_pending)
    failures = {(kind,): n for kind, n in figures.undo_failures.items()}
    yield from _each("chaos_undo_failed_total", failures)


def _drop(figures: Figures) -> Iterable[Metric]:
    yield from _one("chaos_throughput_drop_ratio", figures.throughput_drop_ratio)


def _verdict(figures: Figures) -> Iterable[Metric]:
    summary = figures.summary
    if summary is None:
        return
    gates: dict[tuple[str, ...], float | None] = {}
    for gate in summary.gates:
        value = float("nan") if gate.passed is None else float(gate.passed)
        # Asked for and built in, it has the same answer twice.
        gates[(_label(gate.expression),)] = value
    yield from _each("chaos_gate_passed", gates)
    verdicts = {(verdict,): float(verdict == summary.verdict) for verdict in EXIT_CODES}
    yield from _each("chaos_verdict", verdicts)


def _one(name: str, value: float | None) -> Iterable[Metric]:
    return FAMILIES[name].of({(): value})


def _each(name: str, values: Mapping[Any, float | None]) -> Iterable[Metric]:
    """Values by the values of the labels; an unknown value has no sample."""
    return FAMILIES[name].of(values)


def _label(text: str) -> str:
    return text if len(text) <= _MAX_LABEL_CHARACTERS else f"{text[: _MAX_LABEL_CHARACTERS - 3]}..."
