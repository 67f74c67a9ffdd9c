"""The file of `chaos forecast`: what it may say, and how a mistake in it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.errors import UsageError
from mecefo_chaos.studies.forecast.cluster_file import EXAMPLE, load
from mecefo_chaos.studies.forecast.model import Loss, Policy, SnapshotSaving
from mecefo_chaos.studies.forecast.strategies import all_policies, strategy_names
from mecefo_runtime.prediction.named_devices import named_device

pytestmark = pytest.mark.unit

LEAST = """\
device: a100-7b
cluster: {nodes: 4, gpus_per_node: 2, data_parallel: 4, pipeline: 2}
training: {microbatches_per_replica: 4, steps: 100}
failures: {every: 1h, repair: 2h}
"""


def loaded(tmp_path, text):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return load(path)


def test_the_example_is_a_question(tmp_path):
    question = loaded(tmp_path, EXAMPLE)
    assert question.job.cluster.num_ranks == 32
    assert question.failures.interval_seconds == 1800
    assert question.wants_best_interval


def test_what_is_not_said_has_a_default(tmp_path):
    question = loaded(tmp_path, LEAST)
    assert question.policies == tuple(all_policies(has_snapshots=False))
    assert {policy.name for policy in question.policies} == {*strategy_names()} - {"reft"}
    assert question.recovery.checkpoint is None and not question.wants_best_interval
    device = named_device("a100-7b")
    assert question.job.costs == device.costs and question.job.link == device.links.between_nodes
    assert question.job.tokens_per_step == 16 * device.tokens_per_microbatch


def test_everything_can_be_said(tmp_path):
    text = LEAST.replace("repair: 2h}", "repair: 2h, of: unit, takes: node, shape: 0.8, burst: {share: 0.1}}") + (
        "training: {microbatches_per_replica: 4, steps: 100, microbatch_size: 2}\n"
        "recovery: {detection: 1s, replacement: 5min}\n"
        "checkpoint: {save: 10s, interval: 15min}\n"
        "snapshot: {save: 1s, interval: 1min, survives: 0.9}\n"
        "strategies: [exact, {name: mecefo, quality: 0.1}]\n"
        "degraded_sample_worth: 0.5\n"
    )
    text = text.replace("training: {microbatches_per_replica: 4, steps: 100}\n", "", 1)
    question = loaded(tmp_path, text)
    failures = question.failures
    assert (failures.per_unit, failures.unit, failures.shape, failures.burst_ratio) == (True, "node", 0.8, 0.1)
    assert question.recovery.replacement_seconds == 300
    assert question.recovery.checkpoint.interval_seconds == 900
    assert question.recovery.snapshot.survival_ratio == 0.9
    assert question.policies == (Policy("exact", 0.0, 0.5), Policy("mecefo", 0.1))
    assert question.job.tokens_per_step == 16 * 512


def test_snapshots_are_those_of_the_runtime_where_their_protection_is_said(tmp_path):
    text = (
        "snapshot: {save: 0s, interval: 30s, complete: 10s, rebuild: 1s, protection: pq, group: 6, nodes_per_rack: 2}"
    )
    question = loaded(tmp_path, f"{LEAST}{text}\n")
    assert question.recovery.snapshot is None
    assert question.recovery.memory == SnapshotSaving(30, 0, 10, 0, 1, "pq", 6, 2)
    reft, checkpoint = (Policy(name) for name in ("reft", "checkpoint"))
    assert "reft" in {policy.name for policy in question.policies}
    assert question.recovery_of(reft, question.recovery) == question.recovery
    # It is what a plain job does: it goes back to what it has on disk.
    assert question.recovery_of(checkpoint, question.recovery).memory is None


def test_a_device_may_be_a_file_beside_it(tmp_path):
    device = replace(named_device("a100-1b"), name="mine")
    (tmp_path / "mine.json").write_text(device.to_text())
    question = loaded(tmp_path, LEAST.replace("a100-7b", "mine.json"))
    assert question.device == device


def test_a_trace_lies_beside_it(tmp_path):
    (tmp_path / "t.csv").write_text("time,node\n5,1\n")
    question = loaded(tmp_path, LEAST.replace("every: 1h", "trace: t.csv"))
    assert question.failures.trace == (Loss(5, (2, 3), 7200, (1,)),)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("device", "devise", 1, ["devise", "unknown key", "did you mean 'device'"]),
        ("a100-7b", "a100-7", 1, ["device", "no device 'a100-7'", "did you mean 'a100-7b'"]),
        ("a100-7b", "none/of.json", 1, ["device", "cannot read"]),
        ("a100-7b", "cluster.yaml", 1, ["device", "no device model"]),
        ("pipeline: 2", "pipeline: 3", 2, ["data_parallel x pipeline"]),
        ("nodes: 4", "nodes: 0", 2, ["cluster.nodes", "at least 1"]),
        ("nodes: 4", "nodes: four", 2, ["cluster.nodes", "whole number"]),
        ("nodes: 4", "notes: 4", 2, ["cluster.notes", "did you mean 'nodes'"]),
        ("pipeline: 2", "pipeline: 2.5", 2, ["cluster.pipeline"]),
        ("every: 1h", "every: 60", 4, ["failures.every", "no unit"]),
        ("every: 1h", "every: 0s", 4, ["failures.every"]),
        ("every: 1h", "every: -1h", 4, ["failures.every"]),
        ("every: 1h", "evry: 1h", 4, ["failures.evry", "did you mean 'every'"]),
        ("every: 1h, ", "", 4, ["failures", "every: 3h"]),
        ("every: 1h", "every: 1h, trace: t.csv", 4, ["failures", "either"]),
        ("every: 1h", "trace: none.csv", None, ["cannot read the trace"]),
        ("repair: 2h", "repair: 2h, shape: .nan", 4, ["failures.shape", "number"]),
        ("repair: 2h", "repair: 2h, shape: -1", 4, ["failures.shape", "Weibull"]),
        ("repair: 2h", "repair: 2h, takes: noda", 4, ["failures.takes", "did you mean 'node'"]),
        ("repair: 2h", "repair: 2h, burst: {share: 1}", 4, ["failures.burst.share", "no end"]),
        ("repair: 2h", "repair: 2h, burst: {share: 2}", 4, ["failures.burst.share", "between 0 and 1"]),
        ("steps: 100", "steps: 0", 3, ["training.steps"]),
        ("steps: 100", "steps: true", 3, ["training.steps"]),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, old, new, line, words):
    with pytest.raises(UsageError) as refused:
        loaded(tmp_path, LEAST.replace(old, new, 1))
    text = str(refused.value)
    assert all(word in text for word in words), text
    if line is not None:
        assert f"cluster.yaml:{line}: " in text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("strategies: [mecef]", ["strategies[0]", "no strategy 'mecef'", "did you mean 'mecefo'"]),
        ("strategies: []", ["strategies"]),
        ("strategies: [3]", ["strategies[0]", "no strategy"]),
        ("strategies: [{name: mecefo, limit: 1}]", ["strategies[0]", "unknown key 'limit'"]),
        ("strategies: [{name: mecefo, quality: 3}]", ["strategies[0]", "between 0 and 1"]),
        ("strategies: [{name: mecefo, quality: fast}]", ["strategies[0]", "auto, speed, exact"]),
        ("degraded_sample_worth: 1.5", ["degraded_sample_worth", "between 0 and 1"]),
        ("checkpoint: {save: 10s, interval: never}", ["checkpoint.interval"]),
        ("checkpoint: {interval: 10s}", ["checkpoint.save", "is missing"]),
        ("snapshot: {save: 10s, interval: 1h, survives: 2}", ["snapshot.survives"]),
        ("snapshot: {save: 1s, interval: 1h, survives: 0.5, protection: xor}", ["snapshot.survives", "protection"]),
        ("snapshot: {save: 1s, interval: 1h, group: 3}", ["snapshot.group", "add `protection`"]),
        ("snapshot: {save: 1s, interval: 1h, protection: xo}", ["snapshot.protection"]),
        ("strategies: [reft]", ["strategies[0]", "say what they take under `snapshot`"]),
        ("recovery: 3", ["recovery", "mapping"]),
    ],
)
def test_so_are_those_of_what_may_be_left_out(tmp_path, more, words):
    with pytest.raises(UsageError) as refused:
        loaded(tmp_path, f"{LEAST}{more}\n")
    assert all(word in str(refused.value) for word in (*words, "cluster.yaml:5")), str(refused.value)


def test_all_mistakes_are_told_at_once(tmp_path):
    with pytest.raises(UsageError) as refused:
        loaded(tmp_path, LEAST.replace("steps: 100", "steps: 0").replace("every: 1h", "every: 5"))
    assert len(refused.value.problems) == 2


@pytest.mark.parametrize("text", ["", "- a\n", "just words", "a: [", "\x00"])
def test_what_is_no_mapping_is_refused(tmp_path, text):
    with pytest.raises(UsageError):
        loaded(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path)


def test_every_strategy_has_a_name():
    assert {"mecefo", "ndb", "exact", "checkpoint", "bamboo"} <= set(strategy_names())
