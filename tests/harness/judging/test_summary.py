import json
import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.judging.gates import Gate
from harness.judging.summarize import summarize
from harness.judging.summary import UNKNOWN, MachineFigures, StateFigures, Summary, read_summary, unknown
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.reason import Reason
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, run, shifted

pytestmark = pytest.mark.unit

CONTRACT = {
    "verdict",
    "exit_code",
    "seed",
    "experiment_hash",
    "steps_committed",
    "steps_lost",
    "throughput_tokens_per_second",
    "throughput_drop_ratio",
    "final_loss",
    "baseline_loss",
    "loss_deviation_ratio",
    "incidents",
    "badput_seconds",
    "goodput_ratio",
    "gates",
    "caveats",
    "name",
    "status",
    "wall_clock_seconds",
    "productive_seconds",
    "steps_planned",
    "samples_lost",
    "dilation_ratio",
    "strategy",
    "throughput_drop_whole_run_ratio",
    "layout_changes",
    "reasons",
    "step_seconds",
}
INCIDENT_CONTRACT = {"fault", "target", "step", "verified", "evidence", "phases_seconds", "recovery_seconds"}


@pytest.mark.parametrize("events", [run(), run(faults=()), run(cut_off_after_step=3), [], run()[:1]])
def test_every_key_is_there_and_the_summary_is_json(events):
    summary = summarized(events)
    assert summary.keys() >= CONTRACT
    assert all(incident.keys() >= INCIDENT_CONTRACT for incident in summary["incidents"])
    assert set(summary["throughput_tokens_per_second"]) == {"before", "during", "after"}
    assert all(gate.keys() >= {"expression", "value", "passed"} for gate in summary["gates"])
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_a_recovery_is_also_told_in_usual_steps_of_the_same_run():
    summary = summarized(run())
    (incident,) = summary["incidents"]
    assert incident["recovery_steps"] == pytest.approx(incident["recovery_seconds"] / summary["step_seconds"])
    slower = summarized(run(step_seconds=0.2, degraded_step_seconds=0.25))
    assert slower["incidents"][0]["recovery_steps"] < incident["recovery_steps"]
    (never,) = summarized(run(faults=(Fault(recovers=False),)))["incidents"]
    assert never["recovery_steps"] is None


def test_a_log_of_two_runs_proves_nothing():
    summary = summarized([*run(), *run(name="another")])
    assert (summary["verdict"], summary["exit_code"]) == ("inconclusive", 5)
    assert "the log holds the events of 2 runs, which cannot be told apart" in summary["reasons"]


def test_the_figures_of_a_run():
    events = run(gates=["throughput_drop <= 30%"])
    summary = summarized(events)
    assert (summary["name"], summary["seed"], summary["experiment_hash"]) == (
        "synthetic",
        7,
        events[0].fields["experiment_hash"],
    )
    assert (summary["status"], summary["strategy"], summary["layout_changes"]) == ("completed", "ndb", 2)
    assert (summary["steps_planned"], summary["steps_committed"], summary["steps_lost"]) == (60, 60, 0)
    assert summary["step_seconds"] == pytest.approx(0.1)
    assert summary["group_backends"] == ["gloo"]
    assert [gate["builtin"] for gate in summary["gates"]] == [False, True, True, True]
    (incident,) = summary["incidents"]
    assert (incident["fault"], incident["target"], incident["step"]) == ("kill-node", "node=1", 20)
    assert (incident["recovered"], incident["phase_order_valid"], incident["undone"]) == (True, True, True)


def test_the_books_of_the_summary_balance():
    summary = summarized(run(faults=(Fault(), Fault(step=50, node=2))))
    for part in (summary, *summary["incidents"]):
        total = part["productive_seconds"] + sum(part["badput_seconds"].values())
        assert total == pytest.approx(part["wall_clock_seconds"], abs=1e-9)


def test_numbers_that_json_cannot_tell_become_null():
    summary = summarized([shifted(e, loss=float("nan")) if e.kind == "step_committed" else e for e in run()])
    assert (summary["final_loss"], summary["baseline_loss"]) == (None, None)
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"dilation_ratio": 8.0}, "Time dilation 8"),
        ({"baseline": False}, "no fault-free baseline"),
        ({"steps": 42}, "after the repair is a median over 5 steps"),
        ({"faults": (Fault(repair_steps=None),)}, "No step came after the fault was repaired or over"),
        ({"faults": (Fault(repair_steps=None),)}, "did not come back to 95%"),
        ({"faults": (Fault(step=8),)}, "median over 7 steps only"),
        ({"cut_off_after_step": 30}, "log was cut off"),
        ({"ended": "interrupted"}, "the job did not complete, and neither did its fault-free baseline"),
        ({"faults": (Fault(verified=False),)}, "it counts in no figure"),
        ({"faults": (Fault(repair_steps=None), Fault(step=40, node=2))}, "when incident 0 was active, too"),
    ],
)
def test_caveats_say_what_a_reader_must_know(knobs, words):
    assert any(words in caveat for caveat in summarized(run(**knobs))["caveats"])


def test_a_run_with_nothing_to_beware_of_has_no_caveats():
    # But for what is so of every run with `ndb`.
    assert [caveat for caveat in summarized(run())["caveats"] if "approximately" not in caveat] == []


def test_steps_without_an_update_are_a_caveat():
    events = [shifted(e, skipped=(e.step or 0) >= 55) if e.kind == "step_committed" else e for e in run(baseline=False)]
    assert any("6 steps, from 55 on, were rejected" in caveat for caveat in summarized(events)["caveats"])


def test_what_chance_planned_and_did_not_fire_is_a_caveat_where_the_job_came_to_it():
    due = next(event for event in run() if event.kind == "released")
    absent = Reason("rank_absent", target="rank=2", trigger="step=5")
    reasons = [absent, Reason("job_ended_before", trigger="step=700")]
    events = [
        replace(due, kind="not_due", fields={"incident": n, "why": to_json(why)}) for n, why in enumerate(reasons, 7)
    ]
    found = [one for one in summarize([*run(), *events]).caveat_codes if one.code == "not_fired"]
    assert found == [Reason("not_fired", incident=7, why=absent)]


def test_what_was_never_seen_is_not_said_to_have_a_repair():
    assert not any("repair" in caveat for caveat in summarized(run(faults=(Fault(verified=False),)))["caveats"])


def test_unreadable_lines_and_a_job_without_peers_are_caveats():
    experiment = {"name": "alone", "job": {"data_parallel": 1}}
    events = [shifted(e, experiment=experiment) if e.kind == "run_started" else e for e in run()]
    found = " ".join(summarized(events, unreadable=[7, 9])["caveats"])
    assert "2 lines of the log were unreadable" in found
    assert "Data parallel is 1" in found


def test_impossible_phases_are_a_caveat():
    found = summarized([event for event in run() if event.kind != "detected"])["caveats"]
    assert any("an impossible order" in caveat for caveat in found)


@pytest.mark.parametrize("steps", ["x", ["x"], {"x": 1}])
def test_damaged_planned_steps_leave_the_rest_to_be_told(steps):
    events = run()
    events = [shifted(e, steps=steps) if e.kind == "job_started" else e for e in events]
    summary = summarized(events)
    assert summary["incidents"] and summary["verdict"] != "pass"
    json.dumps(summary, allow_nan=False)


@given(st.integers(0, 2**16), st.integers(0, 3))
@example(44, 3)
def test_no_damage_to_a_log_turns_it_into_an_exception_or_nan(seed: int, num_faults: int):
    rng = random.Random(seed)
    junk = [None, -1, 1e308, float("nan"), "x", [], {}, True]
    faults = tuple(Fault(step=5 + 6 * node, node=node) for node in range(num_faults))
    events = run(steps=30, faults=faults, baseline=True)
    for _ in range(rng.randint(1, 6)):
        index = rng.randrange(len(events))
        event = events[index]
        if event.fields and rng.random() < 0.8:
            events[index] = shifted(event, **{rng.choice(sorted(event.fields)): rng.choice(junk)})
        else:
            del events[index]
    summary = summarized(events)
    json.dumps(summary, allow_nan=False)
    assert summary["verdict"] in {"pass", "fail", "halted", "error", "inconclusive", "dirty"}


def test_the_share_of_waiting_in_the_pipeline_is_said():
    events = run()
    job = {"pipeline": 2, "microbatches_per_replica": 3, "data_parallel": 4}
    started = next(event for event in events if event.kind == "run_started")
    experiment = dict(started.fields["experiment"]) | {"job": job}
    changed = replace(started, fields={**started.fields, "experiment": experiment})
    summary = summarized([changed if event is started else event for event in events])
    assert summary["pipeline_bubble_ratio"] == 0.25
    assert any("waits 25% of a fault-free step" in caveat for caveat in summary["caveats"])
    job["pipeline"] = 1
    summary = summarized([changed if event is started else event for event in events])
    assert summary["pipeline_bubble_ratio"] == 0.0
    assert not any("waits" in caveat for caveat in summary["caveats"])


def test_lines_that_cannot_be_read_may_have_said_anything():
    events = run()
    assert summarized(events)["verdict"] == "pass"
    summary = summarized(events, unreadable=[7, 9])
    assert (summary["verdict"], summary["exit_code"]) == ("inconclusive", 5)
    assert any("2 lines of the log cannot be read" in reason for reason in summary["reasons"])


def test_earlier_names_of_keys_are_written_and_read():
    now = replace(UNKNOWN, baseline_loss=2.5, baseline_planned=True)
    written = to_json(now)
    assert (written["baseline_loss"], written["twin_loss"], written["twin_planned"]) == (2.5, 2.5, True)
    old = {key: value for key, value in written.items() if not key.startswith("baseline_")}
    assert read_summary(old) == read_summary(written) == now
    assert Gate.parse("twin_loss < 3").metric == Gate.parse("baseline_loss < 3").metric


def test_a_summary_needs_all_its_parts_and_a_part_all_its_figures():
    parts = [unknown(base) for base in Summary.__bases__]
    assert Summary.of(*parts) == read_summary({}) == UNKNOWN
    with pytest.raises(TypeError, match="compute_cpu_seconds"):
        Summary.of(*(part for part in parts if not isinstance(part, MachineFigures)))
    with pytest.raises(TypeError, match="diverged_units"):
        StateFigures(unfit_steps=0)
