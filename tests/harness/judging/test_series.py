"""Gates over series, held against a synthetic run whose every figure is known."""

import math
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from harness.analysis.state import state_of
from harness.judging.gates import Gate, GateError, GateResult, evaluate, evaluate_all
from harness.judging.metrics import METRICS
from harness.judging.series import PERIODS, SERIES, Recorded
from harness.judging.summarize import summarize
from mecefo_runtime.system.events import Event
from tests.harness.synthetic import TOKENS_PER_STEP, Fault, loss_of, run, shifted

pytestmark = pytest.mark.unit


def judged(expression: str, events: list[Event]) -> GateResult:
    return evaluate(Gate.parse(expression), summarize(events), Recorded(state_of(events)))


def changed(events: list[Event], steps: range, **fields: Any) -> list[Event]:
    return [
        shifted(event, **fields)
        if event.kind == "step_committed" and event.job == "main" and event.step in steps
        else event
        for event in events
    ]


def test_the_step_whose_commit_ends_the_fault_is_of_its_time():
    # Of a loss that nobody repairs the last step ends it.
    last = judged(
        "step_seconds max during < 1s", run(steps=20, faults=(Fault(step=20, repair_steps=None),), baseline=False)
    )
    assert (last.passed, last.value) == (True, pytest.approx(0.244))


@pytest.mark.parametrize(
    ("text", "name", "how", "period", "threshold"),
    [
        ("step_seconds p95 < 300ms", "step_seconds", "p95", None, 0.3),
        ("step_seconds max during <= 2 s", "step_seconds", "max", "during", 2.0),
        ("step_seconds during max <= 2 s", "step_seconds", "max", "during", 2.0),
        ("Step median AFTER < 1min", "step_seconds", "median", "after", 60.0),
        ("throughput mean before > 1e3 tokens/s", "throughput", "mean", "before", 1000.0),
        ("throughput min > 5 steps/s", "throughput", "min", None, 5.0),
        ("loss max < 20", "training_loss", "max", None, 20.0),
        ("grad-norm p99.9 < 3", "grad_norm", "p99.9", None, 3.0),
        ("degraded_layers max <= 4", "degraded_layers", "max", None, 4.0),
    ],
)
def test_series_are_read(text: str, name: str, how: str, period: str | None, threshold: float):
    gate = Gate.parse(text)
    assert (gate.metric, gate.aggregate, gate.period) == (SERIES[name], how, period)
    assert gate.threshold == pytest.approx(threshold)


def test_a_figure_keeps_its_meaning_beside_a_series_of_the_same_name():
    assert Gate.parse("step_seconds < 1").metric is METRICS["step_seconds"]
    assert Gate.parse("step_seconds max < 1").metric is SERIES["step_seconds"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training_loss < 20", "say which is meant, such as 'training_loss max'"),
        ("throughput during > 3", "say which is meant"),
        ("step_seconds max min < 1", "one aggregate"),
        ("step_seconds max before after < 1", "one of before, during, after at most"),
        ("step_seconds max before before < 1", "one of before, during, after at most"),
        ("step_seconds max befor < 1", "did you mean 'before'"),
        ("recovery during < 1", "recovery_seconds has no 'during'"),
        ("steps_lost before == 0", "steps_lost has no 'before'"),
        ("training_loss max < 3s", "cannot be measured in 's'"),
        ("throughput max < 3 bytes/s", "cannot be measured in 'bytes/s'"),
        ("throughput_after > 3 samples/s", "write no unit or 'tokens/s'"),
        ("grad_nrm max < 3", "did you mean 'grad_norm'"),
    ],
)
def test_what_is_no_gate_over_a_series_is_refused(text: str, message: str):
    with pytest.raises(GateError) as caught:
        Gate.parse(text)
    assert message in str(caught.value)


def test_step_seconds_are_those_of_the_steps():
    events = run()
    durations = [step.duration_seconds for step in state_of(events).timeline.steps.first]
    assert judged("step_seconds max < 1", events).value == max(durations)
    assert judged("step_seconds mean < 1", events).value == pytest.approx(fmean(durations))
    assert judged("step_seconds median before < 1", events).value == pytest.approx(0.1)
    assert judged("step_seconds median before < 1", events).value == summarize(events).step_seconds
    assert judged("step_seconds p50 during < 1", events).value == pytest.approx(0.125)
    assert judged("step_seconds max after < 1", events).value == pytest.approx(0.1), "the rejoin is not after it"


def test_failed_gates_say_what_of():
    assert judged("step_seconds p50 during < 1ms", run()).reason == (
        "p50 of step_seconds during the fault is 0.125 s, 0.124 s above the limit"
    )
    assert judged("training_loss min < 0", run()).passed is False


def test_losses_and_norms_and_layers():
    events = run()
    assert judged("training_loss max < 20", events).value == loss_of(1)
    assert judged("training_loss min after > 0", events).value == loss_of(60)
    assert judged("grad_norm max < 2", events).value == 1.0
    assert judged("degraded_layers max before < 1", events).value == 0.0
    assert judged("degraded_layers max during < 1", events).value > 0.0


def test_throughput_is_the_work_of_each_second():
    events = run(faults=(Fault(step=40),), steps=80)
    assert judged("throughput mean before > 1", events).value == pytest.approx(TOKENS_PER_STEP / 0.1)
    assert judged("throughput max > 1 tokens/s", events).value == pytest.approx(TOKENS_PER_STEP / 0.1)
    during = summarize(events).throughput_per_second.during
    assert judged("throughput mean during > 1", events).value == pytest.approx(during, rel=0.02)


def test_a_standstill_is_a_time_without_work():
    late = []
    for event in run(faults=()):
        if event.kind == "step_committed" and event.job == "main" and (event.step or 0) > 30:
            times = {name: event.fields[name] + 5.0 for name in ("began_monotonic", "committed_monotonic")}
            late.append(replace(shifted(event, **times), monotonic_seconds=event.monotonic_seconds + 5.0))
        else:
            late.append(event)
    assert judged("throughput min >= 0", run(faults=())).value == pytest.approx(TOKENS_PER_STEP / 0.1)
    assert judged("throughput min >= 0", late).value == 0
    assert judged("throughput mean >= 0", late).value == pytest.approx(TOKENS_PER_STEP * 60 / 11.0, rel=0.01)


def test_throughput_in_another_unit_than_the_job_counts_in_is_open():
    assert judged("throughput mean > 1 samples/s", run()).reason == (
        "the job reports its throughput in tokens/s, not in samples/s"
    )


@pytest.mark.parametrize("how", ["min", "max", "mean", "median", "p5"])
def test_one_step_without_a_value_leaves_the_gate_open(how: str):
    events = changed(run(), range(30, 32), loss=None, grad_norm=None)
    for name in ("training_loss", "grad_norm"):
        result = judged(f"{name} {how} < 1e9", events)
        assert (result.value, result.passed) == (None, None)
        assert result.reason == f"{name} has no value for 2 of 60 steps in the run"
        assert judged(f"{name} {how} before < 1e9", events).passed is True


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("gate", ["training_loss max < 1e9", "training_loss min > -1e9", "training_loss mean != 3"])
def test_a_value_that_is_no_number_never_passes(loss: float, gate: str):
    result = judged(gate, changed(run(), range(30, 31), loss=loss))
    assert (result.passed, result.reason) == (None, "training_loss is not a finite number in step 30")


@pytest.mark.parametrize("period", PERIODS[1:])
@pytest.mark.parametrize("name", SERIES)
def test_without_an_effect_there_is_no_during_and_no_after(name: str, period: str):
    for events in (run(faults=()), run(faults=(Fault(verified=False),))):
        result = judged(f"{name} max {period} > 0", events)
        assert (result.passed, result.reason) == (None, f"no fault was verified, so nothing is {period} it")


def test_no_step_leaves_every_series_open():
    events = [event for event in run() if event.kind != "step_committed"]
    for name in SERIES:
        assert judged(f"{name} max >= 0", events).reason == "no step was committed in the run"


def test_a_log_that_was_cut_off_decides_only_what_is_certain():
    events = run(cut_off_after_step=40)
    assert judged("step_seconds max < 1ms", events).passed is False
    assert judged("step_seconds min > 10", events).passed is False
    for gate in ("step_seconds max < 10", "step_seconds p95 < 1ms", "step_seconds mean > 10", "training_loss max > 99"):
        assert judged(gate, events).passed is None, gate


def test_without_a_timeline_a_series_is_open():
    (result, *_) = evaluate_all(["step_seconds max < 1"], summarize(run()))
    assert (result.passed, result.reason) == (None, "the steps could not be determined, so step_seconds has no value")


def test_every_metric_is_described():
    texts = [metric.text for metric in (*METRICS.values(), *SERIES.values())]
    assert all(texts) and len(texts) == len(set(texts))


def test_gates_of_a_run_are_held_against_its_series():
    gates = {gate.expression: gate for gate in summarize(run(gates=["step_seconds p95 < 1ms"])).gates}
    assert gates["step_seconds p95 < 1ms"].passed is False
    assert (gates["step_seconds p95 < 1ms"].unit, gates["step_seconds p95 < 1ms"].threshold) == ("seconds", 0.001)


def test_times_that_cannot_be_right_have_no_throughput():
    events = [
        shifted(e, committed_monotonic=1e300) if e.kind == "step_committed" and e.step == 60 else e for e in run()
    ]
    result = judged("throughput min >= 0", events)
    assert result.passed is None and "longer than any run" in (result.reason or "")
