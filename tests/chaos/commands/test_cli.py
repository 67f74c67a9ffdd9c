"""The command line without a job: what is refused and how, what is planned, what is printed where."""

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.cli import run_cli
from harness.backends.finding import Check

pytestmark = pytest.mark.unit

KILL = ("kill-node", "--at", "step=10")


@pytest.fixture(autouse=True)
def in_a_folder_of_our_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The width of the message must not depend on the terminal that the tests run in.
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def chaos(capsys):
    """Runs a command line; returns (exit code, standard output, standard error)."""

    def run(*arguments):
        code = run_cli([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run


def write(name, text):
    path = Path(name)
    path.write_text(text)
    return path


class TestHelp:
    def test_the_command(self, chaos):
        code, out, _ = chaos("--help")
        assert code == 0
        for word in ("run", "plan", "faults", "report", "runs", "schema", "Exit codes", "chaos run kill-node"):
            assert word in out

    @pytest.mark.parametrize("command", ["run", "plan", "faults", "report", "runs", "schema"])
    def test_each_command(self, chaos, command):
        code, out, _ = chaos(command, "--help")
        assert code == 0
        assert f"chaos {command}" in out

    @pytest.mark.parametrize("command", ["report", "replay", "serve", "shrink"])
    def test_the_newest_run_need_not_be_named(self, chaos, command):
        assert f"Usage: chaos {command} [OPTIONS] [RUN]" in chaos(command, "--help")[1]

    def test_version(self, chaos):
        code, out, _ = chaos("--version")
        assert code == 0
        assert "chaos" in out

    def test_it_is_a_module_that_runs_too(self, tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", "chaos", "run", "kill-nod"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 4 and "did you mean 'kill-node'" in done.stderr

    def test_it_needs_neither_torch_nor_rich(self):
        code = """
import sys
from chaos.cli import run_cli
from harness.backends.finding import Check
assert run_cli(["--help"]) == 0
sys.exit(", ".join({"torch", "rich", "pydantic", "yaml", "jinja2"} & set(sys.modules)) or None)
"""
        root = Path(__file__).resolve().parents[3]
        done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


COLOURED = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self):
        return True


@pytest.mark.parametrize("arguments", [("doctor",), ("report", "latest")])
def test_a_terminal_has_colours_and_whoever_wants_none_has_none(stored_run, monkeypatch, arguments):
    monkeypatch.setattr("harness.doctor.examine.examine", lambda *_: iter([Check("torch", "all").ok("is there")]))

    def printed(**environment):
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", Terminal())
            for name, value in {"NO_COLOR": "", "TERM": "xterm-256color", **environment}.items():
                patch.setenv(name, value)
            run_cli(list(arguments))
            return sys.stdout.getvalue()

    assert COLOURED.search(printed())
    assert not COLOURED.search(printed(NO_COLOR="1"))
    assert not COLOURED.search(printed(TERM="dumb"))


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
    "period and rate": (("run", "kill-node", "--every", "5s", "--rate", "1/min"), ["every", "rate", "contradict"]),
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
        ["(sh train.sh)", "a command of your own stands behind --, as in `-- sh ...`"],
    ),
    "command with options and without its dashes": (
        ("run", *KILL, "train.py", "--nproc-per-node", "2"),
        ["--nproc-per-node", "a command of your own stands behind --, as in `-- train.py ...`"],
    ),
    "two triggers of one fault": (("run", *KILL, "--at", "step=9"), ["--at: is there twice", "stand in a file"]),
    "two targets of one fault": (("run", *KILL, "--on", "node=1", "--on", "node=2"), ["--on: is there twice"]),
    "repair of whom a cut link leaves alive": (
        ("run", "drop-link", "--at", "step=5", "--on", "link=0-2", "--network", "namespaces", "--repair", "10s"),
        ["chaos: --repair: drop-link has no repair", "--for says how long it goes on"],
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
        ["--param share", "contradict"],
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
        ["--gate: 'loss_deviation < 3%' could never be answered", "this run has none"],
    ),
    "gate of a twin of somebody else's job": (
        ("run", "raise", "--at", "step=5", "--gate", "twin_loss < 3", "--", sys.executable, "train.py"),
        ["--gate: 'twin_loss < 3' could never be answered"],
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
    "junit without a name": (("run", *KILL, "--junit", ""), ["--junit", "name a file"]),
    "junit into nowhere": (("run", *KILL, "--junit", "nowhere/junit.xml"), ["--junit", "nowhere"]),
}


@pytest.mark.parametrize(("arguments", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_told_in_one_message_and_nothing_is_started(chaos, tmp_path, arguments, words):
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
    monkeypatch.setattr("harness.run.preparation.usable_bytes", lambda: 64 * 2**30)
    code, out, err = chaos("run", *KILL, "--nodes", "500", "--dry-run")
    assert (code, "500 nodes x 2 ranks" in out) == (0, True)
    for words in ("warning: 1000 ranks", "2 cores", "64.0 GiB"):
        assert words in err
    assert chaos("run", *KILL, "--dry-run")[2] == ""


class TestPlan:
    def test_it_says_what_would_be_done_and_starts_nothing(self, chaos, tmp_path):
        code, out, err = chaos("run", *KILL, "--on", "node=2", "--gate", "recovery_seconds < 2", "--dry-run")
        assert (code, err) == (0, "")
        for word in ("4 nodes x 2 ranks", "4 replicas x 2 stages", "kill-node on node=2 at step=10", "40steps", "twin"):
            assert word in out
        assert "gate: recovery_seconds < 2" in out
        assert list(tmp_path.iterdir()) == []

    def test_it_is_the_dry_run(self, chaos):
        assert chaos("plan", *KILL, "--json") == chaos("run", *KILL, "--dry-run", "--json")

    @pytest.mark.parametrize(
        ("own", "shown"),
        [
            (
                ("slow-rank", "-p", "factor=3", "--for", "3s"),
                "for 3s, with factor=3.0 jitter=0.0 period=0.05s seed=0\n",
            ),
            (("kill-process", "-p", "signal=SIGTERM"), "repaired after 40steps, with signal=SIGTERM\n"),
            (("bit-flip", "-p", "bit=exponent"), "step=10, with where=gradients bit=exponent sticky=false\n"),
            (("raise", "-p", "message=out of memory"), ', with exception=RuntimeError message="out of memory"\n'),
            (("segfault",), "step=10, repaired after 40steps\n"),
        ],
    )
    def test_what_the_fault_was_told(self, chaos, own, shown):
        kind, *parameters = own
        arguments = ("plan", kind, "--at", "step=10", "--on", "rank=1", *parameters)
        code, out, _ = chaos(*arguments)
        assert code == 0
        assert shown in out
        (incident,) = json.loads(chaos(*arguments, "--json")[1])["incidents"]
        for key, value in (pair.split("=") for pair in parameters if "=" in pair):
            assert str(incident["parameters"][key]) in (value, f"{value}.0")

    def test_the_same_seed_gives_the_same_plan(self, chaos):
        plans = {seed: [chaos("plan", *KILL, "--seed", seed, "--json")[1] for _ in range(2)] for seed in range(6)}
        assert all(one == other for one, other in plans.values())
        targets = {json.loads(plan)["incidents"][0]["target"] for plan, _ in plans.values()}
        assert len(targets) > 1

    def test_again_and_again(self, chaos):
        code, out, err = chaos("plan", "kill-process", "--every", "100steps", "--count", "3", "--on", "rank=1")
        assert (code, err) == (0, "")
        for step in (100, 200, 300):
            assert f"kill-process on rank=1 at step={step}, repaired after 40steps" in out
        assert "step=400" not in out
        code, out, _ = chaos("plan", "kill-process", "--rate", "0.5/min", "--seed", "3", "--json")
        plan = json.loads(out)
        assert code == 0
        assert all(incident["is_optional"] for incident in plan["incidents"])
        assert "in the first 600s" in plan["notes"][0]

    def test_a_profile(self, chaos):
        code, out, err = chaos("plan", "--profile", "llama3:5", "--seed", "1")
        assert (code, err) == (0, "")
        assert out.count("incident ") == 5
        assert "8 ranks fail once in 264 days at the rate of llama3; here 5 failures in 560 steps" in out
        code, out, _ = chaos("plan", "--profile", "llama3:5", "--seed", "1", "--json")
        plan = json.loads(out)
        assert plan["experiment"]["name"] == "profile-llama3"
        assert plan["time_compression"]["real_days_per_failure"] == pytest.approx(263.94, abs=0.01)
        assert 0 <= plan["profile_left_out_ratio"] < 1

    def test_a_file_can_be_planned_again_from_its_plan(self, chaos):
        write(
            "two.yaml", "name: two\nfaults:\n  - {kind: kill-node, at: step=5}\n  - {kind: kill-process, at: step=9}\n"
        )
        code, out, _ = chaos("plan", "two.yaml", "--json")
        assert code == 0
        plan = json.loads(out)
        assert [incident["fault"] for incident in plan["incidents"]] == ["kill-node", "kill-process"]
        Path("again.yaml").write_text(json.dumps(plan["experiment"]))
        assert json.loads(chaos("plan", "again.yaml", "--json")[1]) == plan


class TestOneDocument:
    """With --json, standard output is one JSON document and nothing else."""

    def test_faults(self, chaos):
        code, out, err = chaos("faults", "--json")
        assert (code, err) == (0, "")
        kinds = [row["kind"] for row in json.loads(out)]
        assert kinds == sorted(kinds)
        assert {"kill-node", "kill-process"} <= set(kinds)
        assert {"kind", "scope", "fidelity", "needs", "undo", "summary"} <= set(json.loads(out)[0])

    def test_faults_for_people(self, chaos):
        code, out, _ = chaos("faults")
        assert code == 0
        for row in json.loads(chaos("faults", "--json")[1]):
            assert row["kind"] in out
            assert row["summary"] in out

    def test_faults_on_a_narrow_terminal(self, chaos, monkeypatch):
        wide = chaos("faults", "slow-link")[1]
        assert max(map(len, wide.splitlines())) > 60
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        narrow = chaos("faults", "slow-link")[1]
        assert max(map(len, narrow.splitlines())) <= 60
        assert narrow.split() == wide.split()

    def test_schema(self, chaos):
        code, out, _ = chaos("schema")
        assert code == 0
        assert json.loads(out)["$schema"].startswith("https://json-schema.org/")

    def test_no_runs(self, chaos):
        code, out, _ = chaos("runs", "--json")
        assert (code, json.loads(out)) == (0, [])
        code, out, err = chaos("runs")
        assert (code, out) == (0, "")
        assert "chaos run" in err

    def test_runs_and_report(self, chaos, stored_run):
        code, out, _ = chaos("runs", "--json")
        assert code == 0
        (listed,) = json.loads(out)
        assert (listed["name"], listed["verdict"]) == ("cut", "cut off")
        code, out, _ = chaos("report", "--json")
        summary = json.loads(out)
        assert (code, summary["exit_code"], summary["verdict"]) == (5, 5, "inconclusive")
        assert summary["status"] == "cut off"
        code, out, _ = chaos("report", "cut")
        assert code == 5
        assert "cut off" in out
        assert listed["reference"] in chaos("runs")[1]


@pytest.fixture
def stored_run(tmp_path):
    """A run that was cut off in the middle of its third line."""
    folder = tmp_path / "chaos-runs" / "cut" / "20260101T000000Z"
    folder.mkdir(parents=True)
    base = {
        "job": "main",
        "source": "conductor",
        "rank": None,
        "node": None,
        "pid": 2**22 + 1,
        "attempt": 1,
        "step": None,
    }
    lines = [
        {**base, "time": 1.0, "monotonic": 1.0, "kind": "run_started", "fields": {"experiment": {"name": "cut"}}},
        {**base, "time": 2.0, "monotonic": 2.0, "kind": "job_started", "fields": {"steps": 5, "num_ranks": 1}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "events.jsonl").write_text(text + text[:50])
    return folder


class TestReport:
    def test_nearest_run(self, chaos, stored_run):
        code, out, err = chaos("report", "cat")
        assert (code, out) == (4, "")
        assert "cut" in err

    @pytest.mark.parametrize("log", ["", "no event\n{}\n"])
    def test_a_log_that_cannot_be_read_is_told_alike_by_every_command(self, chaos, stored_run, log):
        (stored_run / "events.jsonl").write_text(log)
        told = {chaos(*command, "cut") for command in (("report",), ("serve",), ("compare", "cut"), ("replay",))}
        ((code, out, err),) = told
        assert (code, out) == (3, "")
        assert f"no events in it ({len(log.splitlines())} unreadable lines)" in err

    def test_a_run_that_is_not_there_is_told_alike_by_every_command(self, chaos, stored_run):
        told = {chaos(*command, "cat") for command in (("report",), ("serve",), ("compare", "cat"), ("replay",))}
        ((code, out, err),) = told
        assert (code, out) == (4, "")
        assert "there is no run 'cat'" in err

    def test_log_of_events_that_no_run_writes(self, chaos, stored_run):
        log = stored_run / "events.jsonl"
        first, *rest = log.read_text().splitlines()
        log.write_text("\n".join([json.dumps({**json.loads(first), "fields": {}}), *rest]))
        code, out, err = chaos("replay", "cut")
        assert (code, out) == (3, "")
        assert "not such as a run writes" in err

    @pytest.mark.parametrize("error", [KeyError("spans"), OverflowError("too large"), TypeError("float")])
    def test_report_that_breaks_down_of_its_log(self, chaos, stored_run, monkeypatch, error):
        def break_down(*_, **__):
            raise error

        monkeypatch.setattr("harness.report.terminal.render", break_down)
        code, out, err = chaos("report", "cut")
        assert (code, out) == (3, "")
        assert "not such as a run writes" in err
        assert type(error).__name__ in err

    def test_store_that_is_a_file(self, chaos):
        write("file", "in the way")
        for command in ("runs", "report"):
            code, out, err = chaos(command, "--out", "file")
            assert (code, out) == (4, "")
            assert "file" in err

    def test_store_that_cannot_be_read(self, chaos, stored_run, monkeypatch):
        def refuse(_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "iterdir", refuse)
        code, out, err = chaos("runs")
        assert (code, out) == (3, "")
        assert "chaos-runs" in err
        assert "Permission denied" in err


def test_a_mistake_of_ours_shows_its_traceback_and_is_no_failed_gate(capsys, monkeypatch):
    def break_down(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("chaos.experiment.schema.json_schema", break_down)
    assert run_cli(["schema"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" in err
    assert "ZeroDivisionError: ours" in err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_like_those_that_nobody_reads(closed, tmp_path):
    # Whatever is opened must not take their place.
    code = "import os\nfrom chaos import cli\ncli.run_cli = lambda _: os.pipe()[0] < 3 or print('x')\ncli.main()"
    root = Path(__file__).resolve().parents[3]
    shell = f"cd {shlex.quote(str(root))} && {shlex.quote(sys.executable)} -c {shlex.quote(code)} {closed}"
    done = subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else "x\n")


def test_interrupted_before_anything(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("chaos.experiment.schema.json_schema", interrupt)
    assert run_cli(["schema"]) == 2
    assert capsys.readouterr().err.strip() == "chaos: interrupted"


def test_interrupted_while_it_is_read_in(tmp_path):
    # As Ctrl-C does that comes in the middle of an import.
    code = "import sys\nimport chaos.__main__ as it\nsys.meta_path.insert(0, Stop)\nit.main()"
    stop = "class Stop:\n    def find_spec(*_):\n        raise KeyboardInterrupt\n"
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", stop + code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "chaos: interrupted\n")
