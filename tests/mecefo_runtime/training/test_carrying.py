"""The time scale that a machine can carry."""

from __future__ import annotations

import pytest

from mecefo_runtime.job.config import PRESETS, JobConfig
from mecefo_runtime.job.layout import configured_layout
from mecefo_runtime.prediction.device_model import emulating, rescaled
from mecefo_runtime.prediction.named_devices import named_device
from mecefo_runtime.prediction.step_time import step_seconds
from mecefo_runtime.system.dilation import usable_cores
from mecefo_runtime.training import carrying
from mecefo_runtime.training.carrying import AMONG_MANY_RATIO, smallest_time_scale

pytestmark = pytest.mark.unit

JOB = emulating(
    JobConfig(PRESETS["7b"], nodes=4, gpus_per_node=8, data_parallel=4, pipeline=8, microbatches_per_replica=8),
    named_device("a100-7b"),
)


def with_costs(monkeypatch: pytest.MonkeyPatch, cpu_seconds: float) -> None:
    monkeypatch.setattr(carrying, "_step_cpu_seconds", lambda job: cpu_seconds)


@pytest.mark.parametrize("cpu_seconds", [0.01, 0.7, 3.0, 48.0])
def test_at_the_scale_a_step_takes_as_long_as_busy_cores_need(monkeypatch: pytest.MonkeyPatch, cpu_seconds: float):
    with_costs(monkeypatch, cpu_seconds)
    for num_cores in (1, 2, 8):
        slow = rescaled(JOB, smallest_time_scale(JOB, num_cores))
        assert slow.ratings is not None
        taken = step_seconds(configured_layout(slow.cluster()), slow.ratings)
        needed = AMONG_MANY_RATIO * cpu_seconds / usable_cores(num_cores)
        # Rounded up, to two digits.
        assert needed <= taken * (1 + 1e-9) <= 1.11 * needed


def test_a_real_measurement_grows_with_the_ranks_that_compute():
    few = JobConfig(PRESETS["7b"], 1, 2, data_parallel=1, pipeline=2, microbatches_per_replica=1)
    many = JobConfig(PRESETS["7b"], 2, 4, data_parallel=4, pipeline=2, microbatches_per_replica=8)
    seconds = [carrying._step_cpu_seconds(emulating(job, named_device("a100-7b"))) for job in (few, many)]
    # 32 times as many microbatches; the optimizer and the commit grow with the replicas alone.
    assert 3 * seconds[0] < seconds[1] < 64 * seconds[0]
