"""How much a job may approximate: the key `quality`, and the older one for a limit."""

from __future__ import annotations

import pytest

from chaos.errors import UsageError
from chaos.experiment.experiment import to_yaml
from chaos.experiment.reading import from_options
from tests.chaos.experiment.test_strategy import read
from tests.chaos.fake_faults import REGISTRY

pytestmark = pytest.mark.unit


def limits(job: str) -> tuple[float, float]:
    config = read(f"name: x\njob: {job}\n").job.to_config(0, 1.0)
    return config.degraded_share_limit, config.projected_share_limit


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("{}", (0.0, 0.5)),
        ("{quality: auto}", (0.0, 0.5)),
        ("{quality: speed}", (1.0, 0.0)),
        ("{quality: exact}", (0.0, 0.0)),
        ("{quality: 0.25}", (0.25, 0.0)),
        ("{quality: '0.25'}", (0.25, 0.0)),
        ("{degraded_share_limit: 0.25}", (0.25, 0.0)),
        ("{degraded_share_limit: 1.0}", (1.0, 0.0)),
        ("{strategy: mecefo-paper}", (1.0, 0.0)),
    ],
)
def test_what_a_quality_allows(job: str, expected: tuple[float, float]) -> None:
    assert limits(job) == expected


@pytest.mark.parametrize("job", ["{quality: speed}", "{degraded_share_limit: 0.25}", "{strategy: mecefo-paper}"])
def test_a_written_experiment_reads_as_it_was(job: str) -> None:
    experiment = read(f"name: x\njob: {job}\n")
    assert read(to_yaml(experiment)) == experiment


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("{quality: sped}", "did you mean 'speed'"),
        ("{quality: 1.5}", "job.quality: must be auto, speed, exact or a share from 0 to 1, not 1.5"),
        ("{quality: true}", "job.quality: must be auto"),
        ("{quality: exact, degraded_share_limit: 0.5}", "job.degraded_share_limit: job.quality says it too"),
        ("{strategy: mecefo-paper, quality: exact}", "job.quality: must be left out with the strategy mecefo-paper"),
    ],
)
def test_what_cannot_be(job: str, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(f"name: x\njob: {job}\n")
    assert expected in str(refused.value)


def test_the_command_line_says_it_too() -> None:
    options = {"at": "step=5", "quality": "speed"}
    assert from_options("kill-node", options, registry=REGISTRY).job.quality == "speed"
