import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.accounting import BADPUT_CAUSES, PRODUCTIVE, Account, _claims, account, partition
from harness.analysis.regroups import overlaps
from harness.analysis.state import build
from mecefo_runtime.system.events import Event
from tests.harness import synthetic
from tests.harness.synthetic import Fault, run, shifted

pytestmark = pytest.mark.unit


def books(events: list[Event]) -> Account:
    return account(partition(build(events)))


def badput(events: list[Event]) -> dict[str, float]:
    """The causes that cost anything."""
    return {cause: seconds for cause, seconds in books(events).badput_seconds.items() if seconds > 1e-9}


QUIET = {"startup": synthetic.STARTUP_SECONDS, "shutdown": synthetic.TEARDOWN_SECONDS}


def test_a_run_without_faults_loses_its_start_and_its_end():
    events = run(steps=40, faults=())
    assert badput(events) == pytest.approx(QUIET)
    assert books(events).productive_seconds == pytest.approx(40 * 0.1)
    assert books(events).goodput_ratio == pytest.approx(4.0 / 5.5)


def test_noise_is_no_badput():
    assert badput(run(steps=40, faults=(), jitter_ratio=0.2)) == pytest.approx(QUIET)


def test_every_second_of_a_node_loss_has_its_cause():
    events = run()
    assert badput(events) == pytest.approx(
        {
            **QUIET,
            "injection": synthetic.HOLD_SECONDS,
            "detection": synthetic.DETECT_SECONDS,
            "regroup": synthetic.ISOLATE_SECONDS + 2 * synthetic.GROUP_SECONDS,
            "transfer": 2 * synthetic.TRANSFER_SECONDS,
            "repeated_work": 0.05,
            "degraded_speed": 18 * 0.025,
        }
    )
    assert books(events).productive_seconds == pytest.approx(60 * 0.1)


def test_a_hold_may_come_before_word_of_the_last_commit():
    events = run()
    held = next(event for event in events if event.kind == "held")
    before = next(event for event in events if event.kind == "step_committed" and event.step == (held.step or 0) - 1)
    late = held.monotonic_seconds + synthetic.HOLD_SECONDS / 4
    events[events.index(before)] = replace(shifted(before, committed_monotonic=late), monotonic_seconds=late)
    # What is left of the last step is its own; the hold lasts on after it.
    assert badput(events)["injection"] == pytest.approx(synthetic.HOLD_SECONDS)


def test_a_degraded_layout_that_is_as_fast_costs_nothing():
    assert "degraded_speed" not in badput(run(degraded_step_seconds=0.1))


def test_the_loss_of_the_coordinator_costs_the_hold_alone():
    assert badput(run(faults=(Fault(role="coordinator"),))) == pytest.approx(
        {**QUIET, "injection": synthetic.HOLD_SECONDS + synthetic.VERIFY_SECONDS}
    )


def test_standing_still_without_a_coordinator_is_restart():
    events = run(faults=(Fault(role="coordinator"),))
    injected = next(event for event in events if event.kind == "injected")
    # Everything from the next step on comes 0.2 s later: the ranks waited for the coordinator at the boundary.
    delayed = [
        replace(
            shifted(
                event,
                **{
                    key: event.fields[key] + 0.2
                    for key in ("began_monotonic", "committed_monotonic")
                    if key in event.fields
                },
            ),
            monotonic_seconds=event.monotonic_seconds + 0.2,
        )
        if event.monotonic_seconds > injected.monotonic_seconds + 0.06 and event.kind != "coordinator_restarted"
        else event
        for event in events
    ]
    assert badput(delayed)["restart"] == pytest.approx(0.2)


def test_a_regroup_that_waits_for_a_coordinator_is_restart():
    events = run()
    gone, back = (next(e.monotonic_seconds for e in events if e.kind == kind) for kind in ("detected", "isolated"))
    coordinator = Event("process_exited", "conductor", 0, gone, 1, fields={"role": "coordinator", "exit": -9})
    restarted = Event("coordinator_restarted", "coordinator", 0, back, 1)
    planned = {"incident": 1, "fault": "kill-process", "is_loss": True, "ranks": [], "target": "role=coordinator"}
    killed = Event("injected", "injector", 0, gone, 1, fields=planned)
    assert badput([*events, killed, coordinator, restarted])["restart"] == pytest.approx(synthetic.ISOLATE_SECONDS)
    # One that dies of something else keeps them waiting all the same, but it is no restart of the run's.
    assert badput([*events, coordinator, restarted])["unplanned"] == pytest.approx(synthetic.ISOLATE_SECONDS)


def test_standing_still_without_a_coordinator_that_died_of_no_fault_is_unplanned():
    events = run(faults=())
    step = next(event for event in events if event.kind == "step_committed" and event.step == 30)
    died = step.monotonic_seconds - 0.01
    delayed = [
        replace(
            shifted(
                event,
                **{
                    key: event.fields[key] + 0.2
                    for key in ("began_monotonic", "committed_monotonic")
                    if key in event.fields
                },
            ),
            monotonic_seconds=event.monotonic_seconds + 0.2,
        )
        if event.monotonic_seconds > step.monotonic_seconds
        else event
        for event in events
    ]
    coordinator = Event("process_exited", "conductor", 0, died, 1, fields={"role": "coordinator", "exit": -9})
    restarted = Event("coordinator_restarted", "coordinator", 0, step.monotonic_seconds + 0.2, 1)
    found = badput([*delayed, coordinator, restarted])
    assert found["unplanned"] == pytest.approx(0.2)
    assert "restart" not in found


def test_a_stall_during_a_repair_is_restart():
    events = run(faults=(Fault(rejoins=False),))
    commit = next(e for e in events if e.kind == "step_committed" and e.step == 50)
    late = shifted(commit, began_monotonic=commit.fields["began_monotonic"] + 0.05)
    assert badput([late if e is commit else e for e in events])["restart"] == pytest.approx(0.05)


def test_a_step_in_flight_that_commits_at_the_regroup_is_not_repeated():
    events = run()
    commit = next(e for e in events if e.kind == "step_committed" and e.step == 20)
    held = next(e.monotonic_seconds for e in events if e.kind == "held")
    in_flight = shifted(commit, began_monotonic=held - 0.05)
    assert "repeated_work" not in badput([in_flight if e is commit else e for e in events])


@pytest.mark.parametrize("lost_ratio", [1.0, 0.25, 0.0])
def test_what_is_kept_of_a_step_that_is_completed_was_not_in_vain(lost_ratio: float):
    # Ranks that are not held go on computing meanwhile.
    repeated = max(0.0, lost_ratio * (0.05 + synthetic.HOLD_SECONDS) - synthetic.HOLD_SECONDS)
    events = run()
    whole = books(events)
    told = next(e for e in events if e.kind == "layout" and e.fields["reason"] == "loss")
    completed = replace(told, fields={**told.fields, "lost_work_ratio": lost_ratio})
    found = books([completed if e is told else e for e in events])
    assert found.badput_seconds["repeated_work"] == pytest.approx(repeated)
    assert found.productive_seconds == pytest.approx(whole.productive_seconds + 0.05 - repeated)
    others = {cause: seconds for cause, seconds in found.badput_seconds.items() if cause != "repeated_work"}
    assert others == pytest.approx({c: s for c, s in whole.badput_seconds.items() if c != "repeated_work"})


def test_a_loss_that_nobody_injected_is_unplanned_from_the_commit_before_it():
    events = [e for e in run() if e.source != "injector" and e.kind != "incidents_planned"]
    found = badput(events)
    lost_seconds = 0.05 + synthetic.HOLD_SECONDS + synthetic.DETECT_SECONDS
    regrouping_seconds = synthetic.ISOLATE_SECONDS + 2 * (synthetic.GROUP_SECONDS + synthetic.TRANSFER_SECONDS)
    assert found["unplanned"] == pytest.approx(lost_seconds + regrouping_seconds + 18 * 0.025)
    assert found.keys() <= {*QUIET, "unplanned"}


def test_steps_that_are_done_again_are_repeated_work():
    events = run(steps=40, faults=())
    last = next(e for e in events if e.kind == "step_committed" and e.step == 40)
    end = last.fields["committed_monotonic"]
    redone = replace(
        shifted(last, epoch=2, began_monotonic=end + 0.1, committed_monotonic=end + 0.2), monotonic_seconds=end + 0.2
    )
    assert badput([*events, redone])["repeated_work"] == pytest.approx(0.1)


def test_a_fault_that_nobody_notices_and_nothing_survives_is_detection_to_the_end():
    events = run(faults=(Fault(recovers=False),))
    injected, ended = (next(e.monotonic_seconds for e in events if e.kind == k) for k in ("injected", "job_ended"))
    assert badput(events)["detection"] == pytest.approx(ended - injected)


def test_incidents_answer_for_their_own_time():
    events = run(steps=80, faults=(Fault(), Fault(step=50, node=2, repair_steps=None)))
    segments = partition(build(events))
    first, second = (account(s for s in segments if s.incident == incident) for incident in (0, 1))
    assert first.badput_seconds["detection"] == pytest.approx(synthetic.DETECT_SECONDS)
    assert second.badput_seconds["repeated_work"] == pytest.approx(0.05)
    assert second.badput_seconds["degraded_speed"] == pytest.approx(31 * 0.025)
    nobody = account(s for s in segments if s.incident is None)
    assert {c for c, seconds in nobody.badput_seconds.items() if seconds} == {"startup"}
    total = math.fsum(part.wall_clock_seconds for part in (first, second, nobody))
    assert total == pytest.approx(account(segments).wall_clock_seconds, abs=1e-9)


def test_no_time_has_no_goodput():
    assert account(()).goodput_ratio is None
    assert partition(build([])) == ()


@st.composite
def stories(draw: st.DrawFn) -> list[Event]:
    """Logs that are sound, cut off, out of order, thinned out, or with times that contradict each other."""
    faults = tuple(
        Fault(
            step=draw(st.integers(1, 35)),
            node=node,
            role=draw(st.sampled_from([None, None, "coordinator"])),
            repair_steps=draw(st.sampled_from([None, 3, 15])),
            verified=draw(st.booleans()),
            recovers=draw(st.sampled_from([True, True, True, False])),
            rejoins=draw(st.booleans()),
        )
        for node in range(draw(st.integers(0, 2)))
    )
    events = run(
        steps=draw(st.integers(1, 40)), faults=faults, baseline=False, jitter_ratio=draw(st.sampled_from([0, 0.3]))
    )
    if draw(st.booleans()):
        dropped = draw(st.sets(st.integers(0, len(events) - 1), max_size=20))
        events = [event for index, event in enumerate(events) if index not in dropped]
    if events and draw(st.booleans()):
        amount = draw(st.floats(-3.0, 3.0))
        chosen = draw(st.sets(st.sampled_from(sorted({e.kind for e in events})), max_size=3))
        events = [replace(e, monotonic_seconds=e.monotonic_seconds + amount) if e.kind in chosen else e for e in events]
    return events[: draw(st.integers(0, len(events)))] if draw(st.booleans()) else events


@given(stories())
def test_the_books_always_balance(events: list[Event]):
    timeline = build(events)
    segments = partition(timeline)
    wall_clock = timeline.ended_seconds - timeline.started_seconds
    for earlier, later in itertools.pairwise(segments):
        assert earlier.end_seconds == later.start_seconds
    assert all(segment.seconds >= 0 and segment.cause in {PRODUCTIVE, *BADPUT_CAUSES} for segment in segments)
    total = account(segments)
    assert total.productive_seconds + math.fsum(total.badput_seconds.values()) == pytest.approx(wall_clock, abs=1e-9)
    parts = [account(s for s in segments if s.incident == i) for i in {s.incident for s in segments}]
    assert math.fsum(part.wall_clock_seconds for part in parts) == pytest.approx(wall_clock, abs=1e-9)
    assert total.goodput_ratio is None or 0.0 <= total.goodput_ratio <= 1.0


@given(stories())
def test_a_step_is_degraded_with_a_rank_missing_or_a_fault_in_force(events: list[Event]):
    timeline = build(events)
    for step in timeline.steps.first:
        is_missing = timeline.num_ranks is not None and timeline.members_of.get(step.epoch, 8) < timeline.num_ranks
        in_force = any(
            incident.injected < step.committed_seconds
            and step.began_seconds < (timeline.ended_seconds if incident.lifted is None else incident.lifted)
            for incident in timeline.incidents
            if incident.verified is not None and incident.ranks and incident.injected is not None
        )
        assert timeline.is_degraded(step) is (is_missing or in_force)


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6)


@given(SPANS, SPANS)
def test_overlaps_are_the_times_that_are_in_both(some: list[tuple[int, int]], others: list[tuple[int, int]]):
    found = list(overlaps(some, others))
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(found))
    for time in (number + 0.5 for number in range(12)):
        in_both = all(any(start < time < end for start, end in spans) for spans in (some, others))
        assert any(start < time < end for start, end in found) is in_both


def test_what_is_claimed_grows_with_the_steps_and_not_with_steps_times_incidents():
    def num_claims(num_faults: int) -> int:
        faults = tuple(Fault(step=20 * (1 + n), node=n % 4, repair_steps=5) for n in range(num_faults))
        return sum(1 for _ in _claims(build(run(steps=400, faults=faults, baseline=False, jitter_ratio=0.2))))

    few, many = num_claims(2), num_claims(18)
    assert many < few + 16 * 20


def test_what_training_waits_for_a_checkpoint_is_its_cost():
    events = run()
    step = next(event for event in events if event.kind == "step_committed" and event.step == 10)
    written = [
        Event("checkpoint_written", "rank", 0.0, step.monotonic_seconds + 1, 1, step=10, fields={"blocking_seconds": s})
        for s in (0.002, 0.004)
    ]
    before, after = (account(partition(build(log))) for log in (events, [*events, *written]))
    assert before.badput_seconds["checkpoint"] == 0
    assert after.badput_seconds["checkpoint"] == pytest.approx(0.004)
    assert after.wall_clock_seconds == pytest.approx(before.wall_clock_seconds)


def test_an_attempt_that_was_not_fit_is_thrown_away():
    quiet = run(steps=40, faults=())
    late = [
        replace(event, fields=event.fields | {"began_monotonic": event.fields["began_monotonic"] + 0.05})
        if event.kind == "step_committed" and event.step == 20
        else event
        for event in quiet
    ]
    step = next(event for event in late if event.kind == "step_committed" and event.step == 20)
    at = step.fields["began_monotonic"] - 0.01
    rejected = replace(step, kind="step_unfit", monotonic_seconds=at, fields={"verdict": "repeat"})
    assert badput([*late, rejected]) == pytest.approx(QUIET | {"repeated_work": 0.04})


def left_out(events: list[Event], steps: range) -> list[Event]:
    """The same, with `steps` left out as rejected."""
    return [shifted(e, skipped=True) if e.kind == "step_committed" and e.step in steps else e for e in events]


def test_a_step_that_was_left_out_is_no_productive_time():
    events = left_out(run(steps=40, faults=()), range(20, 25))
    assert badput(events) == pytest.approx(QUIET | {"repeated_work": 5 * 0.1})
    assert books(events).productive_seconds == pytest.approx(35 * 0.1)


def test_a_job_that_leaves_every_step_out_after_a_fault_noticed_it():
    events = [event for event in run(faults=[Fault(repair_steps=None)], baseline=False) if event.kind != "detected"]
    seconds = badput(left_out(events, range(20, 61)))
    assert "detection" not in seconds
    assert seconds["repeated_work"] > 41 * 0.1
