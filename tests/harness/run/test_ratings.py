"""Whose ratings a run takes over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.run.ratings import with_ratings
from mecefo_runtime.job.config import PRESETS, ApproximationConfig, JobConfig
from mecefo_runtime.planners import with_fixed_settings
from tests.planning import COSTS

pytestmark = pytest.mark.unit

JOB = JobConfig(dilation_ratio=8.0)
OF_AN_EARLIER_RUN = {"costs": COSTS.to_dict(), "rated_as": JOB.rated_as, "were_given": False}


def test_those_of_a_job_with_the_same_shapes_whatever_else_it_was():
    other = replace(JOB, strategy="exact", seed=5, steps=7, data_parallel=2, pipeline=4, rank_memory_bytes=10**9)
    assert with_ratings(other, OF_AN_EARLIER_RUN).ratings == replace(COSTS, memory_bytes=10**9)


def test_those_of_another_strategys_approximation_whose_operations_are_as_many():
    paper = with_fixed_settings(replace(JOB, strategy="mecefo-paper"))
    assert paper.approximation != JOB.approximation
    assert with_ratings(paper, OF_AN_EARLIER_RUN).ratings == COSTS


@pytest.mark.parametrize(
    "change",
    [
        {"model": replace(PRESETS["llama-tiny"], num_layers=8)},
        {"sequence_length": 65},
        {"microbatch_size": 3},
        {"dilation_ratio": 9.0},
        {"precision": "bf16"},
        {"approximation": ApproximationConfig(rank=8)},
    ],
)
def test_none_of_a_job_that_computes_something_else(change):
    job = replace(JOB, **change)
    assert with_ratings(job, OF_AN_EARLIER_RUN) is job


@pytest.mark.parametrize("change", [{"pacing": "measured"}, {"dilation_ratio": 1.0}, {"ratings": COSTS}])
def test_none_where_there_is_nothing_to_rate_or_the_job_has_its_own(change):
    job = replace(JOB, **change)
    assert with_ratings(job, {**OF_AN_EARLIER_RUN, "rated_as": job.rated_as}) is job


@pytest.mark.parametrize(
    "costs", [None, {}, {"layer_forward_seconds": 1.0}, {**COSTS.to_dict(), "head_state_bytes": -1}]
)
def test_none_of_a_summary_that_is_damaged(costs):
    assert with_ratings(JOB, {**OF_AN_EARLIER_RUN, "costs": costs}) is JOB
    assert with_ratings(JOB, {}) is JOB
