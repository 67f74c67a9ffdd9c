"""The device that ranks stand for, as a user names it: what is read, and what is refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chaos.errors import UsageError
from chaos.experiment.device import LinkSpec, read_device
from chaos.experiment.experiment import Experiment, to_yaml
from chaos.experiment.job import Job
from chaos.experiment.reading import from_mapping, from_options, load
from mecefo_runtime.prediction.named_devices import named_device

pytestmark = pytest.mark.unit

SHAPE = {"nodes": 4, "gpus_per_node": 8, "pipeline": 8, "device_model": "a100-7b"}


def experiment(**job: Any) -> Experiment:
    return from_mapping({"name": "emulated", "job": {**SHAPE, **job}, "faults": []})


def job_of(found: Experiment) -> Job:
    assert isinstance(found.job, Job)
    return found.job


def refusal(**job: Any) -> str:
    with pytest.raises(UsageError) as refused:
        experiment(**job)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency"),
    [
        ("bandwidth=25GB/s,latency=20us", 25 * 10**9, 20_000),
        ("bandwidth=100MiB/s", 100 * 2**20, 0),
        ({"bandwidth": "25GB/s", "latency": "1.5ms"}, 25 * 10**9, 1_500_000),
        ("latency=3ns, bandwidth=1B/s", 1, 3),
    ],
)
def test_a_link_is_read_and_written(text: object, bandwidth: int, latency: int):
    link = LinkSpec.parse(text)
    assert (link.bandwidth_bytes_per_second, link.latency_nanoseconds) == (bandwidth, latency)
    assert LinkSpec.parse(str(link)) == link
    assert link.links().of(is_inside=True).latency_seconds == pytest.approx(latency / 1e9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("25GB/s", "bandwidth=25GB/s"),
        (7, "no link"),
        ("latency=20us", "has a bandwidth"),
        ("bandwidth=25GB", "no bandwidth"),
        ("bandwidth=25Gb/s", "no unit"),
        ("bandwidth=0GB/s", "at least"),
        ("bandwidth=25GB/s,latency=20", "no latency"),
        ("bandwith=25GB/s", "bandwidth"),
    ],
)
def test_what_is_no_link_is_refused(text: object, said: str):
    with pytest.raises(UsageError, match=said):
        LinkSpec.parse(text)


def test_the_table_says_what_the_job_leaves_out():
    job = job_of(experiment())
    assert (job.model, job.sequence_length, job.microbatch_size, job.approximation.rank) == ("7b", 256, 8, 64)
    config = job.to_config(0, 1.0, 2.0)
    assert config.emulation is not None and config.emulation.time_scale == 2.0
    assert config.cluster().num_layers == 32


def test_a_known_device_is_computed_for_what_the_job_says():
    job = job_of(experiment(microbatch_size=2, approximation={"rank": 8}))
    config = job.to_config(0, 1.0)
    assert config.ratings is not None
    wanted = named_device("a100-7b", microbatch_size=2, approximation_rank=8).costs
    assert config.ratings.degraded_backward_seconds == wanted.degraded_backward_seconds
    assert config.microbatch_size == 2


def test_the_experiment_that_a_run_leaves_says_the_same(tmp_path: Path):
    first = experiment(link="bandwidth=10GB/s,latency=5us", time_scale=2.5)
    path = tmp_path / "experiment.yaml"
    path.write_text(to_yaml(first))
    again = load(path)
    assert again == first
    assert job_of(again).to_config(0, 1.0) == job_of(first).to_config(0, 1.0)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"device_model": "a100-7d"}, "did you mean 'a100-7b'"),
        ({"device_model": 7}, "no device"),
        ({"device_model": "/does/not/exist.json"}, "cannot be read"),
        ({"dilation": 8.0}, "job.dilation: the table of a100-7b"),
        ({"pacing": "measured"}, "job.pacing: the table of a100-7b"),
        ({"precision": "bf16"}, "job.precision"),
        ({"device": "cuda"}, "job.device"),
        ({"model": "1b"}, "is for 7b, not for 1b"),
        ({"time_scale": 0}, "job.time_scale: must be auto"),
        ({"time_scale": "fast"}, "job.time_scale: must be auto"),
        ({"pipeline": 33, "nodes": 33}, "cannot be shared out"),
    ],
)
def test_what_contradicts_the_device_is_refused_where_it_is_said(job: dict[str, Any], said: str):
    assert said in refusal(**job)


def test_a_time_scale_is_that_of_a_device():
    with pytest.raises(UsageError, match="name one with"):
        from_mapping({"name": "x", "job": {"time_scale": 2}, "faults": []})


def test_options_say_the_same_as_the_file():
    options = {"device_model": "a100-7b", "time_scale": "1.5", "link": "bandwidth=10GB/s", "nodes": 4}
    job = job_of(from_options("kill-process", {**options, "gpus_per_node": 8, "pipeline": 8, "at": "step=3"}))
    assert (job.device_model, job.time_scale, str(job.link)) == ("a100-7b", 1.5, "bandwidth=10GB/s")
    with pytest.raises(UsageError, match="--device-model"):
        from_options("kill-process", {"device_model": "b100", "at": "step=3"})


def test_a_table_in_a_file_is_for_what_it_was_measured_with(tmp_path: Path):
    path = tmp_path / "mine.json"
    path.write_text(named_device("a100-1b").to_text())
    assert read_device(str(path)) == named_device("a100-1b")
    assert job_of(experiment(device_model=str(path))).model == "1b"
    assert "was measured with 16, not with 4" in refusal(device_model=str(path), microbatch_size=4)
    assert "was measured with 64, not with 8" in refusal(device_model=str(path), approximation={"rank": 8})


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{" * 2**21, b'{"format": "chaos device model 1"}', b"[]"])
def test_a_file_that_holds_no_table_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    assert "is no device model" in refusal(device_model=str(path))


def test_a_folder_is_no_table(tmp_path: Path):
    assert "cannot be read" in refusal(device_model=str(tmp_path))


def test_a_table_with_a_wrong_figure_says_which(tmp_path: Path):
    raw = json.loads(named_device("a100-7b").to_text())
    raw["costs"]["head_forward_seconds"] = -1
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(raw))
    assert "head_forward_seconds" in refusal(device_model=str(path))
