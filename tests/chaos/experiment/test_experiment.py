import json
import random
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.experiment.experiment import Experiment, experiment_hash, to_yaml
from chaos.experiment.fault_spec import FAULT_KEYS
from chaos.experiment.job import DEFAULT_CHECKPOINT_STEPS, Job, Snapshots
from chaos.experiment.reading import from_mapping, from_options, load
from chaos.experiment.schema import json_schema
from chaos.language.target import Target
from chaos.language.trigger import Duration, Trigger
from chaos.language.yaml_lines import Dumper, parse
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.json_values import to_json
from tests.chaos.fake_faults import REGISTRY, STRATEGIES

pytestmark = pytest.mark.unit

KNOWN = {"registry": REGISTRY, "strategies": STRATEGIES}
GOOD = """\
name: node-loss-midrun
seed: 7
job: {model: llama-tiny, nodes: 4, gpus_per_node: 2, data_parallel: 4, pipeline: 2, steps: 300, strategy: ndb}
faults:
  - kind: kill-node
    on: node=2
    at: {step: 100, phase: backward}
    repair: 60steps
  - kind: slow-link
    on: rank=1
    at: step=200
    delay: 50ms
gates: ["throughput_drop <= 4.18%", "recovery_seconds p95 < 5"]
halt: ["training_loss is nan"]
"""


def read_text(text):
    document = parse(text, "e.yaml")
    return from_mapping(document.values, document.lines, path=document.path, **KNOWN)


def refusal(text):
    with pytest.raises(UsageError) as refused:
        read_text(text)
    return refused.value


def options(subject="kill-node", **given):
    return from_options(subject, {"at": "step=5", **given}, **KNOWN)


class TestReading:
    def test_the_documented_file(self):
        experiment = read_text(GOOD)
        assert (experiment.name, experiment.seed, experiment.twin, experiment.backend) == (
            "node-loss-midrun",
            7,
            True,
            "local",
        )
        kill, slow = experiment.faults
        assert (kill.on, kill.at, kill.repair) == (Target(node=2), Trigger(100, "backward"), Duration(steps=60))
        assert (slow.repair, slow.parameters) == (None, {"delay": "50ms", "loss_ratio": 0.0})
        assert experiment.gates == ["throughput_drop <= 4.18%", "recovery_seconds p95 < 5"]
        assert experiment.halt == ["training_loss is nan"]

    def test_the_least_that_can_be_said(self):
        experiment = read_text("name: x")
        assert experiment.faults == []
        assert experiment.job.to_config(0, 1.0) == JobConfig()

    def test_load_names_the_file(self, tmp_path):
        path = tmp_path / "mine.yaml"
        path.write_text(GOOD)
        assert load(path, **KNOWN) == read_text(GOOD)
        path.write_text(GOOD.replace("seed", "sed"))
        with pytest.raises(UsageError, match=r"mine.yaml:2: sed: unknown key \(did you mean 'seed'\?\)"):
            load(path, **KNOWN)

    def test_installed_faults_and_planners_are_the_default(self):
        experiment = from_mapping({"name": "x", "faults": [{"kind": "kill-node", "at": "step=3"}]})
        assert experiment.faults[0].kind == "kill-node"
        with pytest.raises(UsageError, match="there is no strategy 'magic'"):
            from_mapping({"name": "x", "job": {"strategy": "magic"}})

    def test_repair_none_is_not_the_default(self):
        kinds = [
            {"kind": "kill-node", "at": "step=1", **repair} for repair in ({}, {"repair": "none"}, {"repair": "10s"})
        ]
        faults = from_mapping({"name": "x", "faults": kinds}, **KNOWN).faults
        assert [fault.repair for fault in faults] == [None, "none", Duration(seconds=10.0)]

    @pytest.mark.parametrize(
        ("said", "read"), [("auto", "auto"), ("off", "off"), ("2.5", 2.5), ("1", 1.0), ("'3'", 3.0)]
    )
    def test_dilation(self, said, read):
        assert read_text(f"name: x\njob: {{dilation: {said}}}").job.dilation == read

    def test_is_frozen(self):
        with pytest.raises(ValueError, match="frozen"):
            read_text(GOOD).seed = 3

    def test_reads_without_torch(self):
        code = "import sys, chaos.experiment.experiment, chaos.plan.schedule; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestRefusals:
    @pytest.mark.parametrize(
        ("old", "new", "line", "key", "message", "suggestion"),
        [
            ("seed: 7", "seeed: 7", 2, "seeed", "unknown key", "seed"),
            ("seed: 7", "zzz: 7", 2, "zzz", "unknown key: here are name, seed, job", None),
            ("seed: 7", "seed: -7", 2, "seed", "must be at least 0, not -7", None),
            ("seed: 7", "seed: seven", 2, "seed", "must be a whole number, not 'seven'", None),
            ("seed: 7", "twin: yes", 2, "twin", "must be true or false, not 'yes'", None),
            ("seed: 7", "backend: podman", 2, "backend", "'docker', 'slurm' or 'ssh', not 'podman'", None),
            ("seed: 7", "containers: {cpus: 2}", 2, "containers.cpus", "add backend: docker", None),
            ("name: node-loss-midrun", "name: 3", 1, "name", "must be text, not 3", None),
            ("name: node-loss-midrun", "name: ''", 1, "name", "must be a text that is not empty", None),
            ("name: node-loss-midrun", 'name: "a\\eb"', 1, "name", "control characters", None),
            ("name: node-loss-midrun", "twin: true", 1, "name", "is missing: give the experiment a name", None),
            ("model: llama-tiny", "model: lama-tiny", 3, "job.model", "there is no model 'lama-tiny'", "llama-tiny"),
            ("strategy: ndb", "strategy: mecfo", 3, "job.strategy", "there are exact, mecefo, ndb", "mecefo"),
            ("strategy: ndb", "stratgy: ndb", 3, "job.stratgy", "unknown key", "strategy"),
            ("steps: 300", "steps: 3.5", 3, "job.steps", "must be a whole number, not 3.5", None),
            ("steps: 300", "steps: true", 3, "job.steps", "must be a whole number, not true", None),
            ("nodes: 4", "nodes: 0", 3, "job.nodes", "must be at least 1, not 0", None),
            ("nodes: 4", "nodes: 4, dilation: 0.5", 3, "job.dilation", "auto, off or a number from 1 to 1000", None),
            ("nodes: 4", "nodes: 4, dilation: 1e9", 3, "job.dilation", "auto, off or a number from 1 to 1000", None),
            ("nodes: 4", "nodes: 4, heartbeat_timeout: 0.1s", 3, "job.heartbeat_timeout", "500ms and 10min", None),
            ("nodes: 4", "nodes: 4, heartbeat_timeout: 9steps", 3, "job.heartbeat_timeout", "write 30s", None),
            ("nodes: 4", "nodes: 4, learning_rate: .inf", 3, "job.learning_rate", "must be a finite number", None),
            ("nodes: 4", "nodes: 4, approximation: {rnk: 3}", 3, "job.approximation.rnk", "unknown key", "rank"),
            ("nodes: 4", "nodes: 4, approximation: {rank: 65}", 3, "job.approximation.rank", "choose 1 to 64", None),
            ("nodes: 4", "nodes: 4, runtime: torch", 3, "job.runtime", "must be 'mecefo'", None),
            ("kind: kill-node", "kind: kil-node", 5, "faults[0].kind", "there is no fault 'kil-node'", "kill-node"),
            ("kind: kill-node", "kind: 3", 5, "faults[0].kind", "must be text", None),
            ("on: node=2", "on: nod=2", 6, "faults[0].on", "there is no target 'nod'", "node"),
            ("on: node=2", "on: node=7", 6, "faults[0].on", "node=7 does not exist: the job has nodes 0 to 3", None),
            ("on: node=2", "on: {node: 2}", 6, "faults[0].on", "is no target", None),
            ("on: node=2", "on: role=coordinator", 8, "faults[0].repair", "is started again by itself", None),
            ("backward", "bakward", 7, "faults[0].at.phase", "there is no phase 'bakward'", "backward"),
            ("step: 100, phase: backward", "step: 1, time: 2s", 7, "faults[0].at", "contradict", None),
            ("step: 100, phase", "stp: 100, phase", 7, "faults[0].at.stp", "there is no 'stp' in a trigger", "step"),
            (
                "step: 100",
                "step: 700",
                7,
                "faults[0].at.step",
                "step=700, but the job has 300 steps: choose a step from 1 to 300, or raise job.steps",
                None,
            ),
            ("repair: 60steps", "repair: 60", 8, "faults[0].repair", "write 60s or 60steps; or none", None),
            ("repair: 60steps", "repare: 60steps", 8, "faults[0].repare", "unknown key", "repair"),
            ("repair: 60steps", "parameters: {}", 8, "faults[0].parameters", "unknown key", None),
            ("    at: step=200\n", "", 9, "faults[1].at", "is missing: say when", None),
            ("    delay: 50ms\n", "", 9, "faults[1].delay", "is missing", None),
            ("delay: 50ms", "delay: 50", 12, "faults[1].delay", "must be text, not 50", None),
            ("delay: 50ms", "delay: 50mm", 9, "faults[1]", "'mm' is no unit", None),
            ("delay: 50ms", "{delay: 50ms, loss_ratio: 2}", None, None, "not YAML", None),
            ("delay: 50ms", "delay: 50ms\n    loss_ratio: 2", 13, "faults[1].loss_ratio", "must be at most 1.0", None),
            ("delay: 50ms", "delay: 50ms\n    los_ratio: 1", 13, "faults[1].los_ratio", "unknown key", "loss_ratio"),
            ("gates: [", "gates: [3, ", 13, "gates[0]", "must be text", None),
            ('halt: ["training_loss is nan"]', "halt: training_loss", 14, "halt", "must be a list", None),
            ("seed: 7", "seed: 7\nseed: 8", 3, "seed", "duplicate key", None),
        ],
    )
    def test_say_where_what_and_what_to_do(self, old, new, line, key, message, suggestion):
        assert old in GOOD
        error = refusal(GOOD.replace(old, new, 1))
        assert len(error.problems) == 1
        assert message in error.message
        assert (error.path, error.suggestion) == ("e.yaml", suggestion)
        assert line is None or (error.line, error.key) == (line, key)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("name: x\njob: 3", "e.yaml:2: job: must be a mapping (lines of the form `key: value`), not 3"),
            ("name: x\nfaults: {kind: a}", "e.yaml:2: faults: must be a list (lines of the form `- item`)"),
            ("name: x\nfaults: [3]", "e.yaml:2: faults[0]: must be a mapping"),
            ("name: x\nfaults: [{at: step=1}]", "e.yaml:2: faults[0].kind: is missing: say which fault"),
            ("name: x\nfaults: [" + "a," * 1001 + "]", "e.yaml:2: faults: must be at most 1000 items long, not ["),
            ("name: x\nfaults:", "e.yaml:2: faults: must be a list (lines of the form `- item`), not null"),
        ],
    )
    def test_wrong_shapes(self, text, message):
        assert str(refusal(text)).startswith(message)

    def test_several_mistakes_are_reported_at_once_by_line(self):
        text = (
            GOOD.replace("seed: 7", "seeed: 7")
            .replace("steps: 300", "steps: x")
            .replace("strategy: ndb", "strategy: nbd")
            .replace("kind: kill-node", "kind: kill")
            .replace("phase: backward", "phase: x")
            .replace("delay: 50ms", "dely: 50ms")
        )
        error = refusal(text)
        assert [problem.key for problem in error.problems] == [
            "seeed",
            "job.strategy",
            "job.steps",
            "faults[0].kind",
            "faults[0].at.phase",
            "faults[1].delay",
            "faults[1].dely",
        ]
        assert str(error).splitlines()[0] == "7 mistakes:"

    def test_several_contradictions_are_reported_at_once(self):
        error = refusal(GOOD.replace("step: 100", "step: 301").replace("node=2", "node=4").replace("rank=1", "rank=8"))
        assert [problem.key for problem in error.problems] == ["faults[0].on", "faults[0].at.step", "faults[1].on"]

    @pytest.mark.parametrize(
        "raw", [None, 3, "name: x", ["name"], {5: 6}, {"name": "x", "job": {5: 6}}, {"name": {"x": 1}}]
    )
    def test_values_that_are_no_experiment(self, raw):
        with pytest.raises(UsageError):
            from_mapping(raw, **KNOWN)


class TestShape:
    @pytest.mark.parametrize(
        ("given_shape", "shape"),
        [
            ({}, (4, 2)),
            ({"data_parallel": 2}, (2, 4)),
            ({"pipeline": 4}, (2, 4)),
            ({"pipeline": 1}, (8, 1)),
            ({"data_parallel": 2, "pipeline": 4}, (2, 4)),
            ({"nodes": 3, "gpus_per_node": 1}, (3, 1)),
            ({"nodes": 2, "gpus_per_node": 1}, (2, 1)),
            ({"nodes": 2, "gpus_per_node": 1, "pipeline": 2}, (1, 2)),
            ({"nodes": 1, "gpus_per_node": 1}, (1, 1)),
        ],
    )
    def test_derives_what_is_not_given(self, given_shape, shape):
        job = Job(**given_shape)
        assert job.shape() == shape
        config = job.to_config(5, 2.0)
        assert (config.data_parallel, config.pipeline, config.seed, config.dilation_ratio) == (*shape, 5, 2.0)

    @pytest.mark.parametrize(
        ("given_shape", "key", "message"),
        [
            ({"data_parallel": 3}, "data_parallel", "job.data_parallel x job.pipeline can be 8 x 1, 4 x 2, 2 x 4"),
            ({"pipeline": 8}, "pipeline", "4 layers"),
            ({"data_parallel": 4, "pipeline": 4}, "data_parallel", "job.data_parallel 4 and job.pipeline 4 cannot"),
            ({"data_parallel": 1}, "data_parallel", "8 ranks (4 nodes x 2)"),
            ({"nodes": 1024}, "nodes", "1024 nodes x 2 ranks are 2048 ranks, and a job has at most 1024"),
            ({"gpus_per_node": 1000}, "gpus_per_node", "4 nodes x 1000 ranks are 4000 ranks"),
            ({"nodes": 4, "gpus_per_node": 1000}, "gpus_per_node", "4 nodes x 1000 ranks are 4000 ranks"),
        ],
    )
    def test_offers_what_fits(self, given_shape, key, message):
        with pytest.raises(UsageError) as refused:
            from_mapping({"name": "x", "job": given_shape}, **KNOWN)
        assert message in str(refused.value)
        assert refused.value.key == f"job.{key}"

    @given(st.integers(1, 12), st.integers(1, 8), st.sampled_from(["llama-tiny", "60m", "7b"]))
    def test_some_shape_always_fits(self, nodes, gpus_per_node, model):
        cluster = Job(nodes=nodes, gpus_per_node=gpus_per_node, model=model).to_config(0, 1.0).cluster()
        assert cluster.data_parallel * cluster.pipeline == nodes * gpus_per_node
        assert cluster.data_parallel >= cluster.pipeline or cluster.pipeline == 1

    def test_the_recipe_reaches_the_runtime(self):
        recipe = {
            "model": "60m",
            "nodes": 2,
            "steps": 9,
            "strategy": "exact",
            "data": "text.txt",
            "sequence_length": 32,
            "microbatch_size": 3,
            "microbatches_per_replica": 5,
            "learning_rate": 0.5,
            "warmup_steps": 0,
            "approximation": {"rank": 8, "refresh_steps": 3, "down_projection": "right", "average_rest": True},
        }
        config = to_json(from_mapping({"name": "x", "job": recipe}, **KNOWN).job.to_config(1, 1.0))
        assert config["model"]["hidden_size"] == 512
        assert {key: config[key] for key in recipe if key != "model"} == {
            key: value for key, value in recipe.items() if key != "model"
        }


class TestIdentity:
    def test_a_written_experiment_is_read_again(self):
        experiment = read_text(GOOD)
        assert read_text(to_yaml(experiment)) == experiment
        assert from_mapping(experiment.model_dump(mode="json"), **KNOWN) == experiment

    def test_is_written_for_people(self):
        text = to_yaml(read_text(GOOD))
        assert "  on: node=2\n  at: step=100,phase=backward\n  repair: 60steps\n" in text
        assert "data_parallel: 4\n" in text

    def test_is_the_same_for_files_that_say_the_same(self):
        said = read_text(
            GOOD.replace("data_parallel: 4, pipeline: 2, ", "").replace(
                "{step: 100, phase: backward}", "phase=backward,step=100"
            )
        )
        assert experiment_hash(said) == experiment_hash(read_text(GOOD))
        assert len(experiment_hash(said)) == 16

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("seed: 7", "seed: 8"),
            ("steps: 300", "steps: 301"),
            ("node=2", "node=1"),
            ("50ms", "51ms"),
            ("4.18", "4.19"),
        ],
    )
    def test_differs_with_what_is_said(self, old, new):
        assert experiment_hash(read_text(GOOD.replace(old, new))) != experiment_hash(read_text(GOOD))

    @given(
        st.fixed_dictionaries(
            {"name": st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20)},
            optional={
                "seed": st.integers(0, 2**63 - 1),
                "twin": st.booleans(),
                "gates": st.lists(st.sampled_from(["steps_lost == 0", "on", "1e3", "no"]), max_size=3),
                "job": st.fixed_dictionaries(
                    {},
                    optional={
                        "dilation": st.one_of(st.sampled_from(["auto", "off"]), st.floats(1, 100)),
                        "learning_rate": st.floats(1e-12, 1e12),
                        "data": st.one_of(st.none(), st.sampled_from(["a.txt", "0100", "~", "null", "a: b"])),
                    },
                ),
                "faults": st.lists(
                    st.fixed_dictionaries(
                        {"kind": st.just("kill-node"), "at": st.sampled_from(["step=560,phase=commit", "time=1.5s"])},
                        optional={
                            "on": st.sampled_from(["random:2", "rank=7"]),
                            "repair": st.sampled_from(["none", "3s"]),
                        },
                    ),
                    max_size=2,
                ),
            },
        )
    )
    def test_any_experiment_round_trips(self, raw):
        experiment = from_mapping(raw, **KNOWN)
        again = read_text(to_yaml(experiment))
        assert again == experiment
        assert experiment_hash(again) == experiment_hash(experiment)


class TestOptions:
    def test_one_fault(self):
        experiment = options(
            on="node=1", repair="none", seed=3, steps=50, dilation="2", gates=("steps_lost == 0",), twin=False
        )
        assert (experiment.name, experiment.seed, experiment.twin) == ("kill-node", 3, False)
        assert (experiment.job.steps, experiment.job.dilation) == (50, 2.0)
        assert experiment.gates == ["steps_lost == 0"]
        assert (experiment.faults[0].on, experiment.faults[0].repair) == (Target(node=1), "none")

    def test_options_replace_what_a_file_says(self, tmp_path):
        path = tmp_path / "e.yaml"
        path.write_text(GOOD)
        experiment = from_options(str(path), {"steps": 200, "seed": 9, "gates": ("goodput >= 0.5",)}, **KNOWN)
        assert (experiment.job.steps, experiment.seed, experiment.job.nodes) == (200, 9, 4)
        assert experiment.gates[-1] == "goodput >= 0.5"
        assert len(experiment.gates) == 3

    def test_a_fault_option_needs_a_file_of_one_fault(self, tmp_path):
        path = tmp_path / "e.yaml"
        path.write_text(GOOD)
        with pytest.raises(UsageError, match=r"--at: it is of one fault, but .* has 2"):
            from_options(str(path), {"at": "step=3"}, **KNOWN)
        path.write_text("name: x\nfaults: [{kind: kill-node, at: step=1}]\n")
        assert from_options(str(path), {"at": "step=3"}, **KNOWN).faults[0].at == Trigger(3)

    @pytest.mark.parametrize(
        ("given_options", "message"),
        [
            ({"at": "step=5,phase=x"}, "--at: there is no phase 'x'"),
            (
                {"at": "step=601"},
                "--at: step=601, but the job has 560 steps: choose a step from 1 to 560, or raise --steps",
            ),
            ({"on": "node=7"}, "--on: node=7 does not exist"),
            ({"repair": "3"}, "--repair: '3' has no unit"),
            ({"data_parallel": 3}, "--data-parallel: --data-parallel 3 cannot"),
            ({"steps": 0}, "--steps: must be at least 1, not 0"),
            ({"gates": ("a", "")}, "--gate: must be a text that is not empty"),
            ({"strategy": "mecfo"}, "--strategy: there is no strategy 'mecfo'"),
            ({"data": "a\udcff"}, "--data: "),
            ({"subject": "slow-link"}, "--param delay: is missing"),
            ({"checkpoint_folder": "there"}, "--checkpoint-every: is missing: say every how many steps"),
            ({"checkpoint_every": 0}, "--checkpoint-every: must be at least 1, not 0"),
            ({"checkpoint_every": 5, "command": ("python", "a.py")}, "--checkpoint-every: the job is a command"),
        ],
    )
    def test_mistakes_name_the_option(self, given_options, message):
        with pytest.raises(UsageError) as refused:
            options(**given_options)
        assert str(refused.value).startswith(message)

    def test_a_strategy_that_lives_by_checkpoints_has_them(self):
        def checkpoints(**given):
            return from_options("kill-node", {"at": "step=5", **given}, registry=REGISTRY).job.checkpoint

        assert checkpoints(strategy="checkpoint").every_steps == DEFAULT_CHECKPOINT_STEPS
        assert checkpoints(strategy="checkpoint", checkpoint_every=7).every_steps == 7
        assert checkpoints(strategy="ndb") is None

    def test_a_strategy_that_lives_by_snapshots_has_them(self):
        def job(**given):
            return from_options("kill-node", {"at": "step=5", **given}, registry=REGISTRY).job

        assert job(strategy="reft").snapshots == Snapshots()
        assert job(strategy="reft").checkpoint is None
        assert job(strategy="reft", snapshot_every=7).snapshots == Snapshots(every=7)
        assert job(strategy="reft", nodes=1, gpus_per_node=4).snapshots == Snapshots(protection="none")
        assert job(strategy="exact").snapshots is None

    @pytest.mark.parametrize("strategy", ["checkpoint", "reft"])
    def test_a_job_that_waits_for_all_its_ranks_needs_a_repair(self, strategy):
        with pytest.raises(UsageError, match=rf"--repair: with the strategy {strategy} .* would wait for ever"):
            from_options("kill-node", {"at": "step=5", "repair": "none", "strategy": strategy}, registry=REGISTRY)

    def test_checkpoints_can_be_asked_for(self, tmp_path):
        checkpoint = options(checkpoint_every=20, checkpoint_folder="there").job.checkpoint
        assert checkpoint is not None
        assert (checkpoint.every_steps, checkpoint.folder) == (20, "there")
        path = tmp_path / "e.yaml"
        path.write_text("name: x\njob: {checkpoint: {every_steps: 5, keep: 4}}\n")
        checkpoint = from_options(str(path), {"checkpoint_folder": "there"}, **KNOWN).job.checkpoint
        assert checkpoint is not None
        assert (checkpoint.every_steps, checkpoint.keep, checkpoint.folder) == (5, 4, "there")
        path.write_text("name: x\njob: {checkpoint: null}\n")
        checkpoint = from_options(str(path), {"checkpoint_every": 7}, **KNOWN).job.checkpoint
        assert checkpoint is not None and checkpoint.every_steps == 7

    def test_mistakes_in_the_file_keep_their_line(self, tmp_path):
        path = tmp_path / "e.yaml"
        path.write_text(GOOD)
        with pytest.raises(UsageError) as refused:
            from_options(str(path), {"steps": 150, "gates": ("",)}, **KNOWN)
        told = [(problem.line, problem.key) for problem in refused.value.problems]
        assert told == [(None, "--gate"), (8, "faults[0].repair"), (11, "faults[1].at.step")]
        assert all("raise --steps" in problem.message for problem in refused.value.problems[1:])

    def test_without_a_trigger(self):
        with pytest.raises(UsageError, match="--at: is missing: say when"):
            from_options("kill-node", {}, **KNOWN)

    @pytest.mark.parametrize(
        ("subject", "message"),
        [("kil-node", "(did you mean 'kill-node'?)"), ("nope.yaml", "No such file"), ("", "there is no fault ''")],
    )
    def test_unknown_subjects(self, subject, message):
        with pytest.raises(UsageError) as refused:
            from_options(subject, {}, **KNOWN)
        assert message in str(refused.value)

    @pytest.mark.parametrize(
        "text", ["name: x\njob: 3", "name: x\nfaults: 3", "name: x\ngates: 3", "name: x\nfaults: [3]"]
    )
    def test_options_on_a_broken_file_leave_the_mistake_standing(self, tmp_path, text):
        path = tmp_path / "e.yaml"
        path.write_text(text)
        with pytest.raises(UsageError):
            from_options(str(path), {"steps": 5, "at": "step=3", "gates": ("a",)}, **KNOWN)


class TestSchema:
    def test_describes_every_key_that_is_read(self):
        schema = json_schema(**KNOWN)
        assert json.loads(json.dumps(schema)) == schema
        assert set(schema["properties"]) == {*Experiment.model_fields, "containers", "ssh"} - {"backend_settings"}
        assert schema["required"] == ["name"]
        job = schema["$defs"]["Job"]
        assert set(job["properties"]) == set(Job.model_fields)
        assert job["properties"]["strategy"]["enum"] == list(STRATEGIES)
        assert "llama-tiny" in job["properties"]["model"]["enum"]
        assert job["additionalProperties"] is schema["additionalProperties"] is False

    def test_has_the_parameters_of_each_fault(self):
        variants = {variant["title"]: variant for variant in json_schema(**KNOWN)["$defs"]["FaultSpec"]["oneOf"]}
        assert set(variants) == set(REGISTRY)
        assert variants["kill-node"]["description"] == "Kill a node."
        said_of_all = set(FAULT_KEYS) - {"for"}
        assert set(variants["kill-node"]["properties"]) == said_of_all
        assert set(variants["slow-link"]["properties"]) == said_of_all | {"delay", "loss_ratio"}
        assert set(variants["slow-rank"]["properties"]) == set(FAULT_KEYS)
        assert "on" not in variants["tear-checkpoint"]["properties"]
        assert variants["slow-link"]["required"] == ["kind", "delay"]

    def test_of_what_is_installed(self):
        assert "kill-node" in {variant["title"] for variant in json_schema()["$defs"]["FaultSpec"]["oneOf"]}


WORDS = [
    "{",
    "}",
    "[",
    "]",
    ": ",
    "- ",
    "&a ",
    "*a",
    "!!int ",
    '"',
    "'",
    "|",
    ">",
    "\t",
    "\n",
    "#",
    "?",
    "%",
    "---",
    "<<: ",
]
VALUES = [
    None,
    True,
    -1,
    0,
    3,
    10**17,
    1e308,
    float("nan"),
    "",
    "x",
    "step=1",
    "node=9",
    [],
    {},
    [[]],
    {"a": {}},
    ["x"],
]


def broken_text(rng):
    """GOOD with one to three pieces cut out, doubled or put in."""
    text = GOOD
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(text))
        end = start + rng.choice([0, 1, 5, 40])
        middle = rng.choice(
            [rng.choice(WORDS), "", text[start:end] * 2, chr(rng.choice([0, 7, 0x85, 0x2028, 0xD7FF, 0x1F600]))]
        )
        text = text[:start] + middle + text[end:]
    return text


def broken_value(rng):
    """GOOD as values, one or two of which are replaced by something else."""
    raw = parse(GOOD).values
    for _ in range(rng.randint(1, 2)):
        place = (
            rng.choice([raw, raw["job"], *[f for f in raw["faults"] if isinstance(f, dict)]]) if _ == 0 else raw["job"]
        )
        place[rng.choice([*place, "extra"])] = rng.choice(VALUES)
        if not isinstance(raw.get("job"), dict) or not isinstance(raw.get("faults"), list):
            break
    return yaml.dump(raw, Dumper=Dumper)


@pytest.mark.parametrize("damage", [broken_text, broken_value])
def test_damaged_files_are_read_or_refused_and_never_crash(damage):
    num_refused = 0
    for seed in range(200):
        text = damage(random.Random(seed))
        try:
            experiment = read_text(text)
        except UsageError as error:
            num_refused += 1
            assert all(problem.message and "\x1b" not in str(problem) for problem in error.problems)
        else:
            assert read_text(to_yaml(experiment)) == experiment
    assert num_refused > 100
