"""The house itself: which way imports point, what others build on, and that the documents say what is so."""

from __future__ import annotations

import ast
import functools
import graphlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from click import Command, Group

from chaos.errors import UsageError
from chaos.faults import registry
from harness.judging.verdict import EXIT_CODES
from mecefo_chaos.cli.main import cli, run_cli
from mecefo_runtime import planners
from tests.conftest import REAL_TIERS, TIERS
from tests.sources import PACKAGES, ROOT, SOURCES, module_name, nodes, trees

pytestmark = pytest.mark.unit

# Packages and their rooms, lowest first: an import may point to the left and down, never to the right or up.
ROOMS: Mapping[str, tuple[str, ...]] = {
    "mecefo_runtime": (
        *(
            "system",
            "stacks",
            "job",
            "prediction",
            "model",
            "comm",
            "planners",
            "state",
            "checkpoint",
            "snapshots",
            "step",
        ),
        *("training", "recovery", "membership", "launch"),
        *("huggingface", "__main__"),
    ),
    "chaos": (
        *(
            *("plain_text", "user_files", "step_ranges", "refusals"),
            "errors",
            "plugins",
            "language",
            "host",
            "in_process",
            "faults",
            "external",
            "undo",
            "experiment",
            "plan",
            "injection",
            "agent",
        ),
    ),
    "harness": (
        *("analysis", "store", "network", "control", "judging", "live", "doctor", "node", "checkpoints", "backends"),
        *("report", "exporter"),
        *("run", "comparison", "pytest"),
    ),
    "mecefo_chaos": ("module", "pytest_plugin", "studies", "cli", "__main__"),
}
# What a package may use of the others.
BELOW: Mapping[str, tuple[str, ...]] = {
    "mecefo_runtime": (),
    "chaos": ("mecefo_runtime",),
    "harness": ("chaos", "mecefo_runtime"),
    "mecefo_chaos": ("chaos", "harness", "mecefo_runtime"),
    "dashboards": ("chaos", "harness", "mecefo_runtime"),
    "manual": ("mecefo_chaos", "chaos", "harness", "mecefo_runtime", "dashboards"),
    "benchmarks": ("mecefo_chaos", "chaos", "harness", "mecefo_runtime"),
}
# Of a function, for TigerBeetle's reason: more than fits on a screen holds a second idea.
MAX_FUNCTION_LINES = 70


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def statements(node: ast.AST, *, at_import_time: bool) -> Iterator[ast.AST]:
    """All nodes below `node`; at import time neither bodies of functions nor what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if at_import_time and (is_function or is_type_checking(child)):
            continue
        yield child
        yield from statements(child, at_import_time=at_import_time)


@functools.cache
def imports(module: str, *, at_import_time: bool = False) -> set[str]:
    """The modules that `module` names in its import statements, as far as they are ours; whole names otherwise."""
    found: set[str] = set()
    for node in statements(trees()[module], at_import_time=at_import_time):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module} has a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in SOURCES else node.module for name in names}
    return found


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_imports_between_packages_point_downwards():
    wrong = []
    for module in SOURCES:
        package = module.split(".")[0]
        allowed = (*BELOW[package], package)
        for name in imports(module):
            if name.split(".")[0] in (*PACKAGES, "tests") and not within(name, *allowed):
                wrong.append((module, name))
    assert not wrong


def test_imports_between_rooms_point_downwards():
    wrong, num_checked = [], 0
    for module in SOURCES:
        package, _, inside = module.partition(".")
        if package not in ROOMS or not inside:
            continue
        order = {f"{package}.{room}": height for height, room in enumerate(ROOMS[package])}
        for name in imports(module):
            if name in SOURCES and within(name, package) and name != package and room_of(name) != room_of(module):
                num_checked += 1
                if order[room_of(name)] > order[room_of(module)]:
                    wrong.append((module, name))
    assert not wrong
    assert num_checked > 300, "the graph has no edges"


def test_imports_inside_functions_count_but_not_at_import_time():
    assert "harness.run.execute" in imports("mecefo_chaos.cli.main")
    assert "harness.run.execute" not in imports("mecefo_chaos.cli.main", at_import_time=True)
    assert "chaos.errors" in imports("mecefo_chaos.cli.main", at_import_time=True)


def test_there_are_no_import_cycles():
    # Imports inside of functions and those for type checkers count: a circle of ideas is one, whenever it is closed.
    graph = {module: {name for name in imports(module) if name in SOURCES} for module in SOURCES}
    assert graph["chaos.experiment.experiment"] >= {"chaos.experiment.fault_spec", "chaos.experiment.job"}
    graphlib.TopologicalSorter(graph).prepare()


def looks_by_number(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Looks at a process and acts on one by the bare `pid` of a `ProcessId`, whatever host that is of."""
    by_pid = ("pidfd_open", "kill", "getsid", "waitpid", "prlimit", "read_environment", "environment_of", "Process")
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            is_look = any(str(text).startswith("/proc/") for text in texts[:1])
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values, is_look = node.args, name in by_pid
        else:
            continue
        if is_look and any(isinstance(value, ast.Attribute) and value.attr == "pid" for value in values):
            yield ast.unparse(node)


def test_looks_and_acts_refuse_processes_of_another_host():
    found = {module: list(looks_by_number(nodes(module))) for module in SOURCES if within(module, *ROOMS)}
    assert {module: looks for module, looks in found.items() if looks} == {}
    assert list(
        looks_by_number(ast.walk(ast.parse("os.pidfd_open(process.pid); Path(f'/proc/{one.process.pid}/stat')")))
    ) == [
        "os.pidfd_open(process.pid)",
        "f'/proc/{one.process.pid}/stat'",
    ]


def test_raw_times_of_other_clocks_are_read_at_the_door_alone():
    """All others have times of the run's clock, so that they can be compared and subtracted."""
    reads = {"raw_seconds", "remote_seconds"}
    found = {
        module
        for module in SOURCES
        if any(isinstance(node, ast.Attribute) and node.attr in reads for node in nodes(module))
    }
    assert found == {
        "mecefo_runtime.system.clocks",
        "mecefo_runtime.system.events",
        "harness.control.peers",
    }


def test_every_room_says_what_lives_in_it():
    for package, rooms in ROOMS.items():
        present = {room_of(module).partition(".")[2] for module in SOURCES if within(module, package)} - {""}
        assert present == set(rooms)
        for folder in sorted({path.parent for path in (ROOT / package).rglob("__init__.py")} - {ROOT / package}):
            docstring = ast.get_docstring(trees()[module_name(folder / "__init__.py")]) or ""
            # The first line says what lives here, the last what may not.
            assert len(docstring.splitlines()) >= 3, folder


def test_the_command_line_answers_without_heavy_imports():
    script = (
        "import json, sys, mecefo_chaos.cli.main\n"
        "code = mecefo_chaos.cli.main.run_cli(['run', '--help'])\n"
        "heavy = sorted({'torch', 'rich', 'numpy', 'jinja2'} & sys.modules.keys())\n"
        "print(json.dumps([code, heavy]))\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "--at" in answer.stdout
    assert json.loads(answer.stdout.splitlines()[-1]) == [0, []]


COMMANDS = (
    *(
        "calibrate",
        "compare",
        "completion",
        "doctor",
        "faults",
        "forecast",
        "gates",
        "heal",
        "init",
        "paper",
        "plan",
        "replay",
    ),
    "report",
    *("run", "runs"),
    *("schema", "serve", "shrink", "validate"),
)
OPTIONS_OF_RUN = (
    *(
        "--at",
        "--on",
        "--for",
        "--reference",
        "--repair",
        "--every",
        "--rate",
        "--count",
        "--within",
        "--retrigger",
        "--then",
    ),
    *("--profile", "--param", "-p", "--and", "--nodes-per-rack"),
    *(
        "--nodes",
        "--redundancy",
        "--spares",
        "--gpus-per-node",
        "--data-parallel",
        "--pipeline",
        "--model",
        "--data",
        "--steps",
        "--strategy",
    ),
    *("--checkpoint-every", "--checkpoint-folder", "--snapshot-every", "--snapshot-protection"),
    *(
        "--seed",
        "--name",
        "--reset",
        "--stall-timeout",
        "--hang-rule",
        "--step-from",
        "--dilation",
        "--device-model",
        "--time-scale",
        "--link",
        "--microbatches-per-replica",
        "--pacing",
        "--quality",
        "--gate",
        "--abort-on-fail",
        "--abort-unless",
        "--baseline-run",
        "--no-baseline-run",
        "--twin",
        "--no-twin",
        "--backend",
        "--network",
    ),
    *("--engine", "--hosts", "--image", "--node-cpus", "--node-memory"),
    *("--out", "--json", "--junit", "--metrics", "--github", "--no-github"),
    *("--quick", "--dry-run", "--repeat", "--baseline"),
)


def test_the_command_line_is_what_others_build_on():
    # Scripts and pipelines use these: whoever takes one away breaks them. Adding one means adding it here.
    assert isinstance(cli, Group)
    assert sorted(cli.commands) == sorted(COMMANDS)
    run = cli.commands["run"]
    assert sorted(option_names(run)) == sorted(OPTIONS_OF_RUN)
    assert [parameter.name for parameter in run.params if parameter.param_type_name == "argument"] == ["subject"]
    understand_json = {name for name, command in cli.commands.items() if "--json" in option_names(command)}
    assert understand_json == set(COMMANDS) - {"completion", "init", "paper", "schema", "serve", "shrink"}
    papers = cli.commands["paper"]
    assert isinstance(papers, Group) and sorted(papers.commands) == ["mecefo", "reft", "spare"]
    assert all("--json" in option_names(command) for command in papers.commands.values())


def option_names(command: Command) -> list[str]:
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    return [name for option in options for name in (*option.opts, *option.secondary_opts)]


def test_every_module_says_what_it_is():
    first_lines = {module: (ast.get_docstring(tree) or "").split("\n")[0] for module, tree in trees().items()}
    assert not {module: line for module, line in first_lines.items() if not line.endswith((".", ":", ";", ","))}


def test_functions_are_short():
    long = {
        f"{module}.{node.name}": node.end_lineno - node.lineno + 1
        for module in SOURCES
        for node in nodes(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
        if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert not long, "look for the second idea that moved in"


# ---- documents ----

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text()
TEST_COMMANDS = ("pip install -e '.[test]' -c constraints.txt", "pytest -n auto")
REAL_RUNS = 'pytest -n auto --dist loadfile -m "not (unit or smoke or nightly)"'
MAIN_COMMANDS = ("pip install '.[runtime]' -c constraints.txt", "chaos run kill-node --at step=500")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def chaos_lines(text: str) -> Iterator[str]:
    """Lines of shell examples that call chaos, without comment and redirection."""
    for block in blocks(text, "sh"):
        for line in block.splitlines():
            if line.startswith("chaos "):
                yield re.sub(r"\s+[#>].*$", "", line)


def test_readme_has_the_two_commands():
    shell = "\n".join(blocks(README, "sh"))
    assert " && ".join(MAIN_COMMANDS) in shell
    assert " && ".join(TEST_COMMANDS) in shell


def test_ci_runs_the_tests_as_the_readme_says():
    script = (ROOT / ".ci/run").read_text()
    lines = [re.sub(r" --quiet", "", line.strip()) for line in script.splitlines()]
    assert set(TEST_COMMANDS) <= set(lines)
    assert f'-m "{REAL_TIERS}"' in REAL_RUNS, "files without real runs are not left out"
    assert lines[-1] == REAL_RUNS, "the closing line of pytest must be the last one printed"
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"`{line}`" in contributing for line in lines if line.startswith("pytest "))
    assert "set -euo pipefail" in lines
    assert (ROOT / ".ci/run").stat().st_mode & 0o111, ".ci/run is not executable"


def test_the_tiers_of_the_tests_are_those_that_contributors_read_of():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    listed = [marker.partition(":")[0] for marker in tool["markers"]]
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| tier |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == listed
    assert sorted(TIERS) == sorted(listed)


def test_the_nightly_workflow_runs_what_there_is():
    workflow = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [step["run"].split()[-2:] for step in job["steps"] if "run" in step] == [[".ci/run", "nightly"]]
    assert "pytest -n auto -m nightly" in (ROOT / ".ci/run").read_text()


def test_ci_and_contributors_have_the_same_gates():
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert hooks == ["ruff check", "ruff format --check", "mypy"]
    assert "pre-commit run --all-files" in (ROOT / ".ci/run").read_text()
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"`{hook}`" in contributing for hook in hooks)


def test_readme_names_every_fault_and_strategy():
    assert not {name for name in (*registry(), *planners.names()) if f"`{name}`" not in README}


@pytest.mark.parametrize(
    ("document", "row"),
    [
        ("docs/how-to/ci.md", r"^\| (?P<code>\d) \| (?P<verdict>\w+) \|"),
        ("docs/reference/glossary.md", r"^\| (?P<verdict>\w+) \| (?P<code>\d) \|"),
    ],
)
def test_documents_tell_every_exit_code(document, row):
    rows = re.finditer(row, (ROOT / document).read_text(), re.MULTILINE)
    table = {int(match["code"]): match["verdict"] for match in rows}
    if document.endswith("glossary.md"):  # usage errors are in the sentence above its table
        table[UsageError.exit_code] = "usage"
    assert table == {code: verdict for verdict, code in EXIT_CODES.items()} | {UsageError.exit_code: "usage"}


@pytest.mark.parametrize("line", [line for line in chaos_lines(README) if line.startswith("chaos run ")])
def test_examples_in_the_readme_are_accepted(line, has_networks, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The programs that come with the packages, torchrun among them.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "train.py").touch()
    arguments = shlex.split(line)[1:]
    behind = arguments.index("--") if "--" in arguments else len(arguments)
    code = run_cli([*arguments[:behind], "--dry-run", *arguments[behind:]])
    assert code == 0, capsys.readouterr().err
    assert "incident 0: " in capsys.readouterr().out or "--json" in line


JOB_OF_EXAMPLES = "name: x\njob: {steps: 560, checkpoint: {every_steps: 4}, snapshots: {}}\nfaults:\n"


def fault_examples():
    """The single faults that docs/reference/faults.md shows, and the whole experiments in it."""
    text = (ROOT / "docs/reference/faults.md").read_text()
    for block in blocks(text, "yaml"):
        yield block if block.startswith("job:") else None, block
    for line in re.findall(r"`(\{kind: .*\})`", text):
        yield None, f"- {line}\n"


@pytest.mark.parametrize(("whole", "example"), list(fault_examples()))
def test_examples_of_faults_are_accepted(whole, example, capsys, tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(f"name: x\n{whole}" if whole else JOB_OF_EXAMPLES + example)
    code, said = run_cli(["plan", str(path)]), capsys.readouterr()
    # Here there is neither a GPU nor a link: that, and nothing else, is said of those that need one.
    refused = [line for line in said.err.splitlines() if "mistakes:" not in line]
    if code != 0:
        known = ("needs a job whose ranks run on CUDA", "networks of their own")
        assert refused and all(any(reason in line for reason in known) for line in refused), said.err


def test_the_architecture_page_names_files_that_exist():
    text = (ROOT / "docs/explanation/architecture.md").read_text()
    named = [
        path for path in re.findall(r"`([\w/]+\.py|(?:chaos|harness|mecefo_runtime)/[\w/]*)`", text) if "/" in path
    ]
    assert len(named) > 20
    places = (ROOT, ROOT / "mecefo_runtime", ROOT / "harness")
    assert not [path for path in named if not any((place / path).exists() for place in places)]


def test_the_experiment_file_in_the_documents_is_accepted(capsys, tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(blocks((ROOT / "docs/reference/experiments.md").read_text(), "yaml")[0])
    assert run_cli(["plan", str(path)]) == 0, capsys.readouterr().err
    assert "incident 1: " in capsys.readouterr().out


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
    local = [target for target in targets if not target.startswith(("http://", "https://"))]
    assert not [target for target in local if not (document.parent / target).exists()]


def test_every_decision_is_in_the_list():
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text()
    decisions = sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    assert decisions and [name for name in re.findall(r"\(([^)]+\.md)\)", index) if "/" not in name] == decisions
    for number, name in enumerate(decisions, start=1):
        assert name.startswith(f"{number:04}-")
        assert (folder / name).read_text().startswith(f"# {number:04} ")


def has_no_encoding(call: ast.Call, is_entered: bool) -> bool:
    """Whether what the call reads or writes as text depends on the locale."""
    named = {keyword.arg for keyword in call.keywords}
    what = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    mode = next((text for text in texts if re.fullmatch(r"[rwax]?[bt+]{0,2}", text)), None)
    if "encoding" in named or (what == "read_text" and call.args):
        return False
    if what in ("open", "fdopen") and mode is None:
        # Of what is not a file the result is not entered.
        return what == "fdopen" or (is_entered and not call.args and not named)
    is_text_file = what in ("open", "fdopen") and "b" not in (mode or "")
    return what in ("read_text", "write_text") or is_text_file or bool(named & {"text", "universal_newlines"})


def without_encoding(nodes: Sequence[ast.AST]) -> Iterator[int]:
    """The lines of calls that have none."""
    entered = {id(item.context_expr) for node in nodes if isinstance(node, ast.With) for item in node.items}
    for node in nodes:
        if isinstance(node, ast.Call) and has_no_encoding(node, id(node) in entered):
            yield node.lineno


@pytest.mark.parametrize("package", ["chaos", "harness", "mecefo_runtime"])
def test_no_text_depends_on_the_locale(package):
    assert not [
        f"{SOURCES[module]}:{line}"
        for module in SOURCES
        if within(module, package)
        for line in without_encoding(nodes(module))
    ]


def test_a_text_that_depends_on_the_locale_is_seen():
    bad = (
        *("p.read_text()", "p.write_text(t)", "open('file', 'w')", "os.fdopen(n)", "subprocess.run(c, text=True)"),
        *("with p.open() as f: pass", "p.open('a', buffering=1)"),
    )
    good = (
        *("p.read_text(encoding='utf-8')", "open('file', 'rb')", "os.fdopen(n, 'rb')", "await backend.open()"),
        *("subprocess.run(c)", "with p.open('wb') as f: pass", "session.open(folder)"),
    )
    for source in bad:
        assert list(without_encoding([*ast.walk(ast.parse(source))])), source
    for source in good:
        assert not list(without_encoding([*ast.walk(ast.parse(source))])), source
