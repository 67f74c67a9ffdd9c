"""What a job on an emulated device is prepared with: its time scale, and how long signs of life are waited for."""

from __future__ import annotations

import os
from typing import Any

import pytest

from chaos.experiment.reading import from_mapping
from harness.run.preparation import prepare
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.training import carrying

pytestmark = pytest.mark.unit


def prepared(**job: Any) -> JobConfig:
    shape = {"nodes": 4, "gpus_per_node": 8, "pipeline": 8, "device_model": "a100-7b", "steps": 10}
    config = prepare(from_mapping({"name": "emulated", "job": {**shape, **job}, "faults": []})).job
    assert isinstance(config, JobConfig) and config.emulation is not None and config.ratings is not None
    return config


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


def test_a_time_scale_that_is_said_is_taken():
    assert prepared(time_scale=2.5).emulation.time_scale == 2.5  # type: ignore[union-attr]


def test_one_that_is_not_said_is_what_the_cores_carry(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def measured(job: JobConfig, num_cores: int) -> float:
        asked.append((job.emulation and job.emulation.time_scale, num_cores))
        return 1.75

    monkeypatch.setattr(carrying, "smallest_time_scale", measured)
    chosen, said = prepared(), prepared(time_scale=1.75)
    assert asked == [(1.0, 2)]
    assert chosen.emulation is not None and chosen.emulation.is_scale_chosen
    assert said.emulation is not None and not said.emulation.is_scale_chosen
    assert (chosen.ratings, chosen.links) == (said.ratings, said.links)


def test_many_ranks_on_few_cores_are_waited_for_longer_unless_it_is_said_how_long():
    # 16 on each core: four times as many as are few.
    assert prepared(time_scale=1).heartbeat_timeout_seconds == 8.0
    assert prepared(time_scale=1, heartbeat_timeout="3s").heartbeat_timeout_seconds == 3.0
    few = prepared(time_scale=1, nodes=2, gpus_per_node=2, pipeline=2)
    assert few.heartbeat_timeout_seconds == JobConfig().heartbeat_timeout_seconds


def test_what_the_ranks_sleep_is_time_that_the_baseline_can_have():
    job = prepared(time_scale=2)
    assert job.is_padded and not job.unpaced().is_padded
