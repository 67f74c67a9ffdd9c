"""`chaos init`: the file says what the command line says, and `run` accepts it."""

import io
import json
import sys
from pathlib import Path

import pytest

from mecefo_chaos.cli.main import run_cli

pytestmark = pytest.mark.unit

SCRIPT = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", "a: b", "")

LINES = {
    "one kill": ("kill-node", "--at", "step=10"),
    "own script": ("kill-process", "--at", "step=30", "--on", "rank=1", "--reset", "rm -rf out", "--", *SCRIPT),
    "parameters": ("slow-rank", "--at", "step=5", "-p", "factor=3", "-p", "jitter=0.5", "--for", "3s"),
    "gates": ("raise", "--at", "time=3s", "--gate", "steps_lost < 3", "--abort-unless", "recovery_seconds < 5"),
    "all gates": ("raise", "--at", "time=3s", "--gate", "recovery_seconds < 5", "--abort-on-fail"),
    "settings": ("kill-node", "--every", "50steps", "--count", "3", "--nodes", "3", "--no-twin", "--seed", "7"),
    "parts": ("hide-checkpoint", "--at", "step=45", "--checkpoint-every", "20", "--snapshot-every", "auto"),
    "containers": ("kill-node", "--at", "step=5", "--backend", "docker", "--node-cpus", "1.5", "--node-memory", "2GiB"),
    "profile": ("--profile", "llama3:4"),
    "no fault": ("none", "--steps", "40"),
    "text that looks like a number": ("raise", "--at", "step=5", "-p", "message=12"),
}


@pytest.mark.parametrize("arguments", LINES.values(), ids=LINES.keys())
def test_the_file_plans_what_the_command_line_plans(chaos, tmp_path, arguments):
    (tmp_path / "train.py").touch()
    behind = arguments.index("--") if "--" in arguments else len(arguments)
    code, out, err = chaos("init", *arguments[:behind], "--output", "x.yaml", *arguments[behind:])
    assert (code, out) == (0, "") and "`chaos run x.yaml`" in err
    assert chaos("validate", "x.yaml")[0] == 0
    assert all(len(line) <= 120 for line in Path("x.yaml").read_text().splitlines() if "#" in line)
    of_file = chaos("plan", "--json", "x.yaml")
    assert of_file == chaos("plan", "--json", *arguments)
    assert json.loads(of_file[1])["experiment"]["name"]


def test_nothing_is_overwritten(chaos, tmp_path):
    Path("kill-node.yaml").write_text("precious")
    code, _, err = chaos("init", "kill-node", "--at", "step=5")
    assert code == 4 and "--force" in err and "--output" in err
    assert Path("kill-node.yaml").read_text() == "precious"
    assert chaos("init", "kill-node", "--at", "step=5", "--force")[0] == 0
    assert "precious" not in Path("kill-node.yaml").read_text()


def test_standard_output(chaos, tmp_path):
    code, out, err = chaos("init", "kill-node", "--at", "step=5", "-o", "-")
    assert (code, err) == (0, "") and "  - kind: kill-node" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["which fault", "chaos init kill-process --at step=30"]),
        (("kill-nod", "--at", "step=5"), ["did you mean 'kill-node'?"]),
        (("kill-node", "--at", "500", "--on", "1"), ["--at: 500 of what? write step=500", "--on"]),
        (("there.yaml",), ["is a file already"]),
        (("kill-node", "--at", "step=5", "-o", "."), ["--output: . is a folder"]),
        (("kill-node", "--at", "step=5", "-o", ""), ["--output: name a file"]),
    ],
)
def test_what_is_refused(chaos, tmp_path, monkeypatch, arguments, words):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    Path("there.yaml").touch()
    code, out, err = chaos("init", *arguments)
    assert (code, out) == (4, "")
    assert all(word in err for word in words), err
    assert [path.name for path in tmp_path.iterdir()] == ["there.yaml"]


def test_questions_on_a_terminal(tmp_path, monkeypatch):
    Path("train.py").touch()
    Path("there.yaml").touch()
    answers = ["torchrun 'train.py", "torchrun --nproc-per-node 2 train.py", "kill-proces", "", "30", "step=12"]
    answers += ["node=7", "rank=1", "speed > 3", "recovery_seconds < 60", "there.yaml", "x.yaml"]
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: answers.pop(0))
    told = []
    monkeypatch.setattr("click.echo", lambda text="", **_: told.append(str(text)))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert run_cli(["init"]) == 0 and not answers
    for words in ("no closing quotation", "did you mean 'kill-process'?", "write step=30", "node=7", "speed", "exists"):
        assert any(words in line for line in told), words
    text = Path("x.yaml").read_text()
    for line in ("[torchrun, --nproc-per-node, '2', train.py]", "on: rank=1", "at: step=12", "- recovery_seconds < 60"):
        assert line in text
