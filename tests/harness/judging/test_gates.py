import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.command.recovery import LAUNCH_PHASES, UNOBSERVED
from harness.judging.always_checked import GATES
from harness.judging.gates import Gate, GateError, HaltCondition, aggregate, evaluate, evaluate_all
from harness.judging.metrics import METRICS
from harness.judging.summarize import summarize
from harness.judging.summary import UNKNOWN, IncidentSummary, Summary
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.records import parse
from tests.harness.synthetic import Fault, run, shifted

pytestmark = pytest.mark.unit


def incident_of(seconds: float | None, **changes: Any) -> IncidentSummary:
    figures = {"recovery_seconds": seconds, "detection_seconds": 0.1, "phases_seconds": {"rejoin": seconds}}
    found = {"injected": True, "verified": True, "recovered": seconds is not None, "ranks": (2, 3), **figures}
    return IncidentSummary(0, "kill-node", **(found | changes))


def summary_of(*recoveries: float | None, **figures: Any) -> Summary:
    ended = {"status": "completed", "job_outcome": "completed"}
    ended |= {"baseline_outcome": "completed", "baseline_planned": True}
    incidents = tuple(map(incident_of, recoveries))
    return replace(UNKNOWN, **(ended | {"incidents": incidents} | figures))


@pytest.mark.parametrize(
    ("text", "metric", "aggregate_name", "comparison", "threshold"),
    [
        ("throughput_drop <= 4.18%", "throughput_drop_ratio", "max", "<=", 0.0418),
        ("throughput_drop_ratio<=0.0418", "throughput_drop_ratio", "max", "<=", 0.0418),
        ("recovery_seconds p95 < 5", "recovery_seconds", "p95", "<", 5.0),
        ("recovery p99.9 < 5s", "recovery_seconds", "p99.9", "<", 5.0),
        ("loss_deviation < 2%", "loss_deviation_ratio", "max", "<", 0.02),
        ("steps_lost == 0", "steps_lost", "max", "==", 0.0),
        ("goodput >= 0.9", "goodput_ratio", "max", ">=", 0.9),
        ("detection_seconds max < 500ms", "detection_seconds", "max", "<", 0.5),
        ("wall_clock < 2min", "wall_clock_seconds", "max", "<", 120.0),
        ("throughput_after > 1e3", "throughput_after_tokens_per_second", "max", ">", 1000.0),
        ("badput_regroup < 1 s", "badput_regroup_seconds", "max", "<", 1.0),
        ("Steps-Committed != 3", "steps_committed", "max", "!=", 3.0),
        ("  rejoin   median  <= 1.5 min ", "rejoin_seconds", "median", "<=", 90.0),
        ("throughput_drop <= -.5%", "throughput_drop_ratio", "max", "<=", -0.005),
    ],
)
def test_gates_are_read(text: str, metric: str, aggregate_name: str, comparison: str, threshold: float):
    gate = Gate.parse(text)
    assert (gate.metric.name, gate.aggregate, gate.comparison) == (metric, aggregate_name, comparison)
    assert gate.threshold == pytest.approx(threshold)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no gate"),
        ("throughput_drop", "is no gate"),
        ("throughput_drop = 4%", "is no gate"),
        ("throughput_drop ! 4%", "is no gate"),
        ("throughput_drop <= four", "is no gate"),
        ("throughput_drop <= 4% <= 5%", "is no gate"),
        ("throughput_drp <= 4%", "did you mean 'throughput_drop'"),
        ("recovry p95 < 5", "did you mean 'recovery'"),
        ("recovery p101 < 5", "no aggregate 'p101'"),
        ("recovery avg < 5", "no aggregate 'avg'"),
        ("steps_lost max == 0", "leave out 'max'"),
        ("steps_lost == 0%", "write no unit"),
        ("recovery < 5%", "cannot be measured in '%'"),
        ("recovery < 5h", "cannot be measured in 'h'"),
        ("throughput_drop <= 4ms", "cannot be measured in 'ms'"),
        ("throughput_drop <= 4.18", "did you mean 4.18%?"),
        ("steps_lost < 1e400", "1e400 is not a number"),
    ],
)
def test_what_is_no_gate_is_refused_with_a_hint(text: str, message: str):
    with pytest.raises(GateError) as caught:
        Gate.parse(text)
    assert message in str(caught.value)


def test_an_unknown_metric_is_answered_with_where_all_are_listed():
    with pytest.raises(GateError) as caught:
        Gate.parse("speed > 1")
    assert "there is no metric 'speed'; `chaos gates` lists them" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("throughput_drop < 5%", False),
        ("throughput_drop <= 5%", True),
        ("throughput_drop > 5%", False),
        ("throughput_drop >= 5%", True),
        ("throughput_drop == 5%", True),
        ("throughput_drop != 5%", False),
    ],
)
def test_comparisons_are_exact_at_the_threshold(text: str, passed: bool):
    assert evaluate(Gate.parse(text), summary_of(throughput_drop_ratio=0.05)).passed is passed


@pytest.mark.parametrize(
    ("how", "value"),
    [("min", 1.0), ("max", 4.0), ("mean", 2.5), ("median", 2.5), ("p50", 2.5), ("p100", 4.0), ("", 4.0)],
)
def test_incidents_are_aggregated(how: str, value: float):
    result = evaluate(Gate.parse(f"recovery {how} < 3"), summary_of(2.0, 1.0, 4.0, 3.0))
    assert (result.value, result.passed) == (value, value < 3)


def test_a_failed_gate_says_what_was_measured():
    assert evaluate(Gate.parse("recovery p50 < 2"), summary_of(2.5)).reason == (
        "p50 of recovery_seconds is 2.500 s, 0.500 s above the limit"
    )
    assert evaluate(Gate.parse("goodput > 90%"), summary_of(goodput_ratio=0.5)).reason == (
        "goodput_ratio is 50.00%, 40.00 points below the limit"
    )


@pytest.mark.parametrize(
    ("gate", "margin"),
    [
        ("steps_lost <= 10", "24 above the limit"),
        ("steps_lost < 34", "equal to the limit"),
        ("steps_lost >= 40", "6 below the limit"),
        ("steps_lost == 0", "34 above the required value"),
        ("steps_lost != 34", "equal to the excluded value"),
    ],
)
def test_a_failed_gate_says_by_how_much(gate, margin):
    assert evaluate(Gate.parse(gate), summary_of(steps_lost=34)).reason == f"steps_lost is 34, {margin}"


def test_a_missing_figure_never_passes_nor_fails():
    for summary in (summary_of(throughput_drop_ratio=None), summary_of()):
        result = evaluate(Gate.parse("throughput_drop < 100%"), summary)
        assert (result.value, result.passed) == (None, None)
        assert "has no value" in (result.reason or "")


def test_one_incident_without_a_value_leaves_the_gate_open():
    result = evaluate(Gate.parse("recovery max < 5"), summary_of(1.0, None))
    why = "the job did not recover from it, or that is not known"
    assert (result.passed, result.reason) == (None, f"recovery_seconds has no value for 1 of 2 incidents: {why}")


def test_no_incident_leaves_the_gate_open():
    assert evaluate(Gate.parse("recovery max < 5"), summary_of()).passed is None


def test_unverified_incidents_and_phases_that_a_fault_has_not_do_not_count():
    without_ranks = incident_of(2.0, ranks=(), detection_seconds=None)
    summary = summary_of(incidents=(incident_of(1.0), incident_of(9.0, verified=False), without_ranks))
    assert evaluate(Gate.parse("recovery max < 5"), summary).value == 2.0
    assert evaluate(Gate.parse("detection max < 500ms"), summary).value == 0.1


ENDINGS = {
    "halted": "the run was halted",
    "interrupted": "the run was interrupted",
    "aborted": "the run was ended by a gate",
    "cut off": "the log was cut off",
    "failed": "the run ended",
}


def stopped(status: str, *recoveries: float | None, **figures: Any) -> Summary:
    outcome = None if status == "cut off" else "stopped"
    return summary_of(*recoveries, status=status, job_outcome=outcome, baseline_outcome=None, **figures)


@pytest.mark.parametrize("status", ENDINGS)
@pytest.mark.parametrize(
    ("gate", "figures"),
    [
        ("steps_lost == 0", {"steps_lost": 0}),
        ("steps_lost <= 3", {"steps_lost": 3}),
        ("steps_lost == 3", {"steps_lost": 2}),
        ("steps_lost >= 3", {"steps_lost": 2}),
        ("steps_lost != 3", {"steps_lost": 2}),
        ("samples_lost == 0", {"samples_lost": 0}),
        ("unrecovered_incidents == 0", {"unrecovered_incidents": 0}),
        ("unrecovered_incidents == 0", {"unrecovered_incidents": 1}),
        ("wall_clock < 60", {"wall_clock_seconds": 1.0}),
        ("steps_committed >= 40", {"steps_committed": 1}),
        ("goodput > 90%", {"goodput_ratio": 0.5}),
        ("goodput > 90%", {"goodput_ratio": 0.95}),
        ("throughput_during > 1", {"throughput_tokens_per_second": {"during": 2.0}}),
        ("loss_deviation < 2%", {"loss_deviation_ratio": 0.0}),
    ],
)
def test_of_a_job_that_did_not_reach_its_end_what_can_still_change_is_open(status, gate, figures):
    result = evaluate(Gate.parse(gate), stopped(status, **figures))
    assert (result.value, result.passed) == (None, None)
    assert result.reason == f"{ENDINGS[status]} before {Gate.parse(gate).metric.name} was final"


@pytest.mark.parametrize("status", ENDINGS)
@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        ("steps_lost == 0", False),
        ("steps_lost <= 1", False),
        ("steps_lost < 2", False),
        ("steps_lost >= 2", True),
        ("steps_lost > 1", True),
        ("steps_lost != 1", True),
    ],
)
def test_what_only_grows_and_is_beyond_its_limit_is_decided(status, gate, passed):
    assert evaluate(Gate.parse(gate), stopped(status, steps_lost=2)).passed is passed


def test_what_is_known_before_the_fault_is_final_once_it_affected():
    gate, speed = Gate.parse("throughput_before > 1"), {"throughput_tokens_per_second": {"before": 2.0}}
    assert evaluate(gate, stopped("halted", 1.0, **speed)).passed is True
    assert evaluate(gate, stopped("halted", **speed)).passed is None


def test_incidents_have_an_answer_once_every_planned_fault_has_affected():
    gate = Gate.parse("recovery < 5")
    assert evaluate(gate, stopped("halted", 1.0)).passed is True
    assert evaluate(gate, stopped("halted", 6.0)).passed is False
    never = incident_of(2.0, verified=False, injected=False)
    still_to_come = stopped("halted", incidents=(incident_of(1.0), never))
    assert evaluate(gate, still_to_come).passed is None
    assert evaluate(gate, stopped("halted", 1.0, incidents_not_due=1)).passed is None
    still_to_come = stopped("halted", incidents=(incident_of(6.0), never))
    assert evaluate(gate, still_to_come).passed is False
    assert evaluate(Gate.parse("recovery mean < 5"), still_to_come).passed is None


def test_a_job_that_died_fails_what_it_failed_and_passes_nothing_that_it_did_not_live_to_see():
    incidents = (incident_of(1.0, recovered=False),)
    died = summary_of(incidents=incidents, goodput_ratio=0.5, steps_lost=0, job_outcome="failed")
    assert evaluate(Gate.parse("goodput > 90%"), died).passed is False
    result = evaluate(Gate.parse("steps_lost == 0"), died)
    assert (result.passed, result.reason) == (None, "the job failed before steps_lost was final")


def test_a_job_that_came_to_its_end_is_judged_though_its_baseline_did_not():
    figures = {"steps_lost": 0, "loss_deviation_ratio": 0.0}
    baseline_stopped = summary_of(1.0, **figures, status="interrupted", baseline_outcome="stopped")
    assert evaluate(Gate.parse("steps_lost == 0"), baseline_stopped).passed is True
    result = evaluate(Gate.parse("loss_deviation < 2%"), baseline_stopped)
    assert (result.passed, result.reason) == (
        None,
        "the fault-free baseline ended before loss_deviation_ratio was final",
    )
    assert evaluate(Gate.parse("final_loss < 2"), summary_of(final_loss=1.0, baseline_planned=False)).passed is True


@pytest.mark.parametrize("ended", ["halted", "interrupted", "failed"])
def test_a_run_that_ended_early_passes_no_gate_over_the_whole_of_it(ended):
    gates = ["steps_lost == 0", "unfit_steps == 0", "step_seconds max < 5", "throughput_before > 1"]
    summary = summarize(run(gates=gates, ended=ended))
    passed = [gate.expression for gate in summary.gates if gate.passed]
    assert passed == ["throughput_before > 1"]
    assert all(gate.passed is not False for gate in summary.gates)


def test_every_metric_is_in_a_real_summary():
    # Enough steps before the fault to know the noise.
    summary = summarize(run(steps=120, faults=(Fault(step=60),)))
    without_value = {
        "slowdown_ratio",
        # Only a command whose launcher starts its ranks again has them.
        *(f"recovery_{phase}_seconds" for phase in (*LAUNCH_PHASES, UNOBSERVED)),
        "hang_rule_fired_seconds",
        "hang_rule_false_alarms",
        "fruitless_attempts",
        "fruitless_seconds",
        "generations_overlap_seconds",
        "overlapping_steps",
        "overlapping_saves",
        "orphaned_processes",
        "ranks_lost_for_good",
        "world_size_after",
        "global_batch_after_samples",
        "parameters_not_finite",
        # This job has no checkpoints.
        "checkpoints_failed",
        "checkpoints_saved",
        "checkpoints_unusable",
        "checkpoint_fallbacks",
    }
    for metric in METRICS.values():
        if metric.name in without_value or metric.of_preemptions or metric.is_of_restarts:
            continue
        assert metric.values(summary), metric.name
        assert all(value is not None for value in metric.values(summary)), metric.name


def test_the_builtin_gates_always_count():
    summary = summary_of(steps_lost=1, samples_lost=0, unrecovered_incidents=None)
    results = evaluate_all(["steps_lost < 5"], summary)
    assert [result.expression for result in results] == ["steps_lost < 5", *GATES["built-in"]]
    assert [result.builtin for result in results] == [False, True, True, True]
    assert [result.passed for result in results] == [True, False, True, None]


def test_a_gate_that_breaks_down_is_open_and_says_why():
    results = evaluate_all(["speed > 1", "recovery < 5"], summary_of(incidents=(None,)))
    assert [result.passed for result in results] == [None] * 5
    assert "no metric 'speed'" in (results[0].reason or "")
    assert "could not be evaluated" in (results[1].reason or "")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.integers(0, 100))
def test_percentiles_lie_within_and_grow(values: list[float], percent: int):
    value = aggregate(values, f"p{percent}")
    assert min(values) <= value <= max(values)
    assert aggregate(values, "p0") == min(values) and aggregate(values, "p100") == max(values)
    assert value <= aggregate(values, f"p{min(100, percent + 5)}") or math.isclose(
        value, aggregate(values, f"p{min(100, percent + 5)}")
    )


@given(st.text(alphabet="abpdrt_ 0159.%<>=!ms-\n", max_size=40))
def test_no_text_breaks_the_parser(text: str):
    with suppress(GateError):
        gate = Gate.parse(text)
        assert Gate.parse(gate.expression) == gate
    with suppress(GateError):
        condition = HaltCondition.parse(text)
        assert HaltCondition.parse(condition.text) == condition


def committed(**fields: Any) -> Event:
    return shifted(next(event for event in run(faults=()) if event.kind == "step_committed"), **fields)


@pytest.mark.parametrize(
    ("condition", "fields", "is_true"),
    [
        ("training_loss is nan", {"loss": math.nan}, True),
        ("training_loss is NaN", {"loss": math.inf}, True),
        ("training_loss is nan", {"loss": 3.0}, False),
        ("loss > 20", {"loss": 20.5}, True),
        ("training_loss > 20", {"loss": 20.0}, False),
        ("throughput < 100", {"tokens": 5}, True),
        ("throughput < 100", {"tokens": 4096}, False),
        ("grad_norm >= 1", {}, True),
        ("step_seconds > 0.2", {}, False),
        ("grad_norm > 0", {"grad_norm": None}, False),
    ],
)
def test_halt_conditions(condition: str, fields: dict[str, Any], is_true: bool):
    assert HaltCondition.parse(condition).check(parse(committed(**fields))) is is_true


def test_a_step_of_no_time_has_no_throughput():
    began = committed().fields["began_monotonic"]
    assert not HaltCondition.parse("throughput < 100").check(parse(committed(committed_monotonic=began)))


def test_only_committed_steps_of_the_main_job_halt():
    condition = HaltCondition.parse("training_loss > 0")
    assert {(e.kind, e.job) for e in run(faults=(Fault(),)) if condition.check(parse(e))} == {
        ("step_committed", "main")
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training_loss", "is no halt condition"),
        ("training_loss is low", "is no halt condition"),
        ("training_loss ! 3", "is no halt condition"),
        ("training_loss > 1e400", "1e400 is not a number"),
        ("trainin_loss > 3", "did you mean 'training_loss'"),
    ],
)
def test_what_is_no_halt_condition_is_refused(text: str, message: str):
    with pytest.raises(GateError, match=message):
        HaltCondition.parse(text)
