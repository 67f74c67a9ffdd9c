"""What can be said of a fault beside its kind, target and trigger: in a file, and on a command line."""

import pytest

from chaos.errors import UsageError
from chaos.experiment.experiment import to_yaml
from chaos.experiment.fault_spec import FAULT_KEYS
from chaos.experiment.limits import Limits
from chaos.experiment.profile import ProfileSpec
from chaos.experiment.reading import from_mapping, from_options
from chaos.faults import registry
from chaos.language.recurrence import Rate
from chaos.language.trigger import Duration, Trigger
from chaos.language.yaml_lines import parse
from tests.chaos.fake_faults import REGISTRY, STRATEGIES

pytestmark = pytest.mark.unit

KNOWN = {"registry": REGISTRY, "strategies": STRATEGIES}


def read_fault(text, job="{}"):
    document = parse(f"name: x\njob: {job}\nfaults:\n  - {{{text}}}\n", "e.yaml")
    return from_mapping(document.values, document.lines, path=document.path, **KNOWN).faults[0]


def options(subject="kill-node", **given):
    return from_options(subject, given, **KNOWN)


class TestReading:
    def test_all_that_can_be_said(self):
        fault = read_fault(
            "kind: slow-rank, on: random, at: step=5, for: 10steps, rate: 2/100steps, count: 3, within: 200steps, "
            "retrigger: 2"
        )
        assert (fault.lifetime, fault.rate) == (Duration(steps=10), Rate(2.0, Duration(steps=100)))
        assert (fault.count, fault.within, fault.retrigger) == (3, Duration(steps=200), 2)
        assert fault.model_dump(mode="json") == {
            "kind": "slow-rank",
            "on": "random",
            "at": "step=5",
            "for": "10steps",
            "rate": "2/100steps",
            "within": "200steps",
            "count": 3,
            "retrigger": 2,
        }

    @pytest.mark.parametrize(
        ("text", "at"),
        [
            ("every: 50steps", Trigger(step=50)),
            ("every: 10s", Trigger(at_seconds=10.0)),
            ("rate: 1/min", Trigger(at_seconds=0.0)),
            ("rate: 1/50steps", Trigger(step=1)),
            ("at: step=7, rate: 1/50steps", Trigger(step=7)),
        ],
    )
    def test_what_fires_again_needs_no_trigger(self, text, at):
        assert read_fault(f"kind: kill-node, {text}").at == at

    def test_is_written_and_read_again(self):
        texts = [
            "kind: slow-rank, every: 90s, within: 10min, for: 2s",
            "kind: kill-node, on: node=1+2, rate: 0.5/min, retrigger: every-attempt, repair: none",
            "kind: drop-link, on: link=5-2, at: 'step=3,phase=regroup'",
            "kind: tear-checkpoint, at: step=4",
        ]
        for text in texts:
            experiment = from_mapping({"name": "x", "faults": [parse(text.replace(", ", "\n")).values]}, **KNOWN)
            document = parse(to_yaml(experiment))
            assert from_mapping(document.values, document.lines, **KNOWN) == experiment

    def test_limits_and_profile(self):
        document = parse("name: x\nlimits: {max_nodes: 1, min_healthy: 50%}\nprofile: {name: llama3, failures: 4}\n")
        experiment = from_mapping(document.values, document.lines, **KNOWN)
        assert experiment.limits == Limits(max_nodes=1, min_healthy=0.5)
        assert experiment.profile == ProfileSpec("llama3", 4)
        again = parse(to_yaml(experiment))
        assert from_mapping(again.values, again.lines, **KNOWN) == experiment


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "key", "message"),
        [
            ("kind: kill-node", "faults[0].at", "is missing: say when"),
            ("kind: kill-node, every: ~", "faults[0].at", "is missing: say when"),
            ("kind: kill-node, at: ~, every: 5steps, count: 0", "faults[0].count", "must be at least 1, not 0"),
            ("kind: kill-node, every: 5stps", "faults[0].every", "(did you mean 'steps'?)"),
            ("kind: kill-node, rate: often", "faults[0].rate", "'often' is no rate"),
            ("kind: kill-node, at: step=5, count: 3", "faults[0].count", "write every or rate, too"),
            ("kind: kill-node, at: step=5, within: 3s", "faults[0].within", "write every or rate, too"),
            ("kind: kill-node, every: 5steps, rate: 1/step", "faults[0].every", "contradict each other"),
            ("kind: kill-node, every: 5steps, at: time=1s", "faults[0].at", "every counts steps, but at is a time"),
            ("kind: kill-node, every: 5steps, within: 1s", "faults[0].within", "within must do so, too"),
            ("kind: kill-node, every: 700steps", "faults[0].at.step", "step=700, but the job has 560 steps"),
            ("kind: kill-node, at: step=5, retrigger: twice", "faults[0].retrigger", "must be once or every-attempt"),
            ("kind: kill-node, at: step=5, retrigger: 0", "faults[0].retrigger", "not 0"),
            (
                "kind: kill-node, at: step=5, retrigger: evry-attempt",
                "faults[0].retrigger",
                "(did you mean 'every-attempt'?)",
            ),
            (
                "kind: kill-node, at: step=5, for: 3s",
                "faults[0].for",
                "kill-node has no lifetime: the target is gone until the repair: write repair",
            ),
            ("kind: slow-link, delay: 1ms, at: step=5, for: 3s", "faults[0].for", "it is over at once: leave for out"),
            ("kind: slow-rank, at: step=5, for: 3", "faults[0].for", "3 has no unit"),
            ("kind: slow-rank, at: step=5, on: link=1-2", "faults[0].on", "but the fault acts on ranks"),
            ("kind: drop-link, at: step=5, on: node=1", "faults[0].on", "but the fault acts on links"),
            ("kind: tear-checkpoint, at: step=5, on: node=1", "faults[0].on", "this kind of fault takes no target"),
            ("kind: kill-node, at: step=5, on: rack=0", "faults[0].on", "the job has no racks"),
            (
                "kind: kill-process, at: step=5, on: role=store",
                "faults[0].on",
                "a job of the runtime mecefo has no store: there is coordinator",
            ),
            ("kind: kill-node, at: 'step=5,phase=checkpoint'", "faults[0].at.phase", "the job writes no checkpoints"),
        ],
    )
    def test_say_where_and_what_to_do(self, text, key, message):
        with pytest.raises(UsageError) as refused:
            read_fault(text)
        assert message in str(refused.value)
        assert (refused.value.key, refused.value.line) == (key, 4)

    @pytest.mark.parametrize(
        ("text", "snapshots", "message"),
        [
            ("at: 'step=50,phase=snapshot'", None, "the job keeps no snapshots: give it"),
            ("at: 'step=50,phase=encode'", "{protection: none}", "protection: none no parity is encoded"),
            ("at: 'step=51,phase=snapshot'", "{every: 50}", "no snapshot is taken of step 51: choose a multiple of 50"),
            ("at: 'step=560,phase=encode'", "{}", "step 560 is the last one"),
            ("rate: 1/60steps, at: 'step=50,phase=snapshot'", "{every: 50}", "a rate draws any step"),
            (
                "every: 60steps, at: 'step=50,phase=encode'",
                "{every: 50}",
                "60steps hits steps without a snapshot",
            ),
            ("every: 100steps, at: 'step=50,phase=encode'", "{every: 50}", None),
        ],
    )
    def test_steps_of_which_there_is_no_snapshot(self, text, snapshots, message):
        said = "{}" if snapshots is None else f"{{snapshots: {snapshots}}}"
        if message is None:
            assert read_fault(f"kind: kill-node, {text}", job=said).at.phase == "encode"
            return
        with pytest.raises(UsageError) as refused:
            read_fault(f"kind: kill-node, {text}", job=said)
        assert message in str(refused.value)
        assert refused.value.key == "faults[0].at.phase"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("rate: 1/60steps, at: 'step=50,phase=checkpoint'", "a rate draws any step"),
            ("every: 60steps, at: 'step=50,phase=checkpoint'", "every 60steps hits steps that write no checkpoint"),
            ("every: 50steps, at: 'step=60,phase=checkpoint'", "step 60 writes no checkpoint"),
            ("every: 100steps, at: 'step=50,phase=checkpoint'", None),
        ],
    )
    def test_steps_that_write_no_checkpoint(self, text, message):
        def read():
            return read_fault(f"kind: kill-node, {text}", job="{checkpoint: {every_steps: 50}}")

        if message is None:
            assert read().every == Duration(steps=100)
            return
        with pytest.raises(UsageError, match=message):
            read()

    @pytest.mark.parametrize(
        ("at", "checkpoint", "is_refused"),
        [
            ("step=50", "{every_steps: 50}", True),
            ("step=51", "{every_steps: 50}", False),
            ("time=1s", "{every_steps: 50}", False),
            ("step=50", "{every_steps: 50, folder: there}", False),
        ],
    )
    def test_there_is_no_checkpoint_before_the_first(self, at, checkpoint, is_refused):
        def read():
            return read_fault(f"kind: tear-checkpoint, at: '{at}'", job=f"{{checkpoint: {checkpoint}}}")

        if not is_refused:
            assert str(read().at) == at
            return
        with pytest.raises(UsageError, match=r"no checkpoint yet in step 50: the first is written .* step 50"):
            read()

    @pytest.mark.parametrize(
        ("text", "key", "message"),
        [
            ("profile: lama3", "profile", "(did you mean 'llama3'?)"),
            ("profile: {name: llama3, failures: 0.5}", "profile.failures", "must be a whole number"),
            ("limits: {max_nods: 1}", "limits.max_nods", "(did you mean 'max_nodes'?)"),
            ("limits: {max_nodes: 0}", "limits.max_nodes", "must be at least 1"),
            ("limits: {min_healthy: half}", "limits.min_healthy", "must be 0% to 100%, or 0 to 1, not 'half'"),
            ("limits: 3", "limits", "must be a mapping"),
            ("job: {nodes_per_rack: 0}", "job.nodes_per_rack", "must be at least 1"),
        ],
    )
    def test_of_the_whole_experiment(self, text, key, message):
        document = parse(f"name: x\n{text}\n", "e.yaml")
        with pytest.raises(UsageError) as refused:
            from_mapping(document.values, document.lines, path=document.path, **KNOWN)
        assert message in str(refused.value)
        assert (refused.value.key, refused.value.line) == (key, 2)


def test_no_parameter_of_an_installed_fault_has_the_name_of_what_is_said_of_all():
    for kind, fault in registry().items():
        assert not set(fault.Parameters.model_fields) & set(FAULT_KEYS), kind


class TestOptions:
    def test_of_a_fault(self):
        given = {"for": "3s", "rate": "1/50steps", "count": 2, "within": "300steps", "retrigger": "3"}
        (fault,) = options("slow-rank", **given).faults
        assert (fault.lifetime, fault.rate, fault.count) == (Duration(seconds=3.0), Rate(1.0, Duration(steps=50)), 2)
        assert (fault.within, fault.retrigger) == (Duration(steps=300), 3)

    def test_a_profile_stands_for_a_fault(self):
        experiment = options(None, profile="llama3:3", nodes=2)
        assert (experiment.name, experiment.faults) == ("profile-llama3", [])
        assert experiment.profile == ProfileSpec("llama3", 3)
        both = options("kill-node", profile="llama3", at="step=5")
        assert (both.name, len(both.faults), both.profile) == ("kill-node", 1, ProfileSpec("llama3"))

    def test_parameters(self):
        said = {"at": "step=5", "parameters": ("delay=50ms", "loss_ratio=0.5")}
        assert options("slow-link", **said).faults[0].parameters == {"delay": "50ms", "loss_ratio": 0.5}

    @pytest.mark.parametrize("text", ["5", "true", "null", "1e3", "", "0100"])
    def test_text_is_text_where_the_fault_wants_text(self, text):
        with pytest.raises(UsageError, match=r"duration|no unit") as refused:
            options("slow-link", at="step=5", parameters=(f"delay={text}",))
        assert repr(text) in refused.value.message

    @pytest.mark.parametrize(
        ("subject", "given", "message"),
        [
            (None, {}, "which fault? Write one first, as in `chaos run kill-node --at step=30`"),
            (None, {"profile": "lama3"}, "--profile: there is no profile 'lama3'"),
            (None, {"profile": "llama3", "at": "step=5"}, "--at: it is of one fault, but none is named"),
            (None, {"profile": "llama3", "parameters": ("a=1",)}, "--param: it is of one fault, but none is named"),
            ("kill-node", {"every": "5s", "for": "3s"}, "--for: kill-node has no lifetime"),
            ("kill-node", {"every": "5"}, "--every: '5' has no unit"),
            ("kill-node", {"rate": "5"}, "--rate: '5' is no rate"),
            ("kill-node", {"every": "5s", "within": "5steps"}, "--within: --every counts seconds"),
            ("kill-node", {"every": "5s", "count": 0}, "--count: must be at least 1"),
            ("kill-node", {"at": "step=5", "profile": "llama3:x"}, "--profile: failures must be a whole number"),
            ("kill-node", {"at": "step=5", "parameters": ("delay=3",)}, "--param delay: unknown key"),
            ("slow-link", {"at": "step=5", "parameters": ("dely=3s",)}, "(did you mean 'delay'?)"),
            ("slow-link", {"at": "step=5", "parameters": ("delay",)}, "--param 'delay': write KEY=VALUE"),
            ("slow-link", {"at": "step=5", "parameters": ("=5",)}, "--param '=5': write KEY=VALUE"),
            ("slow-link", {"at": "step=5", "parameters": ("on=rank=5",)}, "write --on rank=5"),
            ("slow-link", {"at": "step=5", "parameters": ("delay=1s", "delay=2s")}, "delay is given twice"),
            ("slow-link", {"at": "step=5", "parameters": ("delay=a\udcff",)}, "--param "),
            (
                "slow-link",
                {"at": "step=5", "parameters": ("delay=1s", "loss_ratio=x")},
                "--param loss_ratio: must be a number, not 'x'",
            ),
        ],
    )
    def test_mistakes_name_the_option(self, subject, given, message):
        with pytest.raises(UsageError) as refused:
            options(subject, **given)
        assert message in str(refused.value)

    def test_of_a_file(self, tmp_path):
        path = tmp_path / "e.yaml"
        path.write_text("name: x\nfaults: [{kind: slow-link, at: step=1, delay: 5ms}]\nprofile: failslow\n")
        experiment = options(str(path), parameters=("delay=9ms",), every="100steps", profile="llama3")
        assert experiment.faults[0].parameters["delay"] == "9ms"
        assert (experiment.faults[0].every, experiment.profile) == (Duration(steps=100), ProfileSpec("llama3"))
        path.write_text("name: x\nfaults: []\n")
        with pytest.raises(UsageError, match=r"--param: it is of one fault, but .* has 0"):
            options(str(path), parameters=("delay=9ms",))
