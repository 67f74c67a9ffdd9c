"""What is read from the log of an emulated run, of which every time is known."""

from __future__ import annotations

import pytest

from mecefo_chaos.studies.forecast.forecast import rates_of
from mecefo_chaos.studies.papers.mecefo.emulated import EmulatedRun, NotEmulated, read_emulated
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, job_of
from tests.mecefo_chaos.studies.papers.mecefo.log import (
    CELL,
    DETECTION_SECONDS,
    EMULATION,
    FREE_SECONDS,
    HIT_SECONDS,
    LOST,
    REGROUP_SECONDS,
    SCALE,
    TRANSFER_SECONDS,
    Log,
    struck_log,
)

pytestmark = pytest.mark.unit


def struck(fetched: int = 0) -> EmulatedRun:
    return read_emulated(struck_log(fetched), CELL, 1)


def test_settled_steps_are_those_that_follow_another_of_the_same_ranks():
    run = struck()
    assert run.free_step_seconds == pytest.approx(FREE_SECONDS / SCALE)
    assert run.num_settled_steps == 5
    assert run.settled_step_seconds == pytest.approx(HIT_SECONDS / SCALE)
    assert run.plain_step_seconds == pytest.approx((HIT_SECONDS + 0.6 / 5) / SCALE)
    assert run.settled_drop_ratio() == pytest.approx(1 - FREE_SECONDS / HIT_SECONDS)
    assert run.mean_down == 1 and run.overrun_ratio == pytest.approx(0.02)
    assert run.is_usable


def test_the_forecast_beside_it_is_for_the_ranks_that_were_lost():
    rates = rates_of(job_of(CELL), METHODS[CELL.method].policy)
    rating = rates.rating(frozenset({LOST}))
    assert rating is not None and struck().predicted_step_seconds == pytest.approx(rating.step_seconds)


def test_an_event_costs_what_steps_do_not_explain_regroups_in_real_seconds():
    run = struck()
    assert run.num_events == 1
    assert run.regroup_real_seconds == pytest.approx(REGROUP_SECONDS)
    # Work thrown away, state on its way, a longer first step, and a disturbance that counts for nobody's step.
    other_seconds = (2.0 + DETECTION_SECONDS + TRANSFER_SECONDS + 1.0 + 0.6) / SCALE
    assert run.other_seconds == pytest.approx(other_seconds)
    # Links of a run with hidden communication are so fast that its state has to be charged apart.
    assert run.transfer_seconds == pytest.approx(2.0)
    assert run.event_seconds == pytest.approx(REGROUP_SECONDS + other_seconds + 2.0)


def test_steps_during_which_state_is_fetched_are_part_of_the_event():
    run = struck(fetched=3)
    assert run.num_settled_steps == 0 and not run.is_usable


def test_a_failure_free_run_tells_the_speed_alone():
    log = Log()
    log.commit(FREE_SECONDS + 1, FREE_SECONDS, FREE_SECONDS + 2, FREE_SECONDS)
    run = read_emulated(log.end(), CELL, None)
    assert run.free_step_seconds == pytest.approx(FREE_SECONDS / SCALE) and run.is_usable
    assert run.settled_step_seconds is None


@pytest.mark.parametrize(
    ("emulation", "num_steps", "outcome", "said"),
    [
        (None, 5, "completed", "emulates no device"),
        (EMULATION, 5, "failed", "end"),
        (EMULATION, 1, "completed", "free"),
    ],
)
def test_other_logs_are_refused(emulation, num_steps, outcome, said):
    log = Log(emulation)
    log.commit(*[FREE_SECONDS] * num_steps)
    with pytest.raises(NotEmulated, match=said):
        read_emulated(log.end(outcome), CELL, None)
