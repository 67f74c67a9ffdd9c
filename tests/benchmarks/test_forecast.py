"""The forecast beside the runtime: what is predicted for a schedule, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks._loss_schedules import CALIBRATION, FAULT_STEP, NUM_STEPS, SCHEDULES, Schedule, emulated_schedules
from benchmarks.forecast import Calibration, Compared, predict, to_text
from chaos.experiment.job import Job
from mecefo_chaos.studies.forecast.layouts import Layouts
from mecefo_chaos.studies.forecast.model import JobModel, Policy, Recovery
from mecefo_chaos.studies.forecast.pipeline import rate
from mecefo_runtime.job.layout import configured_layout
from tests.planning import COSTS

pytestmark = pytest.mark.unit

CALIBRATED = Calibration(
    recovery=Recovery(detection_seconds=0.1, regroup_seconds=0.2),
    transfer_bytes_per_second=1e12,
)


def job_of(schedule):
    said = schedule.experiment(0, 8.0).job
    assert isinstance(said, Job)
    return JobModel(said.to_config(0, 8.0).cluster(), COSTS, 1)


def predicted(schedule, calibration=CALIBRATED):
    job = job_of(schedule)
    free_seconds = rate(configured_layout(job.cluster), job).step_seconds
    return predict(schedule, job, calibration), free_seconds, job


def test_there_are_a_dozen_schedules_that_the_tool_accepts():
    assert len(SCHEDULES) >= 12
    assert len({str(schedule) for schedule in SCHEDULES}) == len(SCHEDULES)
    for schedule in (*SCHEDULES, *CALIBRATION, *emulated_schedules("a100-1b", 2, 8)):
        assert schedule.experiment(1, 8.0).job.steps == schedule.num_steps


def test_a_loss_for_good_is_predicted_as_by_hand():
    schedule = Schedule("exact", (("kill-process", "rank=3", FAULT_STEP),))
    (drop, settled, recovery), free_seconds, job = predicted(schedule)
    rates = Layouts(job, Policy("exact"))
    slow_seconds = rates.rating(frozenset([3])).step_seconds
    # Until the loss is known, three of the four replicas go on with their shares of the step; these count.
    kept_seconds = 3 / 4 * rates.free.compute_seconds
    num_steps = NUM_STEPS - FAULT_STEP + 1
    assert settled == pytest.approx(1 - free_seconds / slow_seconds)
    assert recovery == pytest.approx(0.3 + slow_seconds - kept_seconds, rel=1e-3)
    assert drop == pytest.approx(
        1 - num_steps * free_seconds / (0.3 - kept_seconds + num_steps * slow_seconds), abs=1e-4
    )


def test_until_the_repair_fewer_steps_count():
    lasting = Schedule("exact", (("kill-process", "rank=3", FAULT_STEP),))
    repaired = replace(lasting, repair_steps=10)
    # The regroup weighs more in ten steps.
    assert predicted(repaired)[0][0] > predicted(lasting)[0][0]


def test_a_second_loss_costs_more():
    first, both = (("kill-process", "rank=3", 25),), (("kill-process", "rank=3", 25), ("kill-process", "rank=4", 50))
    assert predicted(Schedule("exact", both))[0][0] > predicted(Schedule("exact", first))[0][0]


def test_the_text_says_how_far_off_each_forecast_is():
    found = [
        Compared("near", 0.101, 0.1, 0.09, 0.09, 1.1, 1.0, 0.01),
        Compared("far", 0.15, 0.1, 0.09, 0.09, 1.1, 1.0, 0.01),
        Compared("broken", failure="it died"),
    ]
    text = to_text(found, CALIBRATED, SimpleNamespace(), 0.0)
    assert "1 of 3 schedules within 1 point" in text
    assert "+0.10" in text and "+5.00" in text and "FAILED: broken: it died" in text
