"""What is wrong with a command line or a file: told at once, in its own terms, with its place; nothing is started."""

import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

KILL = ("kill-node", "--at", "step=10")


def write(name, text):
    path = Path(name)
    path.write_text(text)
    return path


# Arguments, and what the message must say.
MISTAKES = {
    "unknown fault": (("run", "kill-nod", "--at", "step=10"), ["kill-nod", "did you mean 'kill-node'"]),
    "unknown command": (("rum", *KILL), ["rum"]),
    "unknown option": (("run", *KILL, "--stepz", "10"), ["--stepz"]),
    "no trigger": (("run", "kill-node"), ["at"]),
    "empty trigger": (("run", "kill-node", "--at", ""), ["--at"]),
    "trigger of what": (("run", "kill-node", "--at", "10"), ["--at", "step=10"]),
    "step zero": (("run", "kill-node", "--at", "step=0"), ["--at", "from 1"]),
    "step beyond the last": (("run", "kill-node", "--at", "step=700"), ["step=700", "560 steps", "--steps"]),
    "unknown phase": (("run", "kill-node", "--at", "step=5,phase=foward"), ["foward", "did you mean 'forward'"]),
    "node that is not there": (("run", *KILL, "--on", "node=7"), ["node=7", "nodes 0 to 3"]),
    "rank that is not there": (("run", *KILL, "--on", "rank=8"), ["rank=8", "ranks 0 to 7"]),
    "rack without racks": (("run", *KILL, "--on", "rack=0"), ["--on", "rack=0", "--nodes-per-rack 2"]),
    "link for a fault of nodes": (("run", *KILL, "--on", "link=1-4"), ["--on", "link=1-4", "nodes"]),
    "role that there is not": (("run", *KILL, "--on", "role=store"), ["--on", "store", "coordinator"]),
    "lifetime of what has none": (("run", *KILL, "--for", "3s"), ["--for", "kill-node has no lifetime", "repair"]),
    "rate that is none": (("run", "kill-node", "--rate", "5"), ["--rate", "0.5/min"]),
    "period and rate": (
        ("run", "kill-node", "--every", "5s", "--rate", "1/min"),
        ["every", "rate", "contradict"],
    ),
    "count of what fires once": (("run", *KILL, "--count", "3"), ["--count", "--every or --rate"]),
    "unknown parameter": (("run", *KILL, "-p", "dely=3"), ["--param dely", "unknown key"]),
    "parameter that is none": (
        ("run", "slow-link", "--at", "step=5", "-p", "rate=1mbit"),
        ["--param 'rate=1mbit'", "--rate", "slow-link itself takes", "bandwidth"],
    ),
    "flapping that is none": (("run", "flap-link", "--at", "step=5", "-p", "down=2min"), ["--param down", "drop-link"]),
    "parameter without a value": (("run", *KILL, "-p", "delay"), ["--param 'delay'", "KEY=VALUE"]),
    "unknown profile": (("run", "--profile", "lama3"), ["--profile", "did you mean 'llama3'"]),
    "trigger of a profile": (("run", "--profile", "llama3", "--at", "step=5"), ["--at", "none is named"]),
    "nothing at all": (("run",), ["which fault", "kill-node"]),
    "unknown target": (("run", *KILL, "--on", "nod=1"), ["nod", "did you mean 'node'"]),
    "more than there are": (("run", *KILL, "--on", "random:9"), ["random:9", "4 nodes"]),
    "everybody": (("run", *KILL, "--on", "random:4"), ["none of the job's 8 ranks"]),
    "shape that does not fit": (
        ("run", *KILL, "--data-parallel", "3", "--pipeline", "2"),
        ["--data-parallel 3", "8 ranks", "4 x 2"],
    ),
    "no nodes": (("run", *KILL, "--nodes", "0"), ["--nodes", "0"]),
    "steps that are no number": (("run", *KILL, "--steps", "many"), ["--steps", "many"]),
    "unknown strategy": (("run", *KILL, "--strategy", "ndc"), ["ndc", "did you mean 'ndb'"]),
    "unknown model": (("run", *KILL, "--model", "llama-tinny"), ["llama-tinny", "did you mean 'llama-tiny'"]),
    "dilation of less than one": (("run", *KILL, "--dilation", "0.5"), ["--dilation", "0.5"]),
    "repair without a unit": (("run", *KILL, "--repair", "40"), ["--repair", "40steps"]),
    "fault in two words": (("run", "kill", "node", "--at", "step=5"), ["unexpected extra argument", "'kill-node'?"]),
    "parameter as an option": (
        ("run", "slow-rank", "--at", "step=5", "--factor", "2"),
        ["--factor", "it is a parameter of slow-rank, write -p factor=VALUE"],
    ),
    "command without its dashes": (
        ("run", *KILL, "sh", "train.sh"),
        ["(sh train.sh)", "write -- before your own command, as in `-- sh ...`"],
    ),
    "command with options and without its dashes": (
        ("run", *KILL, "train.py", "--nproc-per-node", "2"),
        ["--nproc-per-node", "write -- before your own command, as in `-- torchrun train.py`"],
    ),
    "two triggers of one fault": (
        ("run", *KILL, "--at", "step=9"),
        ["--at: is given twice", "another fault begins with --and"],
    ),
    "two targets of one fault": (("run", *KILL, "--on", "node=1", "--on", "node=2"), ["--on: is given twice"]),
    "repair of whom a cut link leaves alive": (
        ("run", "drop-link", "--at", "step=5", "--on", "link=0-2", "--network", "namespaces", "--repair", "10s"),
        ["chaos: --repair: drop-link has no repair", "--for is the duration of the fault"],
    ),
    "repair of what goes on for a time": (
        ("run", "slow-rank", "--at", "step=5", "--repair", "none"),
        ["chaos: --repair: slow-rank has no repair", "such as 30s or 10steps"],
    ),
    "repair of what is over at once": (
        ("run", "bit-flip", "--at", "step=5", "--repair", "3steps"),
        ["chaos: --repair: bit-flip has no repair: it is over at once: leave --repair out"],
    ),
    "gate that is none": (("run", *KILL, "--gate", "throughput_drop below 4"), ["throughput_drop below 4"]),
    "gate on an unknown metric": (
        ("run", *KILL, "--gate", "troughput_drop <= 4%"),
        ["troughput_drop", "throughput_drop"],
    ),
    "gates that are none": (
        ("run", *KILL, "--gate", "a < 1", "--gate", "goodput >= 50%", "--gate", "b < 1"),
        ["2 mistakes", "--gate: 'a < 1'", "--gate: 'b < 1'"],
    ),
    "layer that no model has": (("run", "bit-flip", "--at", "step=5", "-p", "layer=4"), ["--param layer", "0 to 3"]),
    "bit that no number has": (
        ("run", "bit-flip", "--at", "step=5", "-p", "bit=99"),
        ["chaos: --param bit", "0 to 63"],
    ),
    "bit beyond 32": (("run", "bit-flip", "--at", "step=5", "-p", "bit=32"), ["--param bit", "0 to 31"]),
    "part of a number that is none": (
        ("run", "bit-flip", "--at", "step=5", "-p", "bit=exponet"),
        ["chaos: --param bit", "did you mean 'exponent'"],
    ),
    "share and elements": (
        ("run", "set-nan", "--at", "step=5", "-p", "share=0.5", "-p", "elements=2"),
        ["--param share", "exclude each other"],
    ),
    "unit that no model has": (
        ("run", "remove-checkpoint-shard", "--at", "step=5", "--checkpoint-every", "4", "-p", "unit=layer.4"),
        ["--param unit", "layer.0 to layer.3", "did you mean 'layer.3'"],
    ),
    "hang that ends by itself before": (
        ("run", "hang-gil", "--at", "step=5", "--for", "10min"),
        ["--for", "to go on for 600s", "by itself after 300s"],
    ),
    "number that is none": (
        ("run", "bit-flip", "--at", "step=5", "-p", "index=x"),
        ["--param index", "a whole number"],
    ),
    "delay that is no number": (("run", "slow-data", "--at", "step=5", "-p", "delay=.inf"), ["inf is not a duration"]),
    "link within a node": (
        ("run", "drop-link", "--at", "step=5", "--on", "link=0-1", "--network", "namespaces"),
        ["chaos: link=0-1: both ranks are on node 0"],
    ),
    "checkpoints that there are none of": (
        ("run", "hide-checkpoint", "--at", "step=5"),
        ["chaos: hide-checkpoint needs", "--checkpoint-every 20"],
    ),
    "data that is not there": (("run", *KILL, "--data", "nowhere"), ["nowhere"]),
    "file that is not there": (("run", "nowhere.yaml"), ["nowhere.yaml"]),
    "run that is not there": (("report", "nonsense"), ["nonsense"]),
    "folder instead of a file": (("run", "../"), ["chaos: ..: cannot read the file: Is a directory"]),
    "file without its ending that is not there": (("run", "./nowhere"), ["nowhere: cannot read the file: No such"]),
    "parameter with an empty value": (("run", *KILL, "-p", "grace="), ["--param grace: has no value"]),
    "gate of a twin that there is none of": (
        ("run", *KILL, "--no-twin", "--gate", "loss_deviation < 3%"),
        ["--gate: 'loss_deviation < 3%' could never be decided", "this run has none"],
    ),
    "gate of a twin of somebody else's job": (
        ("run", "raise", "--at", "step=5", "--gate", "twin_loss < 3", "--", sys.executable, "train.py"),
        ["--gate: 'twin_loss < 3' could never be decided"],
    ),
    "gate of a percentile that is none": (
        ("run", *KILL, "--gate", "recovery_seconds p200 < 3"),
        ["there is no aggregate 'p200'", "p0 to p100"],
    ),
    "fault of too long a name": (("run", "x" * 5000), ["there is no fault 'xxx"]),
    "parameter that cannot be shown": (("run", *KILL, "-p", "\u202e=1"), ["--param '\\u202e'", "unknown key"]),
    "gate that nothing can fail": (("run", *KILL, "--gate", "steps_lost < 1e400"), ["1e400"]),
    "ledger of too long a name": (("heal", f"{'x' * 5000}/ledger.jsonl"), ["there is no run"]),
    "repair after the end": (
        ("run", *KILL, "--steps", "30", "--repair", "40steps"),
        ["--repair", "step 50", "30 steps", "raise --steps", "--repair none"],
    ),
    "ranks for which there is no memory": (
        ("run", *KILL, "--model", "7b", "--nodes", "500"),
        ["--nodes", "1000 ranks take", "this machine has", "choose a smaller --nodes"],
    ),
    "script that is not there": (
        ("run", "raise", "--at", "step=5", "--", sys.executable, "train.py"),
        ["-- COMMAND", "there is no file 'train.py'"],
    ),
    "script of a launcher that is not there": (
        (
            "run",
            "raise",
            "--at",
            "step=5",
            "--",
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "1",
            "a.py",
        ),
        ["-- COMMAND", "there is no file 'a.py'"],
    ),
    "backend that is none": (("run", *KILL, "--backend", "dokcer"), ["--backend", "did you mean 'docker'"]),
    "metrics at no address": (("run", *KILL, "--metrics", "x"), ["--metrics", "'x' is no port"]),
    "baseline that is not there": (("run", *KILL, "--baseline", "nope"), ["there is no run 'nope'"]),
    "device instead of a run": (("report", "/dev/null"), ["'/dev/null' exists, but is not a run"]),
    "junit without a name": (("run", *KILL, "--junit", ""), ["--junit", "name a file"]),
    "junit into nowhere": (("run", *KILL, "--junit", "nowhere/junit.xml"), ["--junit", "nowhere"]),
}


@pytest.mark.parametrize(("arguments", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_told_in_one_message_and_nothing_is_started(chaos, has_networks, tmp_path, arguments, words):
    code, out, err = chaos(*arguments)
    assert code == 4, err
    assert out == ""
    for word in words:
        assert word in err
    assert len(err.strip().splitlines()) <= 4, err
    assert list(tmp_path.iterdir()) == []
    if arguments[0] == "run":
        assert chaos(*arguments, "--dry-run") == (code, out, err)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.txt", b"", ["empty.txt"]),
        ("binary.bin", bytes(range(256)) * 64, ["binary.bin", "UTF-8"]),
        ("short.txt", b"hello", ["short.txt"]),
    ],
)
def test_data_that_cannot_be_trained_on(chaos, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    code, out, err = chaos("run", *KILL, "--data", name)
    assert (code, out) == (4, "")
    for word in words:
        assert word in err
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "name: x\nfaults:\n  - {kind: kill-nod, at: step=5}\n",
            ["bad.yaml:3", "kill-nod", "did you mean 'kill-node'"],
        ),
        ("name: x\nfalts: []\n", ["bad.yaml:2", "falts", "did you mean 'faults'"]),
        ("name: x\njob:\n  steps: many\n", ["bad.yaml:3", "steps"]),
        ("name: x\nfaults:\n  - {kind: kill-node, at: step=5, force: 9}\n", ["bad.yaml:3", "force"]),
        ("name: x\nname: y\n", ["bad.yaml:2", "name"]),
        ("name: [x\n", ["bad.yaml"]),
        ("", ["bad.yaml"]),
        ("- a\n- b\n", ["bad.yaml", "mapping"]),
    ],
)
def test_mistakes_in_a_file_are_told_with_their_line(chaos, text, words):
    code, out, err = chaos("run", write("bad.yaml", text))
    assert (code, out) == (4, "")
    for word in words:
        assert word in err


def test_what_is_found_when_it_is_planned_has_its_line_too(chaos):
    faults = "  - {kind: kill-process, every: 100steps, repair: 5steps}\n  - kind: hide-checkpoint\n    at: step=5\n"
    path = write("bad.yaml", f"name: x\nfaults:\n{faults}")
    code, out, err = chaos("plan", path)
    assert (code, out) == (4, "")
    # Not the number of the incident, of which the first fault makes several.
    assert "bad.yaml:4: faults[1]: hide-checkpoint needs" in err
    path = write("bad.yaml", "name: x\nfaults:\n- {kind: kill-node, at: step=5}\ngates:\n- a < 1\nhalt:\n- a is b\n")
    code, out, err = chaos("run", path, "--gate", "b < 1")
    assert (code, out) == (4, "")
    for words in ("3 mistakes", "bad.yaml:5: gates[0]: 'a < 1'", "bad.yaml:7: halt[0]: 'a is b'", "--gate: 'b < 1'"):
        assert words in err
    path = write("bad.yaml", "name: x\njob:\n  data: nowhere\nfaults:\n- {kind: kill-node, at: step=5}\n")
    assert "bad.yaml:3: job.data: " in chaos("run", path, "--dry-run")[2]


# Each line that is wrong names the key that must be told, and nothing else is.
MISTAKEN = """\
name: x
seed: 99999999999999999999 # seed
job:
  steps: 50
  nodes: -4 # job.nodes
  modle: llama-tiny # job.modle
  data: nowhere # job.data
faults:
- kind: kill-node
  on: nod=1 # faults[0].on
  at: step=60 # faults[0].at.step
- kind: kill-node
  at: step=5
  repair: 60steps # faults[1].repair
- kind: slow-link
  at: step=5
  dely: 50ms # faults[2].dely
  delay: 50ms
  for: 1parsec # faults[2].for
- kind: kil-node # faults[3].kind
  at: step=5
gates:
- steps_lost == # gates[0]
- goodput >= 50%
- reecovery < 5 # gates[2]
- 7 # gates[3]
halt:
- training_loss is nan
- a is b # halt[1]
twin: true
twin: false # twin
"""


def told_places(err):
    """The places `LINE: KEY` of a message about bad.yaml."""
    return re.findall(r"bad\.yaml:(\d+: [\w.\[\]]+): ", err)


def test_all_mistakes_of_a_file_are_told_at_once(chaos):
    wrong = [(number, line) for number, line in enumerate(MISTAKEN.splitlines(), 1) if "#" in line]
    wanted = [f"{number}: {line.partition('# ')[2]}" for number, line in wrong]
    code, out, err = chaos("run", write("bad.yaml", MISTAKEN), "--dry-run")
    assert (code, out) == (4, "")
    # A number that is none is told without its key, by its line alone.
    assert told_places(err) == [place for place in wanted if not place.endswith("seed")]
    assert "bad.yaml:2: '99999999999999999999' cannot be used here" in err
    for guess in ("'model'", "'node'", "'delay'", "'kill-node'", "'recovery'"):
        assert f"did you mean {guess}?" in err


def test_all_mistakes_of_a_command_line_are_told_at_once(chaos):
    line = "run kill-node --at step=700 --on nod=1 --steps 3x --nodes many --node-cpus few --backend dokcer --gate a<1"
    code, out, err = chaos(*line.split(), "--data", "nowhere", "-p", "force", "--count", "0.5")
    assert (code, out) == (4, "")
    told = re.findall(r"^  (--[\w-]+)", err, re.MULTILINE)
    assert sorted(told) == sorted(
        ["--on", "--steps", "--nodes", "--node-cpus", "--backend", "--gate", "--data", "--param", "--count"]
    )


def test_what_rests_on_a_mistake_is_not_called_one(chaos):
    text = "name: x\njob: {steps: fifty, nodes: x}\nfaults:\n- {kind: kill-node, at: step=900, on: node=70}\n"
    assert set(told_places(chaos("plan", write("bad.yaml", text))[2])) == {"2: job.steps", "2: job.nodes"}


@pytest.mark.parametrize(
    ("changes", "arguments", "in_a_file", "as_options"),
    [
        ("at: step=700", ("--at", "step=700"), "raise job.steps", "raise --steps"),
        ("on: rack=0", ("--on", "rack=0"), "job.nodes_per_rack: 2", "--nodes-per-rack 2"),
        ("for: 5s", ("--for", "5s"), "write repair", "write --repair"),
    ],
)
def test_advice_is_in_the_terms_in_which_the_experiment_was_said(chaos, changes, arguments, in_a_file, as_options):
    fault = "kind: kill-node, at: step=5" if not changes.startswith("at") else "kind: kill-node"
    path = write("bad.yaml", f"name: x\nfaults:\n- {{{fault}, {changes}}}\n")
    of_the_file = chaos("plan", path)[2]
    assert in_a_file in of_the_file and "--" not in of_the_file
    given = arguments if arguments[0] == "--at" else (*arguments, "--at", "step=5")
    assert as_options in chaos("plan", "kill-node", *given)[2]


def test_what_a_checkpoint_needs_is_told_in_the_same_terms(chaos):
    path = write("bad.yaml", "name: x\nfaults:\n- {kind: hide-checkpoint, at: step=5}\n")
    assert "job.checkpoint.every_steps: 20" in chaos("plan", path)[2]
    assert "--checkpoint-every 20" in chaos("plan", "hide-checkpoint", "--at", "step=5")[2]


def test_many_ranks_on_few_cores_are_warned_of(chaos, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("harness.node.node.usable_bytes", lambda: 64 * 2**30)
    code, out, err = chaos("run", *KILL, "--nodes", "500", "--dry-run")
    assert (code, "500 nodes x 2 ranks" in out) == (0, True)
    for words in ("warning: 1000 ranks", "2 cores", "64.0 GiB"):
        assert words in err
    assert chaos("run", *KILL, "--dry-run")[2] == ""


def test_a_repair_that_nobody_asked_for_and_that_comes_too_late_is_told(chaos):
    code, out, _ = chaos("plan", *KILL, "--steps", "30")
    assert code == 0 and "faults[0]: kill-node at step 10 is not repaired" in out
    assert "not repaired" not in chaos("plan", *KILL, "--steps", "50")[1]


@pytest.mark.parametrize(
    "kind",
    ["truncate-checkpoint", "flip-checkpoint-bit", "remove-checkpoint-shard", "hide-checkpoint", "slow-checkpoint"],
)
def test_a_fault_of_checkpoints_that_the_job_does_not_write_advises_the_option_that_is_accepted(chaos, kind):
    command = ("run", kind, "--at", "step=50", "--dry-run")
    code, _, err = chaos(*command)
    assert code == 4
    option, value = re.search(r"give it (--\S+) (\d+)", err).groups()
    assert chaos(*command, option, value)[0] == 0
