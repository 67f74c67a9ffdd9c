"""Whose ratings a run takes over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.run.ratings import KEPT_FILE, keep_ratings, kept_ratings, with_ratings
from mecefo_runtime.job.config import PRESETS, ApproximationConfig, JobConfig
from mecefo_runtime.planners import with_fixed_settings
from mecefo_runtime.prediction.device_model import emulating, rescaled
from mecefo_runtime.prediction.named_devices import named_device
from mecefo_runtime.system.json_values import to_json
from tests.planning import COSTS

pytestmark = pytest.mark.unit

JOB = JobConfig(dilation_ratio=8.0)
OF_AN_EARLIER_RUN = {"costs": to_json(COSTS), "rated_as": JOB.rated_as, "ranks": JOB.rated_ranks, "were_given": False}
TOGETHER = {"commit_seconds": 0.01, "layer_reduction_seconds": 0.02, "message_seconds": 0.003}


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
    "costs", [None, {}, {"layer_forward_seconds": 1.0}, {**to_json(COSTS), "head_state_bytes": -1}]
)
def test_none_of_a_summary_that_is_damaged(costs):
    assert with_ratings(JOB, {**OF_AN_EARLIER_RUN, "costs": costs}) is JOB
    assert with_ratings(JOB, {}) is JOB


def emulated(time_scale: float, *, is_chosen: bool) -> JobConfig:
    job = rescaled(emulating(JobConfig(), named_device("a100-7b")), time_scale)
    assert job.emulation is not None
    return replace(job, emulation=replace(job.emulation, is_scale_chosen=is_chosen))


def test_an_emulated_device_runs_at_the_scale_of_the_earlier_run_unless_another_was_asked_for():
    first = emulated(2.0, is_chosen=True)
    assert first.ratings is not None and first.rating_origin is not None
    earlier = {"costs": to_json(first.ratings), **first.rating_origin.to_fields()}
    again = with_ratings(emulated(3.0, is_chosen=True), earlier)
    assert isinstance(again, JobConfig) and again.emulation is not None and again.ratings is not None
    assert again.emulation.time_scale == pytest.approx(2.0)
    assert again.ratings.layer_forward_seconds == pytest.approx(first.ratings.layer_forward_seconds)
    asked = emulated(3.0, is_chosen=False)
    assert with_ratings(asked, earlier) is asked
    other = rescaled(emulating(JobConfig(), named_device("a100-1b")), 3.0)
    assert with_ratings(other, earlier) is other


def test_what_ranks_do_together_only_of_a_job_with_as_many_of_them():
    earlier = {**OF_AN_EARLIER_RUN, "costs": {**to_json(COSTS), **TOGETHER}}
    assert with_ratings(JOB, earlier).ratings == replace(COSTS, **TOGETHER)
    assert with_ratings(replace(JOB, data_parallel=2, pipeline=4), earlier).ratings == COSTS


def test_what_a_run_measured_is_kept_for_the_next_one_like_it(tmp_path):
    assert kept_ratings(tmp_path, JOB, "local") is None
    keep_ratings(tmp_path, OF_AN_EARLIER_RUN, "local")
    for others in (replace(JOB, sequence_length=65), replace(JOB, pacing="measured"), emulated(1.0, is_chosen=True)):
        assert kept_ratings(tmp_path, others, "local") is None
    assert kept_ratings(tmp_path, JOB, "docker") is None
    other = replace(JOB, strategy="exact", seed=3)
    assert with_ratings(other, kept_ratings(tmp_path, other, "local")).ratings == COSTS
    # Once it is kept, it stays.
    newer = replace(COSTS, layer_forward_seconds=7.0)
    keep_ratings(tmp_path, {**OF_AN_EARLIER_RUN, "costs": to_json(newer)}, "local")
    assert with_ratings(JOB, kept_ratings(tmp_path, JOB, "local")).ratings == COSTS
    # What ranks do together is kept for each number of them.
    wide = replace(JOB, data_parallel=2, pipeline=4)
    keep_ratings(tmp_path, {**OF_AN_EARLIER_RUN, "ranks": wide.rated_ranks, "costs": to_json(newer)}, "local")
    assert with_ratings(wide, kept_ratings(tmp_path, wide, "local")).ratings == newer
    assert with_ratings(JOB, kept_ratings(tmp_path, JOB, "local")).ratings == COSTS


def test_of_a_run_that_was_not_rated_or_emulated_a_device_nothing_is_kept(tmp_path):
    for ratings in (None, {**OF_AN_EARLIER_RUN, "time_scale": 2.0}):
        keep_ratings(tmp_path, ratings, "local")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{}", "[1, null]", "[" * 100_000, '[{"where": {}, "ratings": 5}]', "\x00"])
def test_a_damaged_file_is_as_none_and_is_replaced(tmp_path, text):
    (tmp_path / KEPT_FILE).write_text(text)
    assert kept_ratings(tmp_path, JOB, "local") is None
    keep_ratings(tmp_path, OF_AN_EARLIER_RUN, "local")
    assert kept_ratings(tmp_path, JOB, "local") is not None


def test_where_nothing_can_be_kept_runs_go_on(tmp_path):
    (tmp_path / KEPT_FILE).mkdir()
    keep_ratings(tmp_path, OF_AN_EARLIER_RUN, "local")
    assert kept_ratings(tmp_path, JOB, "local") is None
