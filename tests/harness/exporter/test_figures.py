"""What is exported while a run goes on is what its report says afterwards."""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.analysis import accounting
from harness.analysis.accounting import BADPUT_CAUSES
from harness.exporter.figures import Figures
from mecefo_runtime.system.events import BASELINE_JOB, Event
from mecefo_runtime.system.records import RECORDS
from mecefo_runtime.training.exporter import STEP_SECONDS_BUCKETS
from tests.examples import FEW
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, Kill, run

pytestmark = pytest.mark.unit

TWO_LOSSES = (Fault(step=15, node=1, repair_steps=10), Fault(step=40, node=2, repair_steps=None))
SLOW = (Fault(kind="slow-rank", lasts_steps=10),)


def served(events):
    figures = Figures()
    for event in events:
        figures.feed(event)
    return figures


def undone_later(events):
    """The same with a second until the undo, and sorted again: a fault that lasts for a time."""
    later = [replace(e, monotonic_seconds=e.monotonic_seconds + (e.kind == "undone")) for e in events]
    return sorted(later, key=lambda event: event.monotonic_seconds)


def left_out(events, steps):
    """The same, with `steps` of the main job left out as rejected."""
    return [
        replace(e, fields={**e.fields, "skipped": True})
        if e.kind == "step_committed" and e.job != BASELINE_JOB and e.step in steps
        else e
        for e in events
    ]


def assert_agrees(figures, summary):
    assert figures.state.num_unread == 0
    times = figures.timeline
    assert len(times.steps.first) == summary["steps_committed"]
    assert len(times.steps.redone) == summary["steps_repeated"]
    assert figures.throughput_drop_ratio == summary["throughput_drop_ratio"]
    assert figures.steps_lost == summary["steps_lost"]
    if summary["status"] != "cut off":
        told = figures.told_seconds()
        assert sum(told.values()) == pytest.approx(summary["wall_clock_seconds"])
        assert told["productive"] == pytest.approx(summary["productive_seconds"])
        assert {cause: told[cause] for cause in BADPUT_CAUSES} == pytest.approx(summary["badput_seconds"])
        assert figures.goodput_ratio(1e9) == pytest.approx(summary["goodput_ratio"])
    verified = sum(incident["verified"] for incident in summary["incidents"])
    assert sum(n for (_, outcome), n in figures.outcomes.items() if outcome == "verified") == verified
    # The newest of a kind is what is shown.
    newest = {incident["fault"]: incident for incident in summary["incidents"] if incident["injected"]}
    for fault, incident in newest.items():
        shown = figures.newest[fault]
        assert shown.recovery_seconds == incident["recovery_seconds"]
        assert shown.phases_seconds == incident["phases_seconds"]
    recovered = sum(incident["recovery_seconds"] is not None for incident in summary["incidents"])
    assert sum(figures.recoveries.values()) == recovered


@pytest.mark.parametrize(
    "events",
    [
        run(),
        run(faults=()),
        run(faults=TWO_LOSSES),
        run(faults=[Fault(role="coordinator", kind="kill-process")]),
        undone_later(run(faults=[Fault(role="checkpoint", kind="hide-checkpoint")])),
        left_out(run(), range(20, 26)),
        left_out(run(), range(20, 61)),
        run(faults=[Fault(verified=False)]),
        run(faults=[Fault(fires=False)]),
        run(faults=[Fault(recovers=False)], job_fails=True),
        run(faults=[Fault(recovers=False)]),
        run(faults=[Fault(), Fault(node=2, during_regroup=True)]),
        run(ended="interrupted"),
        run(cut_off_after_step=30),
        run(jitter_ratio=0.1),
        run(faults=SLOW, kills=[Kill(40, 5)]),
        run(faults=SLOW, kills=[Kill(40, 5, back_at=50)]),
        run(faults=SLOW, kills=[Kill(25, 5, back_at=50)]),
        run(faults=[Fault(step=30)], kills=[Kill(12, 7, back_at=20)]),
        run(faults=[Fault(step=30)], kills=[Kill(12, 7)]),
        run(faults=[Fault(repair_steps=None)], kills=[Kill(40, 7)]),
        run(faults=(), kills=[Kill(30, 7)]),
        run(faults=SLOW, kills=[Kill(60, 7)]),
    ],
    ids=[
        "node lost",
        "no faults",
        "two losses",
        "coordinator",
        "checkpoint hidden for a time",
        "some steps left out",
        "every step left out",
        "unverified",
        "never fired",
        "job died",
        "no recovery",
        "second loss in the regroup",
        "interrupted",
        "cut off",
        "noise",
        "killed after a fault",
        "killed after a fault, and back",
        "killed under a fault",
        "killed before a fault, and back",
        "killed before a fault",
        "killed beside ranks that are not repaired",
        "killed without any fault",
        "killed at the last step",
    ],
)
def test_the_figures_are_those_of_the_summary(events):
    assert_agrees(served(events), summarized(events))


@given(
    st.lists(
        st.builds(
            Fault,
            step=st.integers(8, 50),
            node=st.integers(0, 3),
            repair_steps=st.sampled_from([None, 5, 20]),
            role=st.sampled_from([None, None, "coordinator"]),
            verified=st.booleans(),
        ),
        max_size=3,
        unique_by=(lambda fault: fault.step, lambda fault: fault.node),
    ),
    st.sampled_from([0.0, 0.15]),
)
# One step runs under the end of one fault and under the start of the next.
@example(
    [Fault(step=24, role="coordinator", node=1, repair_steps=None), Fault(step=27, node=2, repair_steps=None)], 0.0
)
def test_whatever_affects_the_figures_are_those_of_the_summary(faults, jitter_ratio):
    events = run(faults=sorted(faults, key=lambda fault: fault.step), jitter_ratio=jitter_ratio, baseline=False)
    assert_agrees(served(events), summarized(events))


def test_ranks_dip_and_come_back():
    state, seen = Figures(), []
    for event in run():
        state.feed(event)
        counts = tuple(state.rank_counts.values())
        if not seen or seen[-1] != counts:
            seen.append(counts)
    assert seen[:3] == [(0, 0, 0), (8, 0, 0), (7, 1, 0)]
    assert seen[seen.index((0, 8, 0)) :] == [(0, 8, 0), (0, 6, 2), (0, 8, 0)]


def test_a_fault_is_in_force_from_its_injection_to_its_repair():
    state, changes = Figures(), []
    for event in run():
        before = dict(state.active)
        state.feed(event)
        if dict(state.active) != before:
            changes.append((event.kind, state.active["kill-node"]))
    assert changes == [("incidents_planned", 0), ("injected", 1), ("repair_started", 0)]


def test_a_fault_of_no_rank_is_in_force_until_it_is_undone():
    state, changes = Figures(), []
    for event in undone_later(run(faults=[Fault(role="checkpoint", kind="hide-checkpoint")])):
        if event.kind == "injected":
            event = replace(event, fields={**event.fields, "goes_on": True})
        before = dict(state.active)
        state.feed(event)
        if dict(state.active) != before:
            changes.append((event.kind, state.active["hide-checkpoint"]))
    assert changes == [("incidents_planned", 0), ("injected", 1), ("undone", 0)]


def test_what_was_lost_stays_lost_until_the_job_is_over():
    events = run(faults=[Fault(repair_steps=None)], baseline=False)
    before_the_end = served(event for event in events if event.kind not in ("job_ended", "run_ended"))
    assert before_the_end.active == {"kill-node": 1}
    assert before_the_end.rank_counts == {"starting": 0, "alive": 6, "lost": 2}
    assert served(events).active == {"kill-node": 0}


def test_the_baseline_is_not_exported():
    events = run()
    alone = served(event for event in events if event.job != BASELINE_JOB)
    both = served(events)
    assert len(both.timeline.steps.first) == len(alone.timeline.steps.first) == 60
    assert both.told_seconds() == alone.told_seconds()
    assert not both.timeline.is_running


def test_an_undo_is_pending_until_it_is_done():
    state = served(event for event in run() if event.kind != "undone")
    assert state.undo_pending == 0  # the audit has the last word
    state = served(event for event in run() if event.kind not in ("undone", "residue"))
    assert state.undo_pending == 1


def test_steps_that_are_redone_are_lost():
    events = run(faults=(), steps=20, baseline=False)
    commits = [event for event in events if event.kind == "step_committed"]
    again = [
        replace(
            event,
            monotonic_seconds=event.monotonic_seconds + 50.0,
            fields={
                **event.fields,
                "epoch": 7,
                "began_monotonic": event.fields["began_monotonic"] + 50.0,
                "committed_monotonic": event.fields["committed_monotonic"] + 50.0,
            },
        )
        for event in commits[15:]
    ]
    late = [event for event in events if event.monotonic_seconds > commits[-1].monotonic_seconds]
    late = [replace(event, monotonic_seconds=event.monotonic_seconds + 60.0) for event in late]
    whole = [event for event in events if event.monotonic_seconds <= commits[-1].monotonic_seconds] + again + late
    state = served(whole)
    assert (len(state.timeline.steps.first), len(state.timeline.steps.redone), state.steps_lost) == (20, 5, 5)
    assert_agrees(state, summarized(whole))


@pytest.mark.parametrize("undone_at", [-0.1, 0.5], ids=["undone before they were back", "undone after it"])
def test_a_fault_that_cuts_off_or_freezes_ends_when_it_is_undone(undone_at):
    """Not when the ranks that were given up are back: until then, and no longer, steps are charged to it."""
    events = run(faults=[Fault(kind="isolate-node")], baseline=False, jitter_ratio=0.2)
    back = next(event.monotonic_seconds for event in events if event.kind == "rejoined")
    told = []
    for event in events:
        if event.kind == "injected":
            event = replace(event, fields={**event.fields, "goes_on": True, "is_loss": False})
        elif event.kind == "undone":
            event = replace(event, monotonic_seconds=back + undone_at)
        if event.kind != "repair_started":
            told.append(event)
    told.sort(key=lambda event: event.monotonic_seconds)
    summary, seconds = summarized(told), served(told).told_seconds()
    assert summary["badput_seconds"]["degraded_speed"] > 0
    assert {cause: seconds[cause] for cause in BADPUT_CAUSES} == pytest.approx(summary["badput_seconds"])


def test_a_fault_of_an_instant_ends_when_those_are_back_who_were_given_up_for_it():
    """A rank that is held on a busy machine may be taken for dead: it comes back by itself, without a repair."""
    events = [
        replace(event, fields={**event.fields, "is_loss": False}) if event.kind == "injected" else event
        for event in run(faults=[Fault(kind="bit-flip")], baseline=False, jitter_ratio=0.2)
        if event.kind not in ("repair_started", "undone")
    ]
    back = next(event for event in events if event.kind == "rejoined")
    at = back.monotonic_seconds + 1.0
    undone = replace(back, kind="undone", source="injector", monotonic_seconds=at, fields={"incident": 0})
    whole = sorted([*events, undone], key=lambda event: event.monotonic_seconds)
    summary = summarized(whole)
    assert_agrees(served(whole), summary)
    assert summary["num_steps_after"] > 10
    assert summary["throughput_drop_ratio"] == pytest.approx(summarized(events)["throughput_drop_ratio"])


@pytest.mark.parametrize("kind", ["interrupted", "halted", "aborted"])
def test_a_job_that_was_ended_may_have_been_about_to_notice(kind):
    story = run(faults=[Fault(recovers=False)], job_fails=True, baseline=False)
    (injected,) = [event for event in story if event.kind == "injected"]
    before = [event for event in story if event.monotonic_seconds <= injected.monotonic_seconds]
    later = [replace(injected, monotonic_seconds=injected.monotonic_seconds + after) for after in (1.0, 2.0, 3.0)]
    events = [
        *before,
        replace(later[0], kind=kind, fields={}),
        replace(later[1], kind="job_ended", fields={"outcome": "stopped"}),
        replace(later[2], kind="run_ended", fields={"reason": kind}),
    ]
    seconds = served(events).told_seconds()
    assert seconds["detection"] == 0 == summarized(events)["badput_seconds"]["detection"]


def test_a_fault_at_the_last_step_leaves_nothing_to_notice():
    events = [event for event in run(steps=20, baseline=False) if event.kind not in ("detected", "isolated")]
    injected = next(event.monotonic_seconds for event in events if event.kind == "injected")
    began = injected - 0.01
    late = [
        replace(e, fields={**e.fields, "began_monotonic": began}) if e.kind == "step_committed" and e.step == 20 else e
        for e in events
        if e.kind not in ("layout", "regrouped") or e.monotonic_seconds < injected
    ]
    summary, seconds = summarized(late), served(late).told_seconds()
    assert summary["badput_seconds"]["detection"] == 0
    assert {cause: seconds[cause] for cause in BADPUT_CAUSES} == pytest.approx(summary["badput_seconds"])


def test_a_step_that_is_said_twice_counts_once():
    events = run(faults=(), steps=10, baseline=False)
    state = Figures()
    for event in events:
        state.feed(event)
        state.feed(replace(event, fields={**event.fields, "repeated": True}))
    assert len(state.timeline.steps.first) == 10


def test_a_step_that_nobody_told_is_missing_at_the_end():
    events = [event for event in run(faults=(), steps=30, baseline=False) if event.step not in (7, 8, 20)]
    state = served(events)
    assert state.steps_lost == 3 == summarized(events)["steps_lost"]


@FEW
@given(st.integers(0, 2**32))
def test_news_that_come_a_little_late_change_little(seed):
    """Processes report over sockets of their own: events arrive out of order, by milliseconds."""
    draw = random.Random(seed)
    events = run(faults=TWO_LOSSES, baseline=False)
    arrived = sorted(events, key=lambda event: event.monotonic_seconds + draw.uniform(0.0, 0.004))
    summary, state = summarized(events), served(arrived)
    assert len(state.timeline.steps.first) == summary["steps_committed"]
    assert sum(state.told_seconds().values()) == pytest.approx(summary["wall_clock_seconds"], rel=1e-3)
    assert state.goodput_ratio(1e9) == pytest.approx(summary["goodput_ratio"], abs=0.02)
    recovery = summary["incidents"][-1]["recovery_seconds"]
    assert state.newest["kill-node"].recovery_seconds == pytest.approx(recovery, abs=0.15)


def test_a_detection_that_comes_late_is_charged_to_the_steps_since_the_fault():
    events = run(faults=[Fault(repair_steps=None)], baseline=False)
    lost = {"lost": [2, 3], "how": "heartbeat", "epoch": 1}
    at = next(index for index, event in enumerate(events) if event.kind == "job_ended")
    late = replace(events[at], kind="detected", source="coordinator", fields=lost)
    heard = [event for event in (*events[:at], late, *events[at:]) if event.kind != "detected" or event is late]
    figures, told = Figures(), {}
    for event in heard[:-1]:
        figures.feed(event)
        now = dict(figures.told_seconds())
        # What was told is not taken back while the run goes on.
        assert all(now[cause] >= seconds for cause, seconds in told.items())
        told = now
    # Corrected at its end, all the time since the fault was detection.
    figures.feed(heard[-1])
    assert figures.told_seconds()["detection"] > 4.0
    assert figures.told_seconds()["productive"] < told["productive"] - 3.0
    assert_agrees(figures, summarized(heard))


def test_what_a_fault_takes_is_told_when_it_is_known():
    """Time that turns out to be detection must not have been told as anything else."""
    events = run(faults=[Fault()], baseline=False)
    injected = next(event.monotonic_seconds for event in events if event.kind == "injected")
    figures, told = Figures(), {}
    for event in events:
        figures.feed(event)
        now = dict(figures.told_seconds())
        if event.kind != "run_ended":
            assert all(now[cause] >= seconds for cause, seconds in told.items())
        if event.kind in ("verified", "detected", "isolated", "layout") and event.monotonic_seconds > injected:
            assert now == told or figures.newest["kill-node"].committed is not None
        told = now


@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": "x"},
        {"began_monotonic": []},
        {"tokens": "many"},
        {"loss": {}},
        {"committed_monotonic": "soon"},
    ],
)
def test_an_event_that_makes_no_sense_is_counted_and_left_out(fields):
    events = run(faults=(), steps=10, baseline=False)
    at = next(index for index, event in enumerate(events) if event.kind == "step_committed" and event.step == 5)
    events[at] = replace(events[at], fields={**events[at].fields, **fields})
    state = served(events)
    assert state.state.num_unread == 1
    assert len(state.timeline.steps.first) >= 9


def test_nonsense_of_every_kind_is_survived():
    draw = random.Random(7)
    kinds = sorted(RECORDS)
    state = Figures()
    values = (None, -1, 10**18, "x", [], {}, [1, "x"], float("nan"), {"replicas": 3})
    for number in range(3000):
        names = ("incident", "ranks", "lost", "epoch", "layout", "members", "fault", "incidents", "reason", "fields")
        fields = {name: draw.choice(values) for name in draw.sample(names, 4)}
        state.feed(Event(draw.choice(kinds), "rank", 0.0, float(number), 1, step=draw.choice([None, 3]), fields=fields))
    assert state.state.num_unread > 0


def test_labels_are_bounded_whatever_the_log_says():
    state = Figures()
    for number in range(5000):
        fields = {"incident": number, "fault": f"fault-{number}", "ranks": [number], "target": "x"}
        state.feed(Event("injected", "injector", 0.0, float(number), 1, step=1, fields=fields))
        planned = [{"incident": number + 10_000, "fault": f"planned-{number}"}]
        state.feed(Event("incidents_planned", "conductor", 0.0, float(number), 1, fields={"incidents": planned}))
    assert len(state.active) < 200
    assert len(state.outcomes) < 500


def test_many_events_are_kept_up_with():
    """A log of many incidents and steps, many times over: by what it costs to read them, on a machine however slow."""
    story = run(faults=TWO_LOSSES, baseline=False, steps=60)
    commit = next(event for event in story if event.kind == "step_committed")
    more = []
    for number in range(20_000):
        at = commit.monotonic_seconds + 100.0 + number * 0.0001
        fields = {**commit.fields, "began_monotonic": at - 0.0001, "committed_monotonic": at, "epoch": 9}
        more.append(replace(commit, step=61 + number, monotonic_seconds=at, fields=fields))
    state = served(event for event in story if event.kind not in ("job_ended", "run_ended", "residue"))
    reading_seconds = feeding_seconds = 0.0
    for first in range(0, len(more), 500):
        lines = [event.to_json() for event in more[first : first + 500]]
        began = time.process_time()
        events = [Event.from_json(line) for line in lines]
        were_read = time.process_time()
        for event in events:
            state.feed(event)
        reading_seconds += were_read - began
        feeding_seconds += time.process_time() - were_read
    assert len(state.timeline.steps.first) == 60 + len(more)
    # Three to four times as much on the machines where it was measured: 40,000 events a second.
    assert feeding_seconds < 12 * reading_seconds


def test_what_is_long_over_is_not_computed_again(monkeypatch):
    events = run(steps=1500, baseline=False, cut_off_after_step=1500)
    figures, stretches = Figures(), []
    for event in events[:-1]:
        figures.feed(event)
    before = figures.told_seconds()["productive"]
    compute = accounting.resolve

    def counted(start, end, *arguments):
        stretches.append(start)
        return compute(start, end, *arguments)

    monkeypatch.setattr(accounting, "resolve", counted)
    figures.feed(events[-1])
    assert figures.told_seconds()["productive"] > before
    assert len(stretches) == 1 and stretches[0] > events[len(events) // 2].monotonic_seconds


def test_the_histogram_holds_every_step():
    state = served(run())
    buckets, total = state.step_seconds
    assert [bound for bound, _ in buckets][-1] == "+Inf"
    assert len(buckets) == len(STEP_SECONDS_BUCKETS) + 1
    assert buckets[-1][1] == 60
    # All but the first step and those of the regroups took 0.1 s or 0.125 s.
    assert dict(buckets)["0.15"] >= 55
    assert dict(buckets)["0.075"] == 0
    assert total == pytest.approx(60 * 0.1 + 18 * 0.025, abs=0.5)
