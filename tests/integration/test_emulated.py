"""Real runs on emulated devices: the layouts, times and bytes are the table's, deaths and regroups real."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.prediction.named_devices import named_device
from mecefo_runtime.system.json_values import from_json
from tests.integration.runs import Finished, assert_sound, run_chaos

pytestmark = pytest.mark.integration

STEPS = 14
DEVICE = named_device("a100-7b")
# Nobody is lost but who is killed, however busy the machine; and nobody is waited for longer than it takes to start.
EXPERIMENT = """
name: emulated
job:
  device_model: a100-7b
  time_scale: {time_scale}
  nodes: {nodes}
  gpus_per_node: {gpus_per_node}
  data_parallel: {data_parallel}
  pipeline: {pipeline}
  microbatches_per_replica: {microbatches}
  steps: {steps}
  strategy: mecefo
  heartbeat_timeout: 60s
  {more}
faults: {faults}
twin: false
"""
SHAPE = {"time_scale": 0.5, "nodes": 4, "gpus_per_node": 2, "data_parallel": 2, "pipeline": 4, "microbatches": 4}
KILL = "[{kind: kill-process, on: rank=3, at: {step: 5}, repair: 4steps}]"


def run_emulated(folder: Path, faults: str = "[]", more: str = "", steps: int = STEPS, **shape: Any) -> Finished:
    path = folder / "emulated.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(EXPERIMENT.format(**{**SHAPE, **shape}, faults=faults, more=more, steps=steps))
    return run_chaos(folder, str(path))


def step_seconds(run: Finished) -> float:
    """The median of the device's seconds from commit to commit."""
    committed = [event.fields["committed_monotonic"] for event in run.of("step_committed")]
    scale = run.summary["emulated"]["time_scale"]
    return median(after - before for before, after in pairwise(committed[1:])) / scale


def test_a_rank_of_an_emulated_device_dies_is_replaced_and_comes_back(tmp_path: Path):
    run = run_emulated(tmp_path, KILL)
    assert run.exit_code == 0, run.summary["reasons"]
    assert_sound(run, STEPS)
    emulated = run.summary["emulated"]
    assert (emulated["device_model"], emulated["provenance"], emulated["time_scale"]) == ("a100-7b", "predicted", 0.5)
    said = " ".join(run.summary["caveats"])
    assert "Emulated: the predicted table a100-7b" in said and "A second of the device lasted 0.5 s" in said
    # The ratings are the table's, in seconds of the wall clock, and the layouts those of a model with 32 layers.
    (ratings,) = run.of("ratings")
    costs = ratings.fields["costs"]
    assert costs["layer_backward_seconds"] == pytest.approx(0.5 * DEVICE.costs.layer_backward_seconds)
    layouts = [from_json(Layout, event.fields["layout"]) for event in run.of("layout")]
    assert {layout.num_layers for layout in layouts} == {32}
    assert [event.fields["reason"] for event in run.of("layout")][:2] == ["start", "loss"]
    assert [event.fields["ranks"] for event in run.of("rejoined")] == [[3]]
    # What moved is the 7B model's state: at least a stage of eight layers to the rank that came back.
    moved = [event.fields["transfer_bytes"] for event in run.of("regrouped")]
    assert moved[0] == 0 and moved[-1] >= 8 * DEVICE.costs.layer_state_bytes * 3 // 4
    rejoin = run.of("regrouped")[-1].fields
    assert rejoin["transfer_seconds"] >= 0.5 * moved[-1] / 2 / 25e9
    # No step is quicker than the device, and tokens are the device's.
    told = run.of("layout")[0].fields["predicted_step_seconds"]
    assert step_seconds(run) >= 0.99 * told / 0.5
    assert {event.fields["tokens"] for event in run.of("step_committed")} == {2 * 4 * 8 * 256}


@pytest.mark.nightly
def test_half_the_bandwidth_doubles_the_time_of_communication(tmp_path: Path):
    # So slow that communication is most of a step: 17 MB in 17 ms.
    fast, slow = (
        run_emulated(tmp_path / str(rate), more=f"link: {{bandwidth: {rate}GB/s}}", time_scale=1, steps=8)
        for rate in (2, 1)
    )
    seconds = [max(event.fields["link_seconds"] for event in run.of("rank_finished")) for run in (fast, slow)]
    assert seconds[1] == pytest.approx(2 * seconds[0])
    # A ring of two reduces as many bytes as a stage has gradients: that alone is more by so much.
    reduced_bytes = 8 * DEVICE.costs.layer_state_bytes / 4
    assert step_seconds(slow) - step_seconds(fast) >= 0.9 * reduced_bytes / 2e9


@pytest.mark.nightly
def test_a_slow_rank_shows(tmp_path: Path):
    faults = "[{kind: slow-rank, on: rank=2, at: {step: 10}, factor: 2, for: 8steps}]"
    run = run_emulated(tmp_path, faults, steps=26)
    assert run.exit_code == 0, run.summary["reasons"]
    evidence = run.summary["incidents"][0]["evidence"]
    # A stage of twice the time in a pipeline of four: at least half as long again.
    assert evidence["step_time_ratio"] > 1.4


@pytest.mark.nightly
@pytest.mark.parametrize(("data_parallel", "pipeline"), [(4, 8), (8, 4)])
def test_32_ranks_at_the_paper_s_proportions(tmp_path: Path, data_parallel: int, pipeline: int):
    shape = {"nodes": 4, "gpus_per_node": 8, "data_parallel": data_parallel, "pipeline": pipeline, "microbatches": 8}
    faults = "[{kind: kill-process, on: rank=11, at: {step: 6}, repair: 6steps}]"
    run = run_emulated(tmp_path, faults, time_scale=3, steps=16, **shape)
    assert run.exit_code == 0, run.summary["reasons"]
    assert_sound(run, 16)
    assert {rank for event in run.of("detected") for rank in event.fields["lost"]} == {11}
    assert [event.fields["ranks"] for event in run.of("rejoined")] == [[11]]
