"""What a run does about GPUs before it starts anything."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from chaos.errors import EnvironmentFailure, UsageError
from chaos.experiment.experiment import Experiment
from harness.node.node import ThisMachine
from harness.run.execute import execute
from harness.run.preparation import check
from mecefo_runtime.system import devices
from mecefo_runtime.system.dilation import automatic_ratio

pytestmark = pytest.mark.unit


def experiment_on(device: str, dilation: object = "auto") -> Experiment:
    return Experiment.model_validate({"name": "devices", "job": {"device": device, "dilation": dilation, "steps": 5}})


@pytest.mark.parametrize(("device", "num_gpus"), [("cpu", 8), ("auto", 0)])
def test_ranks_on_cpus_are_dilated(monkeypatch, device, num_gpus):
    monkeypatch.setattr(ThisMachine, "num_gpus", lambda self: num_gpus)
    job, _ = check(experiment_on(device))
    assert job.device == device
    assert job.dilation_ratio == automatic_ratio(8, len(os.sched_getaffinity(0)))
    assert check(experiment_on(device, 7.5))[0].dilation_ratio == 7.5


@pytest.mark.parametrize(("device", "num_gpus"), [("cuda", 0), ("auto", 1)])
def test_ranks_on_gpus_are_not(monkeypatch, device, num_gpus):
    monkeypatch.setattr(ThisMachine, "num_gpus", lambda self: num_gpus)
    for dilation in ("auto", "off", 1.0):
        assert check(experiment_on(device, dilation))[0].dilation_ratio == 1.0
    with pytest.raises(UsageError, match=r"7\.5 pads CPU time"):
        check(experiment_on(device, 7.5))


def test_a_run_on_gpus_that_are_not_there_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "_DRIVER_FILES", ())
    with pytest.raises(EnvironmentFailure, match="no GPU that torch can use") as refused:
        execute(experiment_on("cuda"), tmp_path / "out", io.StringIO())
    assert refused.value.exit_code == 3
    assert not (tmp_path / "out").exists()


def test_to_know_of_gpus_the_command_need_not_import_torch():
    code = (
        "import sys, harness.run.preparation; from harness.node.node import ThisMachine; "
        "ThisMachine().num_gpus(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
