from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from harness.judging.verdict import EXIT_CODES, WORST_FIRST
from mecefo_runtime.system.events import Event
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, run, shifted

pytestmark = pytest.mark.unit

HARD = "throughput_drop <= 1%"


def verdict_of(events: list[Event]) -> tuple[str, int]:
    summary = summarized(events)
    assert summary["reasons"]
    return summary["verdict"], summary["exit_code"]


def no(events: list[Event], *kinds: str) -> list[Event]:
    return [event for event in events if event.kind not in kinds]


@pytest.mark.parametrize(
    ("knobs", "verdict", "code"),
    [
        ({}, "pass", "passed"),
        ({"gates": ["throughput_drop <= 30%", "recovery p95 < 1", "loss_deviation < 2%"]}, "pass", "passed"),
        ({"faults": (Fault(role="coordinator"),)}, "pass", "passed"),
        ({"faults": (Fault(), Fault(node=2, during_regroup=True))}, "pass", "passed"),
        ({"faults": (Fault(repair_steps=None),)}, "pass", "passed"),
        ({"baseline": False}, "pass", "passed"),
        ({"gates": [HARD]}, "fail", "gate_failed"),
        ({"main_loss_ratio": 1.05, "gates": ["loss_deviation < 2%"]}, "fail", "gate_failed"),
        ({"faults": (Fault(recovers=False),)}, "fail", "not_recovered"),
        ({"faults": (Fault(recovers=False),), "job_fails": True}, "fail", "job_died"),
        # A run that was to have none: it says what the job does without.
        ({"faults": ()}, "pass", "passed"),
        ({"faults": (Fault(fires=False),)}, "inconclusive", "not_injected"),
        ({"faults": (Fault(verified=False),)}, "inconclusive", "not_verified"),
        ({"faults": (Fault(step=1),)}, "inconclusive", "no_step_before_fault"),
        ({"baseline": False, "gates": ["loss_deviation < 2%"]}, "inconclusive", "gate_undecided"),
        ({"gates": ["speed > 1"]}, "inconclusive", "gate_undecided"),
        ({"cut_off_after_step": 30}, "inconclusive", "audit_missing"),
        ({"cut_off_after_step": 10}, "inconclusive", "log_cut_off"),
        ({"residue": None}, "inconclusive", "audit_missing"),
        ({"ended": "interrupted"}, "halted", "interrupted"),
        ({"ended": "halted"}, "halted", "halt_condition"),
        ({"ended": "failed"}, "error", "run_failed"),
        ({"residue": (4711,)}, "dirty", "processes_left"),
        ({"faults": (Fault(undone=False),)}, "dirty", "not_undone"),
    ],
)
def test_each_ending_has_its_verdict(knobs: dict[str, Any], verdict: str, code: str):
    summary = summarized(run(**knobs))
    assert (summary["verdict"], summary["exit_code"]) == (verdict, EXIT_CODES[verdict])
    assert summary["reason_codes"][0]["code"] == code
    assert summary["reason_codes"][0]["verdict"] == verdict


@pytest.mark.parametrize(
    ("knobs", "verdict"),
    [
        ({"gates": [HARD], "residue": (4711,)}, "dirty"),
        ({"ended": "failed", "residue": (4711,)}, "dirty"),
        ({"ended": "interrupted", "residue": (4711,)}, "dirty"),
        ({"gates": [HARD], "ended": "failed"}, "error"),
        ({"gates": [HARD], "ended": "interrupted"}, "halted"),
        ({"gates": [HARD], "baseline": False, "faults": (Fault(), Fault(step=50, node=2, verified=False))}, "fail"),
        ({"faults": (Fault(verified=False),), "gates": [HARD]}, "inconclusive"),
    ],
)
def test_the_worst_wins(knobs: dict[str, Any], verdict: str):
    assert verdict_of(run(**knobs))[0] == verdict


def test_the_exit_codes_are_the_documented_ones():
    assert EXIT_CODES == {"pass": 0, "fail": 1, "halted": 2, "error": 3, "inconclusive": 5, "dirty": 6}
    assert set(WORST_FIRST) == set(EXIT_CODES)


def test_the_reasons_of_the_verdict_come_first():
    first, second, *_ = summarized(run(gates=[HARD], residue=(4711,)))["reason_codes"]
    assert first == {"code": "processes_left", "verdict": "dirty", "processes": [4711]}
    assert (second["code"], second["gate"], second["verdict"]) == ("gate_failed", HARD, "fail")


def test_a_step_that_a_new_membership_skipped_fails():
    # The ranks that are left after the loss begin with the step after the one that they broke off.
    steps = [e for e in run() if e.kind == "step_committed" and e.job == "main"]
    skipped = next(after for one, after in pairwise(steps) if one.fields["epoch"] != after.fields["epoch"])
    summary = summarized([e for e in run() if e != skipped])
    assert summary["verdict"] == "fail"
    assert (summary["reason_codes"][0]["code"], summary["reason_codes"][0]["gate"]) == (
        "gate_failed",
        "steps_lost == 0",
    )


def test_a_sample_that_was_used_twice_fails():
    events = [shifted(e, samples_checksum=1) if e.kind == "step_committed" and e.step == 44 else e for e in run()]
    assert verdict_of(events)[0] == "fail"


def test_an_undo_that_succeeded_in_the_end_is_clean():
    undone = next(event for event in run() if event.kind == "undone")
    failed = replace(undone, kind="undo_failed", monotonic_seconds=undone.monotonic_seconds - 0.01)
    assert verdict_of([*run(), failed])[0] == "pass"
    assert verdict_of([*no(run(), "undone"), failed])[0] == "dirty"


def test_an_undo_of_another_incident_cleans_nothing():
    undone = next(event for event in run() if event.kind == "undone")
    failed = replace(shifted(undone, incident=7), kind="undo_failed", monotonic_seconds=undone.monotonic_seconds - 0.01)
    assert verdict_of([*run(), failed])[0] == "dirty"


def test_what_is_still_to_be_undone_is_dirty():
    events = [shifted(e, undo_pending=["incident 0"]) if e.kind == "residue" else e for e in run()]
    assert verdict_of(events)[0] == "dirty"


def test_what_else_was_left_behind_is_dirty_and_said():
    left = [{"kind": "mount", "what": "tmpfs on /run/x"}, {"kind": "file", "what": "/run/y"}]
    events = [shifted(e, left=left) if e.kind == "residue" else e for e in run()]
    assert verdict_of(events)[0] == "dirty"
    said = " ".join(summarized(events)["reasons"])
    assert "left behind: mount tmpfs on /run/x, file /run/y; `chaos heal`" in said
    assert verdict_of([shifted(e, left=[]) if e.kind == "residue" else e for e in run()])[0] == "pass"


def test_a_job_that_fails_before_any_fault_has_failed_by_itself_once_it_trained():
    events = run(faults=(Fault(recovers=False),), job_fails=True)
    events = no(events, "held", "injected", "verified", "released", "detected")
    assert verdict_of(events) == ("fail", 1)
    assert verdict_of(no(events, "step_committed")) == ("error", 3)


def test_a_job_that_dies_later_of_what_it_had_survived_fails():
    events = run(ended="failed")
    ended = next(event for event in events if event.kind == "job_ended")
    assert verdict_of([*events, replace(ended, kind="job_failed", fields={"reason": "out of memory"})])[0] == "fail"


COORDINATOR = {"role": "coordinator", "rank": None, "node": None, "pid": 4711}
RANK = {"role": "rank", "rank": 3, "node": 1, "pid": 4712}


@pytest.mark.parametrize(
    ("stopped", "by_fault", "verdict", "other"),
    [
        ([], [], "fail", None),
        ([COORDINATOR], [], "inconclusive", "coordinator"),
        ([COORDINATOR, RANK], [RANK], "inconclusive", "coordinator"),
        ([RANK], [RANK], "fail", None),
    ],
    ids=["nobody", "by others", "by both", "by the fault"],
)
def test_who_stands_still_by_another_hand_does_not_fail_of_the_fault(stopped, by_fault, verdict, other):
    events = [
        shifted(event, processes=by_fault) if event.kind == "injected" else event
        for event in run(faults=(Fault(lasts_steps=100),), ended="failed")
        if event.kind != "undone"
    ]
    ended = next(event for event in events if event.kind == "job_ended")
    failed = replace(ended, kind="job_failed", fields={"reason": "no step was committed", "stopped": stopped})
    summary = summarized([*events, failed])
    (died,) = [one for one in summary["reason_codes"] if one["code"] == "job_died"]
    expected = other and {"code": "stopped_by_signal", "processes": [{"role": other}]}
    assert (summary["verdict"], died.get("other")) == (verdict, expected)


def test_the_loss_of_the_baseline_is_not_the_loss_of_the_job():
    baseline_ended = next(event for event in run() if event.kind == "job_ended" and event.job == "twin")
    assert verdict_of([*run(), replace(baseline_ended, kind="job_failed", fields={"reason": "?"})])[0] == "pass"


def test_a_log_cut_off_in_the_middle_of_a_recovery_does_not_fail():
    events = run()
    injected = next(event.monotonic_seconds for event in events if event.kind == "verified")
    verdict, _ = verdict_of([event for event in events if event.monotonic_seconds <= injected])
    assert verdict == "inconclusive"


def test_a_loss_that_is_no_number_fails_after_a_fault_and_tells_nothing_before():
    def with_nan_at(step: int) -> list[Event]:
        return [shifted(e, loss=float("nan")) if e.kind == "step_committed" and e.step == step else e for e in run()]

    assert verdict_of(with_nan_at(40))[0] == "fail"
    assert verdict_of(with_nan_at(10))[0] == "inconclusive"


def test_an_incident_that_never_fired_says_why():
    planned = next(event for event in run() if event.kind == "incidents_planned")
    why = {"code": "never_fired", "why": {"code": "job_ended_before", "trigger": "step=700"}}
    never = replace(planned, kind="unverified", fields={"incident": 0, "why": why})
    summary = summarized([*run(faults=(Fault(fires=False),)), never])
    assert summary["verdict"] == "inconclusive" and summary["incidents"][0]["why"] == why
    assert why in [one["why"] for one in summary["reason_codes"] if one["code"] == "not_injected"]


def test_faults_that_chance_planned_and_that_did_not_fire_were_planned():
    events = run(faults=[Fault(fires=False)])
    never = replace(events[0], kind="not_due", fields={"incident": 0, "reason": "the job ended"})
    summary = summarized([*events, never])
    assert summary["verdict"] == "inconclusive"
    assert summary["reasons"][0] == (
        "none of the planned faults fired (incident 0: the job ended), so none was verified"
    )


def test_phases_in_an_impossible_order_prove_nothing():
    assert verdict_of(no(run(), "detected"))[0] == "inconclusive"


@pytest.mark.parametrize("broken", ["accounting.partition", "throughput.measure", "judge", "caveats"])
def test_a_checker_that_crashes_never_passes(broken: str, monkeypatch: pytest.MonkeyPatch):
    def crash(*_: object) -> None:
        raise RuntimeError("the checker is broken")

    monkeypatch.setattr(f"harness.judging.summarize.{broken}", crash)
    summary = summarized(run())
    assert (summary["verdict"], summary["exit_code"]) == ("inconclusive", 5)
    assert any(one["code"] == "analysis_failed" and "is broken" in one["error"] for one in summary["reason_codes"])


def test_fields_that_make_no_sense_never_pass():
    events = [
        shifted(e, ranks=17, epoch="x", loss="?") if e.kind in ("injected", "step_committed") else e for e in run()
    ]
    summary = summarized(events)
    assert (summary["verdict"], summary["steps_lost"], summary["incidents"]) == ("inconclusive", None, [])
