"""The losses of an emulated run."""

from __future__ import annotations

from statistics import fmean

import pytest

from mecefo_chaos.studies.papers.mecefo.claims import PROCESSES
from mecefo_chaos.studies.papers.mecefo.emulation import FREE_STEPS, planned_losses
from mecefo_chaos.studies.papers.mecefo.setting import SHAPES, job_of
from tests.mecefo_chaos.studies.papers.mecefo.made import cell_of

pytestmark = pytest.mark.unit


def losses_of(process, shape, seed, num_steps=200):
    return planned_losses(PROCESSES[process], job_of(cell_of(shape)).cluster, seed, num_steps=num_steps)


@pytest.mark.parametrize("process", PROCESSES)
def test_as_many_ranks_are_down_as_the_process_has_from_the_first_loss_on(process):
    down = []
    for seed in range(60):
        losses = losses_of(process, "4x8", seed)
        for step in range(FREE_STEPS + 1, 199):
            down.append(sum(loss.step <= step < loss.step + loss.repair_steps for loss in losses))
    assert fmean(down) == pytest.approx(PROCESSES[process].mean_down, rel=0.1)


def test_the_same_seed_loses_the_same_ranks_and_another_one_others():
    assert losses_of("high", "4x8", 3) == losses_of("high", "4x8", 3)
    assert losses_of("high", "4x8", 3) != losses_of("high", "4x8", 4)
    assert all(loss.step > FREE_STEPS for loss in losses_of("high", "8x4", 3))


@pytest.mark.parametrize("shape", SHAPES)
def test_nobody_is_lost_twice_at_a_time_and_no_stage_with_all_its_holders_at_once(shape):
    cluster = job_of(cell_of(shape)).cluster
    for seed in range(50):
        losses = losses_of("high", shape, seed)
        for loss in losses:
            others = [other for other in losses if other is not loss and other.rank == loss.rank]
            assert not [other for other in others if other.step <= loss.step < other.step + other.repair_steps]
        for step in {loss.step for loss in losses}:
            stages = [cluster.cell_of(loss.rank)[1] for loss in losses if loss.step == step]
            assert max(map(stages.count, stages)) < cluster.data_parallel
