import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.incident import MeasuredIncident
from harness.analysis.state import build
from harness.analysis.throughput import measure
from harness.analysis.timeline import Timeline
from mecefo_runtime.system.events import Event
from tests.examples import FEW
from tests.harness import synthetic
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, run, shifted

pytestmark = pytest.mark.unit


def only(timeline: Timeline) -> MeasuredIncident:
    (incident,) = timeline.incidents
    return incident


def seconds(events: list[Event], kind: str, nth: int = 0) -> float:
    return [event.monotonic_seconds for event in events if event.kind == kind][nth]


def moved(events: list[Event], kind: str, by_seconds: float) -> list[Event]:
    return [replace(e, monotonic_seconds=e.monotonic_seconds + by_seconds) if e.kind == kind else e for e in events]


def test_the_phases_of_a_node_loss():
    incident = only(build(run()))
    assert incident.phases_seconds == pytest.approx(
        {
            "verify": synthetic.VERIFY_SECONDS,
            "detect": synthetic.DETECT_SECONDS - synthetic.VERIFY_SECONDS,
            "isolate": synthetic.ISOLATE_SECONDS,
            "regroup": synthetic.GROUP_SECONDS,
            "transfer": synthetic.TRANSFER_SECONDS,
            "first_step": 0.125,
            "restore": incident.restored - incident.committed,
            "rejoin": incident.rejoined - incident.injected,
            "repair_wait": incident.repair_started - incident.injected,
            "rejoin_after_repair": incident.rejoined - incident.repair_started,
        }
    )
    assert incident.detection_seconds == pytest.approx(synthetic.DETECT_SECONDS)
    assert incident.recovery_seconds == pytest.approx(0.005 + 0.010 + 0.020 + 0.030 + 0.125)
    assert (incident.committed_step, incident.ranks, incident.nodes) == (20, (2, 3), (1,))
    assert incident.is_phase_order_valid


def test_throughput_is_restored_by_the_first_full_speed_window_after_the_rejoin():
    timeline = build(run())
    restored = next(s for s in timeline.steps.first if s.committed_seconds == only(timeline).restored)
    # Step 38 carries the rejoin's regroup in its duration, step 39 is the first of five at full speed.
    assert restored.step == 39


def test_a_fault_that_slows_nothing_is_restored_once_its_stall_is_behind():
    timeline = build(run(degraded_step_seconds=0.1))
    assert only(timeline).restored == next(s.committed_seconds for s in timeline.steps.first if s.step == 21)


def test_no_window_of_five_steps_leaves_restored_open():
    assert only(build(run(steps=60, faults=(Fault(repair_steps=None),)))).restored is None
    assert only(build(run(steps=41))).restored is None


def test_a_step_in_flight_that_commits_after_the_fault_is_no_recovery():
    events = run()
    injected = seconds(events, "injected")
    commit = next(e for e in events if e.kind == "step_committed" and e.step == 20 and e.monotonic_seconds > injected)
    in_flight = [shifted(e, began_monotonic=injected - 0.01) if e is commit else e for e in events]
    assert only(build(in_flight)).committed_step == 21


def left_out(events: list[Event], last: int) -> list[Event]:
    """The same, with every step from 20 to `last` left out as rejected."""
    steps = range(20, last + 1)
    return [
        shifted(e, skipped=True) if e.kind == "step_committed" and e.job == "main" and e.step in steps else e
        for e in events
    ]


def test_a_step_that_was_left_out_is_no_recovery():
    incident = only(build(left_out(run(), 25)))
    assert (incident.committed_step, incident.is_left_out) == (26, False)
    assert incident.progressed == incident.committed
    assert incident.restored is not None and incident.committed is not None and incident.restored >= incident.committed


def test_when_every_step_after_the_fault_is_left_out_the_job_did_not_recover():
    events = left_out(run(baseline=False), 60)
    timeline = build(events)
    assert timeline.is_complete and only(timeline).committed is None
    assert timeline.recovered(only(timeline)) is False
    summary = summarized(events)
    assert (summary["verdict"], summary["unrecovered_incidents"]) == ("fail", 1)
    assert any("every step that began after it was rejected" in reason for reason in summary["reasons"])


def test_the_last_words_of_a_run_without_recovery():
    timeline = build(run(faults=(Fault(recovers=False),), job_fails=True))
    incident = only(timeline)
    assert incident.committed is None
    assert incident.phases_seconds["first_step"] is None
    assert timeline.recovered(incident) is False


def test_a_run_that_was_stopped_does_not_know_whether_it_would_have_recovered():
    cut = [event for event in run() if event.monotonic_seconds <= seconds(run(), "verified")]
    timeline = build(cut)
    assert timeline.run_ended is None
    assert timeline.recovered(only(timeline)) is None


def test_a_fault_after_the_last_step_began_leaves_nothing_to_recover_with():
    events = run(steps=20)
    injected = seconds(events, "injected")
    late = [
        shifted(e, began_monotonic=injected - 0.01)
        if e.kind == "step_committed" and e.step == 20 and e.job == "main"
        else e
        for e in events
    ]
    timeline = build(late)
    assert timeline.is_complete
    assert timeline.recovered(only(timeline)) is None


def test_the_loss_of_the_coordinator_has_no_membership_phases():
    incident = only(build(run(faults=(Fault(role="coordinator"),))))
    assert incident.detected is None
    assert incident.regrouped is None
    assert incident.committed_step == 21
    assert incident.lifted == pytest.approx(incident.injected + synthetic.RESTART_SECONDS)
    assert incident.is_phase_order_valid


def test_a_later_loss_is_not_the_detection_of_a_lost_coordinator():
    timeline = build(run(faults=(Fault(step=20, role="coordinator"), Fault(step=30, node=2))))
    assert [incident.detected is not None for incident in timeline.incidents] == [False, True]


def test_a_second_loss_during_the_regroup_shares_the_recovery():
    timeline = build(run(faults=(Fault(), Fault(node=2, during_regroup=True))))
    first, second = timeline.incidents
    assert first.injected < second.injected < first.regrouped
    assert first.detected < second.detected
    assert (first.regrouped, first.committed) == (second.regrouped, second.committed)
    assert first.is_phase_order_valid and second.is_phase_order_valid
    assert sum(stall.is_loss for stall in timeline.stalls) == 1


def test_the_second_loss_of_a_node_is_not_taken_for_the_first():
    timeline = build(run(steps=80, faults=(Fault(step=20), Fault(step=45))))
    first, second = timeline.incidents
    assert first.detected < first.rejoined < second.injected < second.detected < second.rejoined


def test_a_detection_before_the_verification_takes_no_time():
    incident = only(build(moved(run(), "verified", 0.004)))
    assert incident.phases_seconds["detect"] == 0.0
    assert incident.is_phase_order_valid


def test_a_detection_that_led_to_no_regroup_may_come_after_the_next_step():
    incident = MeasuredIncident(0, "partition", "the job", 10, "forward", injected=1.0, committed=1.5, detected=3.0)
    assert incident.is_phase_order_valid
    assert not replace(incident, isolated=3.1, regrouped=3.2).is_phase_order_valid
    assert not replace(incident, detected=0.5).is_phase_order_valid


def test_phases_out_of_order_are_seen():
    assert not only(build(moved(run(), "detected", 0.012))).is_phase_order_valid  # after isolated
    assert not only(build(moved(run(), "verified", -0.01))).is_phase_order_valid  # before injected
    assert not only(build([e for e in run() if e.kind != "detected"])).is_phase_order_valid  # regrouped without cause


def test_a_loss_lasts_until_its_repair_whatever_was_undone():
    incident = only(build(run()))
    assert incident.is_undone and incident.lifted == incident.repair_started
    assert only(build(run(faults=(Fault(repair_steps=None),)))).lifted is None


def test_a_fault_that_lost_nobody_lasts_until_it_is_undone():
    events = [e for e in run(faults=(Fault(repair_steps=None),)) if e.kind not in ("detected", "isolated", "regrouped")]
    assert only(build(moved(events, "undone", 1.0))).lifted == pytest.approx(seconds(run(), "verified") + 1.0)


def test_a_fault_of_no_rank_lasts_until_it_is_undone_too():
    # Of a checkpoint, say; a coordinator that comes back meanwhile has nothing to do with it.
    events = moved(run(faults=(Fault(kind="hide-checkpoint", role="checkpoint"),)), "undone", 1.0)
    timeline = build(events)
    assert only(timeline).ranks == ()
    assert only(timeline).lifted == seconds(events, "undone")
    assert measure(timeline).throughput_per_second.after is not None


def test_an_incident_that_never_fired_is_there_with_its_plan():
    incident = only(build(run(faults=(Fault(fires=False),))))
    assert (incident.fault, incident.target, incident.step, incident.injected) == ("kill-node", "node=1", 20, None)
    assert set(incident.phases_seconds.values()) == {None}


def test_rejoined_waits_for_every_rank_of_the_incident():
    events = run()
    partly = [shifted(e, ranks=[2]) if e.kind == "rejoined" else e for e in events]
    assert only(build(partly)).rejoined is None
    rest = next(shifted(e, ranks=[3]) for e in events if e.kind == "rejoined")
    rest = replace(rest, monotonic_seconds=rest.monotonic_seconds + 1.0)
    assert only(build([*partly, rest])).rejoined == rest.monotonic_seconds


def test_of_a_cut_link_only_the_end_that_was_given_up_has_to_come_back():
    events = []
    for event in frozen(run(faults=[Fault(repair_steps=15)]), is_lost=True):
        if event.kind in ("detected", "rejoined"):
            event = shifted(event, **{"lost" if event.kind == "detected" else "ranks": [3]})
        events.append(event)
    incident = only(build(events))
    assert incident.ranks == (2, 3)
    assert incident.rejoined == seconds(events, "rejoined")
    assert incident.lifted == seconds(events, "undone")


def test_steps_with_ranks_missing_are_degraded():
    timeline = build(run())
    assert [step.step for step in timeline.steps.first if timeline.is_degraded(step)] == list(range(20, 38))


def test_steps_under_a_fault_that_loses_nobody_are_degraded_until_it_is_lifted():
    def is_of_membership(event: Event) -> bool:
        return (
            event.kind in ("detected", "isolated", "layout", "regrouped", "rejoined") and event.fields.get("epoch") != 1
        )

    timeline = build([event for event in run() if not is_of_membership(event)])
    assert [step.step for step in timeline.steps.first if timeline.is_degraded(step)] == list(range(20, 35))


def frozen(events: list[Event], *, is_lost: bool) -> list[Event]:
    """The same run with a freeze for the node's loss: no repair, it thaws when that would have begun."""
    membership = ("detected", "isolated", "layout", "regrouped", "rejoined")
    kept = [
        e
        for e in events
        if e.kind != "undone" and (is_lost or e.kind not in membership or e.fields.get("reason") == "start")
    ]
    injected = next(e for e in kept if e.kind == "injected")
    kept[kept.index(injected)] = shifted(injected, goes_on=True, is_loss=False)
    repair = next(e for e in kept if e.kind == "repair_started")
    kept[kept.index(repair)] = replace(repair, kind="undone", fields={"incident": 0})
    return kept


def test_the_step_that_a_fault_comes_into_is_degraded_too():
    # A freeze for less than the heartbeat's time: nobody is lost, and the step under way waits it out.
    events = frozen(run(), is_lost=False)
    injected = seconds(events, "injected")
    step = next(event for event in events if event.kind == "step_committed" and event.step == 20)
    events[events.index(step)] = shifted(step, began_monotonic=injected - 0.05)
    timeline = build(events)
    assert next(s for s in timeline.steps.first if s.step == 20).began_seconds < injected
    assert [s.step for s in timeline.steps.first if timeline.is_degraded(s)] == list(range(20, 35))


def test_a_rank_that_was_taken_for_lost_and_thaws_needs_no_repair():
    events = frozen(run(), is_lost=True)
    incident = only(build(events))
    assert incident.detected is not None and incident.rejoined is not None
    assert incident.lifted == seconds(events, "undone")
    gone = only(build([event for event in events if event.kind != "rejoined"]))
    assert gone.lifted is None


def test_the_regroup_for_another_fault_is_not_that_of_one_that_loses_nobody():
    events = run()
    inject = {"incident": 1, "fault": "slow-data", "target": "rank=5", "ranks": [5], "goes_on": True}
    beside = [
        replace(event, fields=inject, monotonic_seconds=event.monotonic_seconds + 0.001)
        for event in events
        if event.kind in ("injected", "verified")
    ]
    lost, slow = build([*events, *beside]).incidents
    assert lost.regrouped is not None and lost.is_phase_order_valid
    assert (slow.detected, slow.isolated, slow.regrouped) == (None, None, None)
    assert slow.committed == lost.committed
    assert slow.is_phase_order_valid


def test_nothing_at_all_has_a_timeline():
    timeline = build([])
    assert timeline.started_seconds == timeline.ended_seconds
    assert timeline.incidents == ()


@FEW
@given(st.integers(min_value=0, max_value=2**16))
def test_the_order_of_the_lines_does_not_matter(seed: int):
    events = run(steps=50, faults=(Fault(), Fault(step=30, node=2)))
    kept = {event.monotonic_seconds: event for event in events}.values()  # events of one instant keep no order
    shuffled = list(kept)
    random.Random(seed).shuffle(shuffled)
    assert build(shuffled) == build(kept)


def test_whom_a_later_fault_took_the_earlier_one_need_not_bring_back():
    events = frozen(run(faults=[Fault(repair_steps=15)]), is_lost=True)
    gone = next(event for event in events if event.kind == "detected")
    back = next(event for event in events if event.kind == "rejoined")
    at = gone.monotonic_seconds + 0.01
    later = replace(gone, kind="injected", monotonic_seconds=at, fields={"incident": 1, "is_loss": True, "ranks": [3]})
    told = [shifted(gone, lost=[2]), later, replace(shifted(gone, lost=[3]), monotonic_seconds=at + 0.01)]
    rest = [event for event in events if event is not gone and event is not back]
    first, _ = build([*rest, *told, shifted(back, ranks=[2])]).incidents
    assert first.rejoined == back.monotonic_seconds


def test_a_later_detection_of_others_is_none_of_an_incident_that_was_over():
    events = run(faults=(Fault(kind="bit-flip", repair_steps=None),), baseline=False)
    committed = next(e for e in events if e.kind == "step_committed" and e.step == 21)
    gone = next(event for event in events if event.kind == "detected")
    others = shifted(gone, lost=[6], how="health")
    events.remove(gone)

    def detected(at: float) -> float | None:
        return only(build([*events, replace(others, monotonic_seconds=at)])).detected

    before = seconds(events, "injected") + 0.006
    assert detected(before) == before  # whom the job sends away while the fault is fresh is its answer to it
    assert detected(committed.monotonic_seconds + 1.0) is None
