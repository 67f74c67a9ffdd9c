import json
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._machine import Machine
from benchmarks.convergence.cases import FREE, LENGTHS, Case, list_cases
from benchmarks.convergence.failures import PAPER_RUN_HOURS, PROCESSES, alive_by_step
from benchmarks.convergence.policies import CLUSTER, POLICIES, Policy, Share, StepPlan, plan_steps
from benchmarks.convergence.report import Curve, curve_of, figures_of, report, to_document
from benchmarks.convergence.runs import Dealer, Outcome, Run, groups_of, recall, train_and_keep, trained_layers
from benchmarks.convergence.training import NO_CORRECTION, Correction, Group, Training, split_text
from mecefo_runtime.job.config import ApproximationConfig, JobConfig, ModelConfig
from mecefo_runtime.job.layout import EMBEDDING, HEAD, layer_unit
from mecefo_runtime.model.approximate import bases, degrade
from mecefo_runtime.model.data import Corpus
from mecefo_runtime.model.model import build_unit
from tests.benchmarks.limits import TIMEOUT_SECONDS

PROJECTED = Case("mecefo", "high", 0.0, "rest averaged", projected_share_limit=0.5)
MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")
TEXT = bytes(range(32, 127)) * 40
JOB = JobConfig(
    model=ModelConfig(16, 24, 3, 2, 2, 256),
    sequence_length=8,
    approximation=ApproximationConfig(rank=4),
)
EVERYONE = frozenset(range(CLUSTER.num_ranks))


def replica_gradients(job, samples, degraded, num_samples, projected=frozenset()):
    """What one replica's ranks would contribute, computed with the runtime's own parts: {parameter: gradient}."""
    names = [EMBEDDING, *(layer_unit(layer) for layer in range(job.model.num_layers)), HEAD]
    units = {name: build_unit(name, job.model, job.seed) for name in names}
    for layer in degraded:
        degrade(units[layer_unit(layer)], job.approximation, seed=job.seed)
    for layer in projected:
        degrade(units[layer_unit(layer)], job.approximation, skip_attention=False, seed=job.seed)
    x, targets = Corpus(TEXT, job.sequence_length, job.seed).batch(samples)
    for name in names[:-1]:
        x = units[name](x)
    (units[HEAD].loss(x, targets) / (num_samples * job.sequence_length)).backward()
    return {
        f"{name}.{key}": torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, unit in units.items()
        for key, parameter in unit.named_parameters()
    }


def is_attention(name, layer):
    return name.startswith((f"layer.{layer}.attention.", f"layer.{layer}.attention_norm."))


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.unit
def test_a_step_is_what_the_replicas_all_reduce():
    replicas = [
        ((0, 1, 2), frozenset(), frozenset({2})),
        ((3, 4), frozenset({0, 1}), frozenset()),
        ((5, 6, 7), frozenset({1}), frozenset({0})),
    ]
    expected = {}
    for samples, degraded, projected in replicas:
        for name, gradient in replica_gradients(JOB, samples, degraded, 8, projected).items():
            expected[name] = expected.get(name, 0) + gradient
    for name in expected:
        # N(l): layer 0 is exact for 6 of 8 samples, layer 1 for 3 of 8.
        expected[name] = expected[name] * (8 / 6 if is_attention(name, 0) else 8 / 3 if is_attention(name, 1) else 1)
    groups = [Group(*replica) for replica in replicas]
    assert_equal(Training(JOB, TEXT, NO_CORRECTION).gradients(groups), expected)


@pytest.mark.unit
def test_how_exact_samples_are_grouped_does_not_matter():
    training = Training(JOB, TEXT, NO_CORRECTION)
    assert_equal(training.gradients([Group((0, 1)), Group((2, 3, 4))]), training.gradients([Group((0, 1, 2, 3, 4))]))


@pytest.mark.unit
def test_attention_that_nobody_computes_exactly_has_no_gradient():
    found = Training(JOB, TEXT, NO_CORRECTION).gradients([Group((0, 1), frozenset({1}))])
    assert not [name for name in found if is_attention(name, 1)]
    assert [name for name in found if is_attention(name, 0)]


@pytest.mark.unit
@pytest.mark.parametrize("layers", [(frozenset({1}),), (frozenset(), frozenset({1}))], ids=["degraded", "projected"])
def test_the_rest_of_a_projected_gradient_can_be_averaged_over_the_exact_samples(layers):
    exact = replica_gradients(JOB, (0, 1, 2), frozenset(), 4)
    degraded = replica_gradients(JOB, (3,), layers[0], 4, *layers[1:])
    block = build_unit("layer.1", JOB.model, JOB.seed)
    degrade(block, JOB.approximation, seed=JOB.seed)
    projections = bases(block)

    def kept(name, gradient):
        if name == "down":
            return projections.down @ projections.down.T @ gradient
        basis = getattr(projections, name)
        return gradient @ basis @ basis.T

    found = Training(JOB, TEXT, Correction(averages_rest=True)).gradients([Group((0, 1, 2)), Group((3,), *layers)])
    for name in ("gate", "up", "down"):
        key = f"layer.1.ffn.{name}.weight"
        rest = exact[key] - kept(name, exact[key])
        expected = kept(name, exact[key]) + degraded[key] + rest * 4 / 3
        torch.testing.assert_close(found[key], expected, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(expected, exact[key] + degraded[key], rtol=1e-2, atol=1e-6)


@pytest.mark.unit
def test_degraded_samples_can_weigh_less_in_the_layers_below():
    exact, degraded = (replica_gradients(JOB, *part, 4) for part in (((0, 1, 2), frozenset()), ((3,), frozenset({1}))))
    found = Training(JOB, TEXT, Correction(weight_below=0.5)).gradients([Group((0, 1, 2)), Group((3,), frozenset({1}))])
    for name in ("embedding.weight", "layer.0.ffn.up.weight", "layer.0.attention.q.weight"):
        torch.testing.assert_close(found[name], (exact[name] + degraded[name] / 2) * 4 / 3.5, rtol=1e-4, atol=1e-6)
    for name in ("layer.1.ffn.up.weight", "layer.2.attention.q.weight", "head.output.weight"):
        torch.testing.assert_close(found[name], exact[name] + degraded[name], rtol=1e-4, atol=1e-6)


@pytest.mark.unit
def test_the_gradient_error_is_zero_for_exact_steps_alone():
    training = Training(JOB, TEXT, NO_CORRECTION)
    assert training.gradient_error([Group((0, 1)), Group((2,))], (0, 1, 2)) == pytest.approx(0, abs=1e-5)
    assert 0.05 < training.gradient_error([Group((0, 1)), Group((2,), frozenset({0, 1, 2}))], (0, 1, 2)) < 1
    # Of no direction in common would be sqrt(2): other samples' gradients share some.
    assert 0.05 < training.gradient_error([Group((0, 1))], (0, 1, 2)) < 1.5


@pytest.mark.unit
def test_training_lowers_the_validation_loss():
    training = Training(JOB, TEXT, NO_CORRECTION)
    before = training.validation_loss(TEXT)
    for step in range(1, 21):
        training.step(step, [Group(tuple(range(step * 4, step * 4 + 3))), Group((step * 4 + 3,), frozenset({1}))])
    assert training.validation_loss(TEXT) < before - 0.2


@pytest.mark.unit
def test_the_validation_text_is_no_part_of_the_training_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{number:07d}\n" for number in range(400_000)))
    training, validation = (set(part.splitlines()) for part in split_text(str(path)))
    assert len(training & validation) < 100  # pieces of lines at the borders of blocks
    assert 0.02 < len(validation) / len(training) < 0.03
    assert len(training | validation) >= 400_000


@pytest.mark.unit
def test_every_length_of_run_sees_the_same_share_of_failures():
    def mean_down(num_steps):
        runs = [alive_by_step(PROCESSES["high"], 32, num_steps, seed) for seed in range(20)]
        return 32 - sum(len(alive) for run in runs for alive in run) / (20 * num_steps)

    assert mean_down(1000) == pytest.approx(4.0, rel=0.1)
    assert mean_down(200) == pytest.approx(mean_down(1000), rel=0.05)
    assert pytest.approx(39.3, abs=0.1) == PAPER_RUN_HOURS


@pytest.mark.unit
def test_failures_follow_from_the_seed():
    process = PROCESSES["mid"]
    assert alive_by_step(process, 32, 300, 1) == alive_by_step(process, 32, 300, 1)
    assert alive_by_step(process, 32, 300, 1) != alive_by_step(process, 32, 300, 2)
    assert set(alive_by_step(None, 32, 10, 1)) == {EVERYONE}


@pytest.mark.unit
@pytest.mark.parametrize("name", POLICIES)
def test_the_shares_of_a_step_are_the_whole_step(name):
    for plan in plan_steps(POLICIES[name], [EVERYONE, EVERYONE - {3}, EVERYONE - {3, 7, 12}, EVERYONE]):
        assert sum(share.ratio for share in plan.shares) == pytest.approx(1)


@pytest.mark.unit
def test_what_a_lost_rank_costs_each_policy():
    def with_one_lost(policy):
        without, with_loss = plan_steps(policy, [EVERYONE, EVERYONE - {3}])
        assert (without.degraded_ratio, without.lost_ratio) == (0, 0)
        return with_loss, with_loss.seconds / without.seconds

    mecefo, mecefo_time = with_one_lost(POLICIES["mecefo"])
    exact, exact_time = with_one_lost(POLICIES["exact"])
    ndb, ndb_time = with_one_lost(POLICIES["ndb"])
    drop, drop_time = with_one_lost(POLICIES["drop"])
    balanced, balanced_time = with_one_lost(Policy("mecefo", 0.0))
    assert (drop.lost_ratio, drop_time) == (1 / 8, 1)
    assert exact.degraded_ratio == balanced.degraded_ratio == 0
    assert ndb.degraded_ratio == pytest.approx(1 / 16)
    assert 0 < mecefo.degraded_ratio < 1 / 8
    assert 1 <= mecefo_time < balanced_time < exact_time
    assert mecefo_time < ndb_time < exact_time
    projected, projected_time = with_one_lost(Policy("mecefo", 0.0, 0.5))
    assert projected.degraded_ratio == 0 < projected.projected_ratio < 0.5
    assert 1 <= projected_time < balanced_time


@pytest.mark.unit
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 40), st.integers(1, 30))
def test_all_samples_are_dealt_and_everyone_gets_their_share(weights, num_samples, num_steps):
    shares = [Share(replica, weight / sum(weights)) for replica, weight in enumerate(weights)]
    dealer, counts = Dealer(len(shares)), [0] * len(shares)
    for step in range(num_steps):
        samples = range(step * num_samples, (step + 1) * num_samples)
        dealt = dealer.deal(shares, samples)
        assert [sample for _, part in dealt for sample in part] == list(samples)
        for share, part in dealt:
            counts[share.replica] += len(part)
    for share, count in zip(shares, counts, strict=True):
        assert abs(count - share.ratio * num_steps * num_samples) <= len(shares)


@pytest.mark.unit
def test_a_trained_layer_is_degraded_as_often_as_those_it_stands_for():
    degraded = frozenset({0, 1, 2, 9, 30, 31})
    counts = [0] * 4
    for step in range(8):
        for layer in trained_layers(degraded, 32, 4, step):
            counts[layer] += 1
    assert counts == [3, 1, 0, 2]
    assert trained_layers(frozenset(range(8, 24)), 32, 4, 5) == {1, 2}


@pytest.mark.unit
def test_samples_that_run_alike_are_one_group_and_lost_ones_are_in_none():
    whole = frozenset(range(8))
    dealt = [
        (Share(0, 0.25), (0, 1)),
        (Share(1, 0.25, whole), (2, 3)),
        (Share(2, 0.25, is_lost=True), (4, 5)),
        (Share(3, 0.25), (6,)),
    ]
    assert groups_of(dealt, 4, 1) == [Group((0, 1, 6)), Group((2, 3), frozenset({0}))]
    projecting = [(Share(0, 0.5, projected=whole), (0,)), (Share(1, 0.5, whole), (1,))]
    assert groups_of(projecting, 4, 1) == [Group((0,), projected=frozenset({0})), Group((1,), frozenset({0}))]


@pytest.mark.unit
def test_a_run_is_recalled_as_it_was_and_not_as_another(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT * 40)
    run = Run(POLICIES["ndb"], "high", seed=0, num_steps=3)
    outcome = train_and_keep(run, "a", str(path), tmp_path / "runs")
    assert recall(run, "a", str(path), tmp_path / "runs") == outcome
    assert recall(Run(POLICIES["ndb"], "high", seed=1, num_steps=3), "a", str(path), tmp_path / "runs") is None
    assert recall(run, "b", str(path), tmp_path / "runs") is None
    assert [found.name for found in (tmp_path / "runs").iterdir()] == ["a.json"]


@pytest.mark.unit
def test_losses_of_shorter_runs_say_what_a_loss_is_worth():
    curve = Curve(((0.5, 0.2), (1.0, 0.0), (1.25, -0.05)))
    assert curve.efficiency(0.2) == pytest.approx(0.5)
    assert curve.efficiency(0.1) == pytest.approx(math.sqrt(0.5))
    assert curve.efficiency(0.0) == pytest.approx(1.0)
    assert curve.efficiency(-0.2) == 1.25
    assert curve.efficiency(0.21) is None


def outcome(loss, **changes):
    ratios = dict.fromkeys(("degraded_ratio", "projected_ratio", "lost_ratio"), 0.0)
    values = {"down_ranks": 0.0, "step_seconds": 1.0, "gradient_errors": ()} | ratios
    return Outcome(validation_loss=loss, **(values | changes))


def measured():
    step = plan_steps(POLICIES["exact"], [EVERYONE])[0].seconds
    return {
        FREE: {0: outcome(1.0), 1: outcome(1.1)},
        Case(length_ratio=0.5): {0: outcome(1.2), 1: outcome(1.3)},
        Case("ndb", "high"): {
            0: outcome(1.1, step_seconds=1.5 * step, degraded_ratio=0.25, gradient_errors=(0.3, 0.5)),
            1: outcome(1.5, step_seconds=1.5 * step, degraded_ratio=0.25, gradient_errors=(0.4,)),
        },
        Case("ndb", "high", length_ratio=1.5): {0: outcome(0.9, step_seconds=1.5 * step)},
        Case("drop", "high"): {0: outcome(1.0, step_seconds=step, lost_ratio=0.25)},
        PROJECTED: {0: outcome(1.0, step_seconds=1.1 * step, projected_ratio=0.27)},
    }


@pytest.mark.unit
def test_the_figures_follow_from_the_outcomes():
    assert curve_of(measured()).points == ((0.5, pytest.approx(0.2)), (1.0, 0.0))
    ndb, longer, drop, projected = figures_of(measured())
    assert (projected.projected_ratio, projected.times_to_loss.values) == (0.27, pytest.approx((1.1,)))
    assert ndb.perplexity_ratios.values == pytest.approx((math.exp(0.1), math.exp(0.4)))
    assert ndb.efficiencies == (pytest.approx(math.sqrt(0.5)), None)
    assert ndb.times_to_loss.values == (pytest.approx(1.5 / math.sqrt(0.5)), math.inf)
    assert ndb.throughput_drop == pytest.approx(1 / 3)
    assert ndb.gradient_errors.num_values == 3
    assert longer.perplexity_ratios.values == pytest.approx((math.exp(-0.1),))
    assert drop.throughput_drop == pytest.approx(0.25)
    assert drop.times_to_loss.values == pytest.approx((1.0,))


@pytest.mark.unit
def test_the_report_shows_the_paper_beside_the_figures():
    text = report(measured(), 1000, 24, MACHINE)
    row = next(line for line in text.splitlines() if line.startswith("ndb, high") and "to" in line)
    assert "+1.60% to +2.19%" in row or "+1.61% to +2.19%" in row
    longer = next(line for line in text.splitlines() if "150%" in line)
    assert longer.split()[-5:] == ["2.250", "-9.5%", "-9.5%", "-9.5%", "1"]
    assert "4.18%" in text and "not reached" in text and "50%: +22.1%" in text
    _, section = text.split("projects a layer")
    rows = [line.split() for line in section.splitlines() if line.startswith(str(PROJECTED))]
    assert [("27.0%" in row, "1.100" in row) for row in rows] == [(True, False), (False, True)]
    document = json.loads(json.dumps(to_document(measured(), 1000, 24, MACHINE), allow_nan=False))
    assert [case["case"] for case in document["cases"]] == [
        *("ndb, high", "ndb, high, 150% of the steps", "drop, high"),
        str(PROJECTED),
    ]
    assert len(document["runs"]) == 9


@pytest.mark.unit
def test_every_case_has_a_failure_free_run_to_compare_with_and_a_name_of_its_own():
    cases = list_cases(2)
    assert {(FREE, 0), (FREE, 1)} <= set(cases)
    assert len({case.slug for case, _ in cases}) == len({case for case, _ in cases}) == len(cases) / 2
    assert {case.length_ratio for case, _ in cases if case.process is None} == {1.0, *LENGTHS}
    assert {(case.policy, case.process) for case, _ in cases} >= {(p, q) for p in POLICIES for q in PROCESSES}


@pytest.mark.unit
def test_a_plan_says_how_much_is_degraded():
    plan = StepPlan((Share(0, 0.5, frozenset(range(16))), Share(1, 0.3), Share(2, 0.2, is_lost=True)), 1.0)
    assert plan.degraded_ratio == pytest.approx(0.25)
    assert plan.lost_ratio == pytest.approx(0.2)


@pytest.mark.nightly
def test_quick(tmp_path):
    command = [sys.executable, "-m", "benchmarks.convergence", "--json", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    by_case = {case["case"]: case for case in document["cases"]}
    assert by_case["exact, high"]["perplexity_ratio"]["median"] == 1
    assert by_case["exact, high"]["throughput_drop_ratio"] > by_case["mecefo, high"]["throughput_drop_ratio"]
    assert by_case["mecefo, high"]["degraded_ratio"] > 0
    # Nothing is trained twice.
    files = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = subprocess.run([*command, "--only-done"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert json.loads(again.stdout)["cases"] == document["cases"]
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files
