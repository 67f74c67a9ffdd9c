"""In which steps phases came: what is kept of it, and how it reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos import step_ranges
from chaos.faults.phase_steps import PhaseSteps
from chaos.in_process.agent import STEADY_STEPS
from chaos.in_process.protocol import Came
from chaos.step_ranges import Steps, on_other_ranks, ranks_text

pytestmark = pytest.mark.unit

interval = st.tuples(st.integers(1, 60), st.integers(0, 8)).map(lambda one: (one[0], one[0] + one[1]))


@given(st.lists(interval, max_size=20), st.integers(1, 70))
def test_it_is_the_set_of_its_steps(added, step):
    steps, members = Steps(added), {one for first, last in added for one in range(first, last + 1)}
    assert [(one in steps) for one in range(80)] == [one in members for one in range(80)]
    ends = [end for both in steps.intervals for end in both]
    assert ends == sorted(ends)
    assert all(later[0] > earlier[1] + 1 for earlier, later in zip(steps.intervals, steps.intervals[1:], strict=False))
    assert bool(steps) == bool(members)
    if members:
        assert steps.nearest(step) == min(members, key=lambda one: (abs(one - step), one))


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([20], "step 20"),
        ([20, 40, 60], "steps 20, 40 and 60"),
        (range(20, 981, 20), "every 20 steps from 20 to 980"),
        (range(1, 31), "steps 1 to 30"),
        ([1, 2, 3, 12, 13], "steps 1 to 3 and 12 to 13"),
        ([20, 41, 60, 90, 101, 980], "steps 20, 41, 60 and others, up to 980"),
        ([], "no step"),
    ],
)
def test_how_it_reads(steps, text):
    assert str(Steps((step, step) for step in steps)) == text


def test_a_long_run_takes_bounded_memory_and_keeps_its_first_and_last_steps(monkeypatch):
    monkeypatch.setattr(step_ranges, "MAX_INTERVALS", 10)
    steps = Steps((step, step) for step in range(20, 20_001, 20))
    assert len(steps.intervals) == 10
    assert str(steps) == "steps 20, 40, 60 and others, up to 20000"


def test_a_phase_of_every_step_is_known_up_to_the_newest_step_until_its_rank_is_gone():
    phases = PhaseSteps()
    for step in (1, 2, 3):
        phases.came(2, Came(step, "forward", is_steady=step == STEADY_STEPS))
    assert str(phases.of("forward", (2,), 9)) == "steps 1 to 9"
    phases.left(2, 9)
    assert str(phases.of("forward", (2,), 50)) == "steps 1 to 9"
    phases.came(2, Came(30, "forward"))
    assert str(phases.of("forward", (2,), 50)) == "steps 1 to 9 and 30"


def test_a_gap_ends_where_the_agent_says():
    phases = PhaseSteps()
    for step in (1, 2, 3):
        phases.came(0, Came(step, "checkpoint", is_steady=step == STEADY_STEPS))
    phases.came(0, Came(20, "checkpoint", ended=7))
    assert phases.of("checkpoint", None, 99).intervals == [(1, 7), (20, 20)]


def test_events_of_saves_count_for_ranks_whose_agent_does_not_report_phases():
    phases = PhaseSteps()
    for rank, step in ((1, 40), (1, 20), (3, 20), (1, 20)):
        phases.saved(rank, step)
    assert (phases.ranks_of("checkpoint"), phases.ranks_of("forward")) == ((1, 3), ())
    assert str(phases.of("checkpoint", (1,), 99)) == "steps 20 and 40"
    assert phases.phases_of((1,)) == {"checkpoint"} and phases.phases_of((2,)) == frozenset()


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([5, 4], "ranks 4 and 5"),
        (range(16), "ranks 0 to 15"),
        ([0, 2, 3, 4, 9], "ranks 0, 2 to 4 and 9"),
    ],
)
def test_ranks_read_as_ranges(ranks, text):
    assert ranks_text(ranks) == text


def test_who_saves_instead():
    steps = Steps([(20, 20), (40, 40)])
    assert on_other_ranks("checkpoint", (1,), (0,), steps, "--on rank=0") == (
        "rank 1 saves no checkpoint; rank 0 does, in steps 20 and 40: write --on rank=0"
    )
    assert on_other_ranks("forward", (1, 2), (0, 3), steps, None) == (
        "ranks 1 and 2 have no forward phase; ranks 0 and 3 have, in steps 20 and 40"
    )
