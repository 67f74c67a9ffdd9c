from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.accounting import BADPUT_CAUSES, PRODUCTIVE
from harness.report import history, wording
from harness.report.history import read, shares
from tests.examples import FEW
from tests.harness import synthetic
from tests.harness.analysis.test_attempts import restarted
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault

pytestmark = pytest.mark.unit


@given(st.lists(st.tuples(st.floats(0.001, 50), st.sampled_from("abc")), min_size=1, max_size=30), st.integers(1, 60))
def test_each_stretch_of_time_is_shared_out_whole(pieces, num_bins):
    segments, now = [], 0.0
    for seconds, cause in pieces:
        segments.append((now, now + seconds, cause))
        now += seconds
    parts = shares(segments, now, num_bins)
    for index in range(num_bins):
        assert sum(values[index] for values in parts.values()) == pytest.approx(1.0)
    for cause, values in parts.items():
        own = sum(until - since for since, until, name in segments if name == cause)
        assert sum(values) * now / num_bins == pytest.approx(own)


@FEW
@given(
    st.integers(6, 40),
    st.booleans(),
    st.floats(0.0, 0.5),
    st.sampled_from([None, 5, 15]),
)
def test_the_stretches_of_a_recovery_add_up_to_it(step, is_role, jitter, repair):
    fault = Fault(step=step, role="coordinator" if is_role else None, repair_steps=repair)
    events = synthetic.run(faults=[fault], jitter_ratio=jitter)
    (told,) = summarized(events)["incidents"]
    way = read(events).ways[0]
    assert sum(seconds for _, _, seconds in way.parts) == pytest.approx(told["recovery_seconds"])
    assert all(seconds >= 0 for _, _, seconds in way.parts)
    assert [m.seconds for m in way.milestones] == sorted(m.seconds for m in way.milestones)
    reached = {milestone.kind: milestone.seconds for milestone in way.milestones}
    assert reached["injected"] == 0.0
    assert reached["committed"] == pytest.approx(told["recovery_seconds"])


def test_segments_fill_the_wall_clock():
    events = synthetic.run()
    past = read(events)
    assert past.segments[0][0] == 0.0
    assert past.segments[-1][1] == pytest.approx(summarized(events)["wall_clock_seconds"]) == past.end_seconds
    stopped = sum(until - since for since, until in past.stopped)
    assert 0 < stopped < 0.3


def test_a_fault_is_active_until_its_ranks_are_back():
    (back,) = read(synthetic.run()).affected
    events = synthetic.run()
    rejoined = next(e for e in events if e.kind == "rejoined").monotonic_seconds
    started = next(e for e in events if e.kind == "job_started").monotonic_seconds
    assert back.until_seconds == pytest.approx(rejoined - started)
    past = read(synthetic.run(faults=[Fault(rejoins=False)]))
    (never,) = past.affected
    assert never.until_seconds == past.end_seconds


def test_what_took_no_effect_is_nowhere_active():
    assert read(synthetic.run(faults=[Fault(verified=False)])).active == ()
    assert read(synthetic.run(faults=[Fault(fires=False)])).active == ()
    assert read([]).segments == () and read([]).ways == {}


def test_faults_that_overlap_are_one_stretch():
    past = read(synthetic.run(faults=[Fault(step=20), Fault(step=25, node=2)]))
    assert len(past.affected) == 2 and len(past.active) == 1


def test_a_command_that_is_started_again_has_that_in_its_recovery():
    events = restarted(samples=4)
    (told,) = summarized(events)["incidents"]
    way = read(events).ways[0]
    assert [key for key, _, _ in way.parts] == ["restart", "first_step"]
    assert sum(seconds for _, _, seconds in way.parts) == pytest.approx(told["recovery_seconds"])
    assert "restarted" in [milestone.kind for milestone in way.milestones]


def test_every_cause_of_badput_has_words_and_a_colour():
    style = (Path(history.__file__).parent / "figures.css").read_text()
    for cause in (PRODUCTIVE, *BADPUT_CAUSES):
        assert f".cause-{cause} " in style
        assert "_" not in wording.cause_words(cause)
