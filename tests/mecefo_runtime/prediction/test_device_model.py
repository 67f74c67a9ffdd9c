"""Device models: what a file may say, and what the known ones predict."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mecefo_runtime.job.config import PRESETS, JobConfig
from mecefo_runtime.job.layout import configured_layout
from mecefo_runtime.job.link import Link, Links
from mecefo_runtime.prediction.device_model import (
    FORMAT,
    DeviceModel,
    DeviceModelError,
    Measurement,
    emulating,
    parse_device_model,
    rescaled,
)
from mecefo_runtime.prediction.named_devices import NAMES, named_device
from mecefo_runtime.prediction.step_time import step_seconds
from mecefo_runtime.system.json_values import from_json, to_json

pytestmark = pytest.mark.unit


def as_json(**changed: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(named_device("a100-7b").to_text())
    return raw | changed


@pytest.mark.parametrize("name", NAMES)
def test_a_known_device_survives_its_file(name: str):
    device = named_device(name)
    assert device.provenance == "predicted" and "counted operations" in device.basis
    assert parse_device_model(device.to_text()) == device


def test_a_measured_table_says_when():
    table = as_json(provenance="measured", measurement={"date": "2026-11-23", "torch": "2.13.0", "num_ranks": 8})
    assert parse_device_model(json.dumps(table)).measurement == Measurement("2026-11-23", "2.13.0", 8)


def test_a_known_device_can_have_another_shape_of_microbatch():
    one, four = named_device("a100-7b", microbatch_size=1), named_device("a100-7b", microbatch_size=4)
    assert four.costs.layer_forward_seconds == pytest.approx(4 * one.costs.layer_forward_seconds)
    assert four.costs.layer_state_bytes == one.costs.layer_state_bytes
    assert four.message_bytes == 4 * 256 * 4096 * 2
    less = named_device("a100-7b", approximation_rank=8).costs
    assert less.degraded_backward_seconds < named_device("a100-7b").costs.degraded_backward_seconds


def test_the_7b_model_fits_its_a100():
    device = named_device("a100-7b")
    num_layer_parameters = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    # Parameters, gradients and both moments of AdamW, in fp32.
    assert device.costs.layer_state_bytes == 16 * num_layer_parameters
    # Two operations for each weight and token, at half of 312 TFLOP/s, and attention.
    weights_seconds = 2 * num_layer_parameters * 2048 / 156e12
    assert weights_seconds < device.costs.layer_forward_seconds < 1.05 * weights_seconds
    assert device.config is PRESETS["7b"]


def broken(path: str, value: Any) -> str:
    raw = as_json()
    *parents, last = path.split(".")
    place = raw
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (named_device("a100-1b").to_text()[:300], "no JSON"),
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", "a JSON object"),
        ("{}", FORMAT),
        (broken("format", "chaos device model 9"), "device model 9"),
        (broken("model", "13b"), "'13b'"),
        (broken("model", 7), "model"),
        (broken("provenance", "guessed"), "provenance"),
        (broken("microbatch_size", 0), "microbatch_size"),
        (broken("microbatch_size", 2.5), "microbatch_size"),
        (broken("name", "two\nlines"), "one line"),
        (broken("costs.layer_forward_seconds", -1.0), "layer_forward_seconds"),
        (broken("costs.layer_forward_seconds", "fast"), "layer_forward_seconds"),
        (broken("costs.layer_forward_seconds", float("nan")), "layer_forward_seconds"),
        (broken("costs.layer_forward_seconds", None), "layer_forward_seconds"),
        (broken("costs.layer_state_bytes", True), "layer_state_bytes"),
        (broken("links.between_nodes.bandwidth_bytes_per_second", 0), "bandwidth"),
        (broken("links.inside_node.latency_seconds", -1e-6), "latency"),
        (broken("links", [1]), "links"),
        (json.dumps(as_json(colour="green")), "colour"),
    ],
)
def test_nonsense_is_refused_in_words(text: str, said: str):
    with pytest.raises(DeviceModelError, match=said):
        parse_device_model(text)


def test_a_message_takes_its_latency_and_its_bytes():
    link = Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-3)
    assert link.message_seconds(5e8) == pytest.approx(0.501)
    assert link.bytes_seconds(5e8) == pytest.approx(0.5)
    # 2 (k - 1) / k of the bytes, and 2 (k - 1) latencies.
    assert link.all_reduce_seconds(8e8, 4) == pytest.approx(1.5 * 0.8 + 6e-3)
    assert link.all_reduce_seconds(8e8, 1) == 0.0


def test_on_a_scaled_link_everything_takes_so_much_longer():
    links = Links(Link(1e9, 1e-3), Link(1e10, 1e-4))
    for is_inside in (False, True):
        own, scaled = links.of(is_inside=is_inside), links.scaled(3.0).of(is_inside=is_inside)
        assert scaled.message_seconds(1e6) == pytest.approx(3 * own.message_seconds(1e6))
    assert Links(Link(1e9)).of(is_inside=True) == Link(1e9)


def test_the_table_is_a_value():
    assert isinstance(named_device("a100-1b"), DeviceModel)
    with pytest.raises(KeyError):
        named_device("a100-13b")


JOB = JobConfig(PRESETS["7b"], nodes=4, gpus_per_node=8, data_parallel=4, pipeline=8, microbatches_per_replica=16)


def test_an_emulated_job_has_the_layers_times_and_links_of_the_device():
    device = named_device("a100-7b")
    job = emulating(JOB, device)
    assert job.cluster().num_layers == 32
    assert job.model.num_parameters < 10**6
    # A commit goes there and back; a layer's gradients go round among four.
    link = device.links.between_nodes
    reduction_seconds = link.all_reduce_seconds(device.costs.layer_state_bytes / 4, 4)
    together = {"commit_seconds": 2 * link.latency_seconds, "layer_reduction_seconds": reduction_seconds}
    assert job.ratings == replace(device.costs, **together)
    assert job.links == device.links
    assert job.is_rated and job.dilation_ratio == 1.0 and job.device == "cpu"
    # Samples are the device's; of their tokens the arithmetic does a part.
    assert job.samples_per_step == 4 * 16 * 8
    assert job.emulated_tokens(job.tokens_per_step) == 4 * 16 * 8 * 256
    assert from_json(JobConfig, json.loads(json.dumps(to_json(job)))) == job


def test_everything_of_the_device_goes_with_its_time_scale():
    job = emulating(JOB, named_device("a100-7b"))
    slow = rescaled(job, 3.0)
    assert job.ratings and slow.ratings and job.links and slow.links and slow.emulation
    assert slow.emulation.time_scale == 3.0
    layout = configured_layout(job.cluster())
    assert step_seconds(layout, slow.ratings) == pytest.approx(3 * step_seconds(layout, job.ratings))
    assert slow.ratings.transfer_bytes_per_second == pytest.approx(25e9 / 3)
    assert slow.ratings.layer_state_bytes == job.ratings.layer_state_bytes
    assert slow.links.of(is_inside=True).message_seconds(1e9) == pytest.approx(3 * (1e9 / 300e9 + 2e-6))


def test_what_the_job_says_of_links_and_memory_goes_before_the_table():
    own = Links(Link(1e9))
    job = emulating(replace(JOB, links=own, rank_memory_bytes=10**10), named_device("a100-7b"))
    assert job.ratings is not None and job.links == own
    assert job.ratings.transfer_bytes_per_second == 1e9
    assert job.ratings.memory_bytes == 10**10


def test_unpaced_it_is_the_same_arithmetic():
    job = emulating(JOB, named_device("a100-7b"))
    bare = job.unpaced()
    assert (bare.model, bare.sequence_length, bare.seed) == (job.model, job.sequence_length, job.seed)
    assert (bare.emulation, bare.links, bare.ratings, bare.is_rated) == (None, None, None, False)
