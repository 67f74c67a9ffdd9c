import json
import subprocess
import sys

import click
import pytest
import torch
from click.testing import CliRunner

from benchmarks._machine import Machine
from benchmarks._operations import count_block
from benchmarks._spread import spread
from benchmarks._subspaces import DECAY, Cost, Quality, draw_decaying, measure_cost, report_cost, report_quality
from benchmarks.approximation import (
    EXIT_NO_DEVICE,
    WAYS,
    Measurement,
    Shape,
    build,
    count_saved_bytes,
    main,
    ratios,
    read_presets,
    report,
    run_timed,
    shapes,
    to_document,
    ways_in_turn,
)
from mecefo_runtime.job.config import PRESETS, ModelConfig
from mecefo_runtime.model.approximate import is_degraded, recomputes
from tests.benchmarks.limits import TIMEOUT_SECONDS

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")
SHAPE = Shape("llama-tiny", 2, "cpu", "float32", 16)
QUALITY = [Quality("gate", way, 8, 0.9, 0.5) for way in ("first", "stale", "warm", "svd")]
COST = Cost(8, 4, 2, spread([0.4]), spread([0.04]), spread([0.01]), 0.99)


def measured(shape=SHAPE, factor=0.5):
    return [
        Measurement(shape, way, spread([share, 2 * share]), spread([share, share]), 1000)
        for way, share in zip(WAYS, (1.0, factor, 0.75, 0.8), strict=True)
    ]


@pytest.mark.unit
def test_a_normal_blocks_backward_pass_is_twice_its_forward_and_a_half_of_the_attention_over_pairs():
    model = PRESETS["350m"]
    hidden, intermediate, num_tokens = model.hidden_size, model.intermediate_size, 3 * 256
    parameters = 4 * hidden**2 + 3 * hidden * intermediate
    assert count_block(model, 3, 256) == 6 * num_tokens * parameters + 7 * num_tokens * 256 * hidden


@pytest.mark.unit
def test_grouped_queries_make_the_attentions_maps_smaller():
    whole = ModelConfig(64, 128, 1, 8, 8, 256)
    grouped = ModelConfig(64, 128, 1, 8, 2, 256)
    assert count_block(whole, 1, 32) - count_block(grouped, 1, 32) == 6 * 32 * 2 * 64 * (64 - 16)


@pytest.mark.unit
def test_a_degraded_block_saves_the_attentions_backward_pass_and_most_of_the_weight_gradients():
    model, num_tokens = PRESETS["350m"], 4 * 256
    hidden, intermediate = model.hidden_size, model.intermediate_size
    normal, degraded = count_block(model, 4, 256), count_block(model, 4, 256, rank=64)
    attention = 2 * 2 * num_tokens * 4 * hidden**2 + 5 * num_tokens * 256 * hidden
    exact_gradients = 3 * 2 * num_tokens * hidden * intermediate
    low_rank = 3 * 2 * 64 * (num_tokens * (hidden + intermediate) + hidden * intermediate)
    assert normal - degraded == attention + exact_gradients - low_rank
    recomputed = count_block(model, 4, 256, rank=64, recompute=True)
    assert recomputed - degraded == 2 * 2 * num_tokens * hidden * intermediate
    fully = count_block(model, 4, 256, rank=64, recompute="full")
    assert fully - degraded == 3 * 2 * num_tokens * hidden * intermediate


@pytest.mark.unit
def test_the_counted_ratios_of_two_stages_are_those_of_the_design():
    model = PRESETS["7b"]
    normal = count_block(model, 32, 256)
    assert 2 * count_block(model, 32, 256, rank=64) / normal == pytest.approx(1.12, abs=0.01)
    assert 2 * count_block(model, 32, 256, rank=64, recompute=True) / normal == pytest.approx(1.41, abs=0.01)
    assert 2 * count_block(model, 32, 256, rank=64, recompute="full") / normal == pytest.approx(1.56, abs=0.01)


@pytest.mark.unit
def test_every_round_has_every_way_and_none_is_always_first():
    assert sorted(ways_in_turn(0)) == sorted(ways_in_turn(1)) == sorted(WAYS)
    assert ways_in_turn(0)[0] != ways_in_turn(1)[0]


@pytest.mark.unit
def test_every_device_has_its_usual_shapes():
    assert {(s.device, s.preset, s.dtype) for s in shapes(["cpu"])} == {("cpu", p, "float32") for p in ("60m", "350m")}
    assert {(s.preset, s.dtype) for s in shapes(["cpu", "cuda"]) if s.device == "cuda"} == {
        (preset, "bfloat16") for preset in ("350m", "1b", "7b")
    }


@pytest.mark.unit
def test_other_shapes_are_measured_when_asked_for():
    asked = shapes(["cuda"], read_presets("7B, 350m,7b"), "fp32")
    assert [(s.preset, s.dtype, s.rank) for s in asked] == [
        (preset, "float32", rank) for preset in ("7b", "350m") for rank in (64, 16)
    ]
    with pytest.raises(click.BadParameter, match="there is no '2b': there are 60m"):
        read_presets("60m,2B")


@pytest.mark.unit
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_missed_in_words():
    result = CliRunner().invoke(main, ["--device", "cuda", "--shapes", "350M,1B,7B", "--precision", "bf16"])
    assert result.exit_code == EXIT_NO_DEVICE
    assert "no GPU that torch can use" in result.output
    assert "Traceback" not in result.output


@pytest.mark.unit
def test_a_shape_of_another_precision_is_built_in_it():
    (shape, _) = shapes(["cpu"], ["60m"], "bf16")
    assert {parameter.dtype for parameter in build(shape, "normal").parameters()} == {torch.bfloat16}


@pytest.mark.unit
def test_the_ways_differ_in_nothing_but_the_approximation_and_in_what_they_store():
    blocks = {way: build(SHAPE, way) for way in WAYS}
    assert [is_degraded(block) for block in blocks.values()] == [False, True, True, True]
    assert [recomputes(block) for block in blocks.values()] == [False, False, True, True]
    for parameters in zip(*(block.parameters() for block in blocks.values()), strict=True):
        assert all(torch.equal(parameters[0], other) for other in parameters)
    x = torch.randn(2, 16, 64, requires_grad=True)
    saved = {way: count_saved_bytes(block, x) for way, block in blocks.items()}
    assert saved["degraded"] == 4 * 32 * (64 + 2 * 176)
    assert saved["degraded, recomputed"] == saved["degraded, all recomputed"] == 4 * 32 * 64
    assert saved["normal"] > 2 * saved["degraded"]


@pytest.mark.unit
def test_parts_are_run_in_order_and_timed_one_by_one():
    calls = []
    seconds = run_timed("cpu", [lambda: calls.append(1), lambda: calls.append(sum(i * i for i in range(300_000)))])
    assert calls[0] == 1 and len(calls) == 2
    assert 0 <= seconds[0] < seconds[1]


@pytest.mark.unit
def test_ratios_are_taken_round_by_round():
    degraded, recomputed, fully = ratios(measured())
    assert (degraded.way, recomputed.way, fully.way) == WAYS[1:]
    assert degraded.measured.values == pytest.approx((0.5, 0.5))
    assert recomputed.measured.values == pytest.approx((0.75, 0.75))
    assert fully.measured.values == pytest.approx((0.8, 0.8))
    lines = report(measured(), QUALITY, 2.5, [COST], MACHINE).splitlines()
    (line,) = (line for line in lines if line.startswith(f"{SHAPE}: degraded  "))
    assert line.split()[-3] == "1.00", "two of them take as long as one that is not degraded"
    model = PRESETS["llama-tiny"]
    assert degraded.counted == count_block(model, 2, 256, rank=16) / count_block(model, 2, 256)


@pytest.mark.unit
def test_the_aim_is_met_up_to_a_tenth_above_what_was_counted():
    counted = ratios(measured())[0].counted
    assert ratios(measured(factor=1.09 * counted))[0].is_met
    assert not ratios(measured(factor=1.11 * counted))[0].is_met


@pytest.mark.unit
def test_the_report_says_whether_the_aim_is_met():
    text = report(measured(factor=0.99), QUALITY, 2.5, [COST], MACHINE)
    assert text.splitlines()[0] == "machine: 2 cores, a CPU, Python 3.11, torch 2.13"
    (line,) = (line for line in text.splitlines() if line.startswith(f"{SHAPE}: degraded  "))
    assert line.endswith("NOT met")
    assert "to a loss of 2.50" in text


@pytest.mark.unit
def test_the_bases_tables_name_medians_over_the_layers():
    row = report_quality([*QUALITY, *(Quality("gate", q.way, 8, 0.8, 0.4) for q in QUALITY)]).splitlines()[1]
    assert row.split()[-8:] == ["0.850"] * 4 + ["0.450"] * 4
    rows = report_cost([COST]).splitlines()[1:]
    assert [row.split()[-2] for row in rows] == ["1x", "10x", "40x"]


@pytest.mark.unit
def test_the_drawn_weights_have_the_singular_values_that_are_claimed():
    values = torch.linalg.svdvals(draw_decaying(24, 16))
    torch.testing.assert_close(values / values[0], torch.arange(1, 17).pow(-DECAY), rtol=1e-4, atol=1e-5)
    cost = measure_cost(24, 16, 4, 2)
    assert cost.svd_seconds.num_values == cost.first_seconds.num_values == cost.warm_seconds.num_values == 2
    assert 0.9 < cost.first_energy_ratio < 1 + 1e-5


@pytest.mark.unit
def test_the_document_is_plain_json():
    document = json.loads(json.dumps(to_document(measured(), QUALITY, 2.5, [COST], MACHINE), allow_nan=False))
    assert [found["way"] for found in document["blocks"]] == list(WAYS)
    assert document["ratios"][0]["measured"]["median"] == pytest.approx(0.5)
    assert document["cost"][0]["warm_seconds"]["median"] == pytest.approx(0.01)


@pytest.mark.unit
def test_what_was_measured_on_a_gpu_says_on_which(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    shape = Shape("350m", 2, "cuda", "bfloat16", 16)
    for measurements, gpu in ((measured(), None), (measured() + measured(shape), "a GPU")):
        results = (measurements, QUALITY, 2.5, [COST], MACHINE)
        assert to_document(*results)["gpu"] == gpu
        assert ("device: a GPU" in report(*results)) == (gpu is not None)


@pytest.mark.nightly
def test_quick():
    command = [sys.executable, "-m", "benchmarks.approximation", "--json", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    cpu = [found for found in document["blocks"] if found["device"] == "cpu"]
    assert {found["way"] for found in cpu} == set(WAYS)
    # Two of the three parts of a linear map's work are its backward pass: a timing that missed it would show.
    assert all(found["backward_seconds"]["median"] > found["forward_seconds"]["median"] / 2 for found in cpu)
    for rank in (8, 16):
        qualities = [found for found in document["quality"] if found["rank"] == rank]
        assert {found["way"] for found in qualities} == {"first", "stale", "warm", "svd"}
        assert all(found["energy_ratio"] <= 1 + 1e-4 and 0 < found["error_ratio"] < 1 for found in qualities)
        assert all(found["energy_ratio"] > 0.85 for found in qualities if found["way"] != "stale")
