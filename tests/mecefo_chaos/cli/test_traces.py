"""A usage error leaves an annotation in GitHub Actions and a JUnit file, and says what to write instead."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "kill-nod", "--at", "step=5"), "did you mean 'kill-node'?"),
        (("run", "kill-node", "--stepz", "5"), "no such option '--stepz'"),
        (("run", "kill-node", "--at", "5", "--on", "node=99x"), "--at: 5 of what?"),
    ],
)
@pytest.mark.parametrize("form", [("--junit", "junit.xml"), ("--junit=junit.xml",)], ids=["two words", "one word"])
def test_junit(chaos, arguments, words, form):
    Path("junit.xml").write_text("of a run before, which passed")
    assert chaos(*arguments, *form)[0] == 4
    suite = ElementTree.parse("junit.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    error = suite.find("testcase/error")
    assert error is not None and words in error.text and error.get("type") == "usage error"


def test_the_junit_option_of_a_command_is_not_ours(chaos):
    assert chaos("run", "kill-nod", "--at", "step=5", "--", "pytest", "--junit", "junit.xml")[0] == 4
    assert not Path("junit.xml").exists()


def test_github(chaos, monkeypatch):
    arguments = ("run", "kill-nod", "--at", "step=5", "--nodes", "0")
    assert "::error" not in chaos(*arguments)[2]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    code, _, err = chaos(*arguments)
    told = [line for line in err.splitlines() if line.startswith("::error title=chaos%3A usage error::")]
    assert code == 4 and len(told) == 2
    assert "kill-nod" in Path("summary.md").read_text()
    assert "::error" not in chaos(*arguments, "--no-github")[2]
    assert "::error" in chaos("rum")[2]


# What a new user types, and what has to be typed instead.
INSTEAD = {
    "rum": "did you mean 'run'?",
    "run kill --at step=5": "write one of kill-data-worker, kill-job, kill-node, kill-process",
    "run kill-rank --at step=5": "did you mean 'kill-process'?",
    "run kill_node --at step=5": "did you mean 'kill-node'?",
    "run kill-node": "--at: is missing: say when, such as step=100",
    "run kill-node --at 500": "write step=500",
    "run kill-node --at step5": "write step=5",
    "run kill-node --at 10s": "write time=10s",
    "run kill-node --at step 5": "write --at step=5",
    "run kill-node at step=5": "write --at step=5",
    "run kill-node --step 5": "write --at step=30",
    "run kill-node --at step=5 --on 1": "write rank=1 or node=1",
    "run kill-node --at step=5 --on node=1,2": "write several with +: node=1+2",
    "run kill-node --at step=5 --on node1": "write node=1",
    "run kill-node --at step=5 --on gpu=1": "write rank=1",
    "run kill-node --at step=5 --node 1": "write --on node=1",
    "run kill-node --at step=5 --for 10": "write",
    "run kill-node --at step=5 --gate recovery_seconds < 60": "in quotes: --gate 'recovery_seconds < 60'",
    "run kill-node --at step=5 --gate recovery_seconds": "is no gate: write METRIC",
    "run set-nan --at step=5 where=gradients": "write -p where=gradients",
    "run set-nan --at step=5 --where gradients": "write -p where=VALUE",
    "run kill-process --at step=5 sh train.sh": "as in `-- sh ...`",
    "run sh train.sh": "write the fault first",
    "run -- sh train.sh": "which fault? Write one first, as in `chaos run kill-node --at step=30`",
    "run kill-process --at step=5 -- train.py": "torchrun train.py",
    "run train.py": "as in `chaos run kill-process --at step=30 -- torchrun train.py`",
    "run kill-process --at step=5 -- tochrun train.py": "did you mean 'torchrun'?",
    "run kill-process --at step=5 --strategy ndb -- sh train.sh": "this is a setting of the built-in job: leave it out",
    "run experiment.yaml": "experiment.yaml: cannot read the file: No such file",
    "report lastest": "there is no run 'lastest'",
    "validate": "missing argument 'FILE...'; `chaos validate --help`",
    "faults kil-node": "did you mean 'kill-node'?",
    "completion tcsh": "is not one of 'bash', 'zsh', 'fish'",
}


@pytest.mark.parametrize("line", INSTEAD)
def test_what_to_type_instead(chaos, line):
    Path("train.py").touch()
    Path("train.sh").touch()
    code, out, err = chaos(*line.split())
    assert (code, out) == (4, "")
    assert INSTEAD[line] in err and err.startswith("chaos: ") and "Usage:" not in err
