"""`chaos calibrate`: a table of this machine, and a job that stands on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos.experiment.device import read_device
from mecefo_chaos.cli.main import run_cli
from mecefo_runtime.job.config import PRESETS
from mecefo_runtime.system.json_values import to_json

pytestmark = pytest.mark.unit


def test_the_table_of_this_machine_is_measured_and_can_be_emulated(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "mine.json"
    shape = ["--model", "llama-tiny", "--sequence-length", "16", "--microbatch-size", "1", "--device", "cpu"]
    assert run_cli(["calibrate", "--out", str(path), *shape, "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    device = read_device(str(path))
    assert printed == json.loads(path.read_text()) == to_json(device)
    assert (device.name, device.provenance, device.config) == ("mine", "measured", PRESETS["llama-tiny"])
    assert device.measurement is not None and device.measurement.torch
    assert "one thread" in device.device
    # Undilated: what a layer costs goes with what it computes, not with the ranks of a job.
    assert 1e-5 < device.costs.layer_seconds < 1.0
    assert device.costs.layer_state_bytes == 16 * ((device.config.num_parameters - (2 * 256 + 1) * 64) // 4)
    assert device.links.between_nodes.latency_seconds > 0
    assert device.links.between_nodes.bandwidth_bytes_per_second == device.costs.transfer_bytes_per_second
    assert run_cli(["plan", "kill-process", "--at", "step=3", "--device-model", str(path), "--time-scale", "2"]) == 0
    assert "by the measured table mine, time scale 2," in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "llama-tin"], "did you mean 'llama-tiny'"),
        (["--rank", "9000"], "--rank: more than the model's hidden size"),
        (["--link", "25GB"], "--link: '25GB' is no link"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], said: str
):
    path = tmp_path / "mine.json"
    assert run_cli(["calibrate", "--out", str(path), *options]) == 4
    told = capfd.readouterr().err
    assert said in told and "measuring" not in told
    assert not path.exists()


def test_stated_links_are_taken_as_they_are(tmp_path: Path):
    path = tmp_path / "mine.json"
    shape = ["--sequence-length", "8", "--device", "cpu", "--link", "bandwidth=25GB/s,latency=20us"]
    assert run_cli(["calibrate", "--out", str(path), *shape, "--name", "theirs"]) == 0
    device = read_device(str(path))
    assert device.name == "theirs"
    assert device.links.between_nodes.bandwidth_bytes_per_second == 25e9
    assert device.links.between_nodes.latency_seconds == pytest.approx(20e-6)
