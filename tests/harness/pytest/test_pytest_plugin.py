"""The pytest plugin without a run: what markers say, what is refused and how, and that it is idle when unused."""

import os
import re
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from chaos.experiment.gate_spec import AbortingGate
from harness.pytest.marked_run import MarkedRun, experiment_of, said_by
from tests.plugins import documented, install, install_backend_of_page

pytestmark = pytest.mark.unit
pytest_plugins = "pytester"

ROOT = Path(__file__).resolve().parents[3]
IS_INSTALLED = any(point.name == "mecefo-chaos" for point in entry_points(group="pytest11"))
PLUGIN = () if IS_INSTALLED else ("-p", "mecefo_chaos.pytest_plugin")


@pytest.fixture
def session(pytester, monkeypatch):
    """Runs pytest on a file in a process of its own; returns what it came to."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))

    def run(source: str, *arguments: str):
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_subprocess(*PLUGIN, "-W", "error", "-p", "no:cacheprovider", *arguments)

    return run


@pytest.fixture
def collected(pytester):
    """The tests in a file, by name, collected with options."""

    def collect(source: str, *options: str):
        pytester.makepyfile(test_it=f"import pytest\n{source}")
        items, _ = pytester.inline_genitems(*PLUGIN, *options, "test_it.py")
        return {item.name: item for item in items}

    return collect


def experiment(item):
    return experiment_of(item, said_by(item))


MARKED = """
@pytest.mark.chaos(
    "kill-node", at="step=20,phase=backward", on="node=2", repair="10steps", nodes=4, steps=50, twin=False, seed=3,
    gate=["recovery < 5", {"gate": "steps_lost == 0", "abort_on_fail": True}], halt=["training_loss is nan"],
)
def test_whole(): pass

@pytest.mark.chaos(fault="slow-rank", at="step=5", for_="10steps", param={"factor": 3}, gate="recovery < 5")
def test_parameters(): pass

@pytest.mark.chaos(nodes=2, steps=30, gate="steps_lost == 0")
class TestNested:
    pytestmark = pytest.mark.chaos(steps=40)

    @pytest.mark.chaos("kill-node", at="step=10", gate=["recovery < 5"])
    def test_nested(self): pass

@pytest.mark.chaos("kill-node", at="step=10", steps=30)
def test_options(): pass

@pytest.mark.chaos(experiment="mine.yaml", steps=30)
def test_file(): pass
"""
FILE = "name: mine\nfaults: [{kind: kill-node, at: step=7}]\ngates: [steps_lost == 0]\n"


def test_markers_are_experiments(collected, pytester):
    pytester.makefile(".yaml", mine=FILE)
    said = {name: experiment(item) for name, item in collected(MARKED).items()}

    whole = said["test_whole"]
    assert (whole.name, whole.seed, whole.twin) == ("test_it-test_whole", 3, False)
    assert (whole.job.nodes, whole.job.steps) == (4, 50)
    assert (whole.faults[0].kind, str(whole.faults[0].on)) == ("kill-node", "node=2")
    assert str(whole.faults[0].at) == "step=20,phase=backward"
    assert whole.gates == ["recovery < 5", AbortingGate("steps_lost == 0")]
    assert whole.halt == ["training_loss is nan"]

    (slow,) = said["test_parameters"].faults
    assert slow.model_dump(mode="json", by_alias=True)["for"] == "10steps"
    assert slow.parameters["factor"] == 3
    assert said["test_parameters"].gates == ["recovery < 5"]

    nested = said["test_nested"]
    assert (nested.job.nodes, nested.job.steps) == (2, 40), "the nearest marker wins"
    assert nested.gates == ["steps_lost == 0", "recovery < 5"], "gates add up"

    file = said["test_file"]
    assert (str(file.faults[0].at), file.job.steps, file.gates) == ("step=7", 30, ["steps_lost == 0"])


COMMANDS = """
@pytest.mark.chaos("kill-process", at="step=10", command="torchrun --standalone 'my train.py' --lr 1e-3")
def test_text(): pass

@pytest.mark.chaos("kill-process", at="step=10", command=["torchrun", "--standalone", "my train.py", "--lr", "1e-3"])
def test_words(): pass

@pytest.mark.chaos(experiment="mine.yaml")
def test_file(): pass
"""


def test_a_command_is_a_text_or_a_list_as_in_a_file(collected, pytester):
    text = "\"torchrun --standalone 'my train.py' --lr 1e-3\""
    pytester.makefile(
        ".yaml",
        mine=f"name: mine\nfaults: [{{kind: kill-process, at: step=10}}]\njob: {{runtime: command, command: {text}}}\n",
    )
    read = {name: experiment(item).job.command for name, item in collected(COMMANDS).items()}
    assert read["test_text"] == read["test_words"] == read["test_file"]
    assert read["test_text"] == ["torchrun", "--standalone", "my train.py", "--lr", "1e-3"]


def test_options_say_what_no_marker_says(collected):
    options = ("--resilience-nodes=3", "--resilience-steps=99", "--resilience-seed=5", "--resilience-strategy=ndb")
    items = collected(MARKED, *options, "--resilience-gpus-per-node=1", "--resilience-backend=local")
    read = experiment(items["test_options"])
    assert (read.job.nodes, read.job.steps, read.seed, read.job.strategy) == (3, 30, 5, "ndb")
    assert read.job.gpus_per_node == 1


MISTAKES = [
    ('"kill-nod", at="step=10"', ["there is no fault 'kill-nod'", "did you mean 'kill-node'"]),
    ('"kill-node"', ["at", "is missing"]),
    ('"kill-node", at="step=10", nods=3', ["there is no nods; did you mean nodes?"]),
    ('"kill-node", at="step=10", zzz=3', ["there is no zzz"]),
    ('"kill-node", at="10"', ["at: ", "step=10"]),
    ('"kill-node", at="step=10", gpus_per_node=0', ["gpus_per_node: ", "0"]),
    ('"kill-node", at="step=10", nodes="4"', ["nodes", "whole number"]),
    ('"kill-node", at="step=10", gate="throughput_drop < 4"', ["gate: ", "did you mean 4%?"]),
    ('"kill-node", at="step=10", gate=3', ["gate", "must be text"]),
    (
        '"kill-node", at="step=10", gate={"gate": "goodput > 1%", "abort_on_fail": True}',
        ["gate: ", "cannot end a run early"],
    ),
    ('"kill-node", at="step=10", gate=[{"gat": "goodput > 1%"}]', ["gate gat: unknown key", "did you mean 'gate'"]),
    ('"kill-node", at="step=10", gate={"gate": "goodput > 1%", "a b": 1}', ["gate 'a b': unknown key"]),
    ('"kill-node", at="step=10", gate={"gate": "x", "abort_on_fail": 1}', ["gate abort_on_fail: must be true"]),
    ('"kill-node", at="step=10", abort_on_fail=True', ["abort_on_fail: there is no gate"]),
    ('"slow-rank", at="step=10", param="factor=3"', ["param is a mapping"]),
    ('"slow-rank", at="step=10", param={"fctor": 3}', ["param fctor", "unknown key", "factor"]),
    ('"kill-node", "step=10"', ["give one fault without a name"]),
    ('"kill-node", fault="kill-node", at="step=10"', ["give one fault without a name"]),
    ('"kill-node", experiment="x.yaml"', ["both a fault and an experiment"]),
    ('experiment="nowhere.yaml"', ["nowhere.yaml", "cannot read the file"]),
    ('at="step=10"', ["which fault?"]),
    ('"kill-node", at="step=10", check="no"', ["check must be True or False"]),
    ('"kill-process", at="step=10", command="torchrun \'train.py"', ["command: ", "cannot be split into words"]),
    ('"kill-process", at="step=10", command=3', ["command: must be text, as in a shell, or a list of words, not 3"]),
    ('"kill-process", at="step=10", command=""', ["command: names no program"]),
    ('"kill-process", at="step=10", command=["a", 3]', ["command", "3"]),
]


def test_mistakes_name_the_marker_and_what_is_wrong_in_it(collected):
    tests = (f"@pytest.mark.chaos({marker})\ndef test_{n}(): pass" for n, (marker, _) in enumerate(MISTAKES))
    items = collected("\n".join(tests))
    for number, (marker, words) in enumerate(MISTAKES):
        with pytest.raises(pytest.fail.Exception) as refused:
            experiment(items[f"test_{number}"])
        message = str(refused.value)
        # A test has two lines, and the first line of the file is an import.
        assert message.startswith(f"test_it.py:{2 * number + 2}: @pytest.mark.chaos: "), message
        assert refused.value.pytrace is False, marker
        for word in words:
            assert word in message, marker


def test_a_mistake_fails_the_test_and_no_other(session):
    result = session(
        """
import pytest
@pytest.mark.chaos("kill-nod", at="step=10")
def test_wrong(): raise SystemError("it must not come to this")
@pytest.mark.chaos("kill-nod", at="step=10")
class TestCase(__import__("unittest").TestCase):
    def test_wrong_too(self): raise SystemError("it must not come to this")
def test_right(): pass
def test_fixture_without_a_marker(chaos_run): pass
"""
    )
    result.assert_outcomes(passed=1, failed=2, errors=1)
    for line in (2, 6):
        result.stdout.fnmatch_lines([f"*test_it.py:{line}: @pytest.mark.chaos: there is no fault 'kill-nod'*"])
    result.stdout.fnmatch_lines(["*test_it.py:8: chaos_run needs a marked test*"])
    result.stdout.no_fnmatch_line("*it must not come to this*")


def test_faults_and_backends_of_other_packages_are_known_in_it(session, tmp_path, monkeypatch):
    """Though they derive from ours, which have private names there."""
    (line,) = re.findall(r'^make-nice = "(.*)"$', documented("fault.md", "toml"), re.MULTILINE)
    install(tmp_path / "site", "nice_faults", documented("fault.md", "python"), f"[chaos.faults]\nmake-nice = {line}\n")
    install_backend_of_page(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]]))
    result = session(
        """
import pytest
@pytest.mark.chaos("make-nic", at="step=10")
def test_fault(): pass
@pytest.mark.chaos("make-nice", at="step=10", on="rank=1", backend="pined")
def test_backend(): pass
"""
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*there is no fault 'make-nic'*did you mean 'make-nice'*"])
    result.stdout.fnmatch_lines(["*must be 'local', *'pinned', *, not 'pined' (did you mean 'pinned'?)"])


def test_marked_tests_can_be_skipped(session):
    source = (
        'import pytest\n@pytest.mark.chaos("kill-node", at="step=10")\ndef test_it(): assert False\ndef test_b(): pass'
    )
    session(source, "--resilience-skip").assert_outcomes(passed=1, skipped=1)


def test_unused_it_imports_nothing_of_ours_and_strict_markers_know_it(session):
    result = session(
        """
import re
import sys
import pytest
OURS = {"chaos", "mecefo_runtime", "torch", "pydantic", "rich"} & {name.partition(".")[0] for name in sys.modules}
@pytest.mark.parametrize("n", [1])
def test_it(n): assert OURS == set()
@pytest.mark.skip
@pytest.mark.chaos(fault="kill-node")
def test_marked(): pass
""",
        "--strict-markers",
        "-p",
        "no:hypothesispytest",
    )
    result.assert_outcomes(passed=1, skipped=1)


OF_THE_PROJECT = """
import pytest

def check():
    import chaos.agent, harness.tools
    assert chaos.NAME == harness.NAME == "of the project"

check()

def test_it():
    check()

@pytest.mark.chaos(fault="kill-node", at="step=0")
def test_marked(chaos_run): pass

def test_after():
    check()
"""


@pytest.mark.parametrize("start", [("-m", "pytest"), ("-P", "-m", "pytest")], ids=["from-the-folder", "installed"])
def test_project_keeps_its_own_packages(pytester, monkeypatch, start):
    """Those of our packages' names: whether they are found before ours or after."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for name, module in (("chaos", "agent"), ("harness", "tools")):
        package = pytester.mkpydir(name)
        package.joinpath("__init__.py").write_text("NAME = 'of the project'\n")
        package.joinpath(f"{module}.py").touch()
    pytester.makepyfile(test_it=OF_THE_PROJECT)
    plugin = ("-p", "no:mecefo-chaos", "-p", "mecefo_chaos.pytest_plugin")
    result = pytester.run(sys.executable, *start, *plugin, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*from 1*"])


def test_pytest_tells_of_it(session):
    said = session("", "--markers").stdout.str()
    assert "@pytest.mark.chaos(fault, at=..., gate=[...], ...): make a run" in said
    said = session("", "--help").stdout.str()
    for option in (
        "out",
        "backend",
        "nodes",
        "gpus-per-node",
        "steps",
        "seed",
        "strategy",
        "timeout",
        "overlap",
        "skip",
    ):
        assert f"--resilience-{option}" in said


def test_before_the_run_there_are_no_figures():
    for ask in (lambda run: run.summary, lambda run: run.folder, lambda run: run.verdict, lambda run: run.events()):
        with pytest.raises(RuntimeError, match="the run is made when the test is called"):
            ask(MarkedRun())


def test_the_plugin_is_an_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"mecefo-chaos": "mecefo_chaos.pytest_plugin"}
