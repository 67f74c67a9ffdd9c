"""Every command that the documents show is tried: none may name an option that is not there, and none goes unseen.

What is over in a moment is run, a run of a job is planned (`--dry-run`), a benchmark's arguments are read.
docs/tutorials/first-run.md is run for real by tests/integration/test_start_page.py. A block that cannot be tried says
why in a comment before it: `<!-- not run: needs a Docker engine -->`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import re
import shlex
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import click
import pytest
from _pytest.config import get_config

from chaos.experiment.experiment import experiment_hash
from chaos.experiment.reading import from_options
from harness.judging.stored import judge
from harness.run.preparation import prepare
from mecefo_chaos.cli.main import cli, run_cli
from mecefo_runtime.prediction.named_devices import named_device
from mecefo_runtime.system.json_values import to_json
from tests.harness import synthetic
from tests.manual.documents import ROOT, code_in_sentences, commands, documents, experiment_files

pytestmark = pytest.mark.unit

DOCUMENTS = documents()
EXPERIMENTS = next(document for document in DOCUMENTS if document.name == "docs/reference/experiments.md")
COMMANDS = [command for document in DOCUMENTS for command in commands(document)]
# What a machine without GPUs or networks of its own may say of an example that needs them.
KNOWN_REFUSALS = ("needs a job whose ranks run on CUDA", "networks of their own")
# Commands of ours that are over in a moment, those that start a job and are planned instead, and those that would go on
# for long and cannot be planned: of these the arguments are read.
AT_ONCE = ("faults", "gates", "heal", "plan", "report", "runs", "schema")
PLANNED = ("run", "replay")
ONLY_READ = ("calibrate", "compare", "doctor", "forecast", "init", "paper", "serve", "shrink", "validate")
# Run by .ci/run on a fresh machine, or by every contributor.
SETTING_UP = (
    "pip install .[runtime] -c constraints.txt",
    "pip install mecefo-chaos",
    "pip install -e .[test] -c constraints.txt",
    "pytest -n auto",
    "pre-commit install",
    "pipx install mecefo-chaos",
)
# Run by tests of their own.
ELSEWHERE = {
    "mkdocs": "tests/manual/test_site.py",
    "sed": "tests/integration/test_start_page.py",
    "export": "tests/integration/test_external_page.py",
    "rm": "tests/integration/test_external_page.py",
    "torchrun": "tests/integration/test_own_script_page.py",
}
# Programs of others, whose options are theirs; those of torchrun are looked up.
OF_DOCKER = ("--read-only", "--tmpfs", "--shm-size", "--security-opt", "--gpus", "--user", "--cap-drop", "--build-arg")
OTHERS = (
    "ruff",
    "pip",
    "pytest",
    "pre-commit",
    "mkdocs",
    "docker",
    "docker-compose",
    "promtool",
    "prometheus",
    "git",
    *("sbatch", "scancel", "srun"),
)


def ledger_of_a_run(folder):
    """A fault that was undone, by a process that is no more."""
    # A name of its own: `heal` ends whatever on this machine carries it.
    owner = {
        "run": uuid.uuid4().hex,
        "by": "chaos",
        "pid": 2**22 + 1,
        "start_ticks": 1,
        "time": 1.0,
        "folder": str(folder),
    }
    entry = {"incident": 0, "fault": "kill-node", "record": {"processes": []}, **owner}
    return [{**entry, "state": state} for state in ("prepared", "applied", "struck")]


def kind_of(command) -> str:
    """How a command is tried."""
    match command.words:
        case _ if command.block.reason is not None:
            return "not run"
        case ("chaos", name, *_) if name in ONLY_READ:
            return "arguments"
        case ("chaos", name, *_) if name in AT_ONCE + PLANNED:
            return "chaos"
        case ("python", "-m", module, *_) if (ROOT / module.partition(".")[0] / "__init__.py").exists():
            return "arguments"
        case (program, *_) if program in ELSEWHERE:
            return "elsewhere"
        case words if " ".join(words) in SETTING_UP:
            return "setting up"
    return "not at all"


def of_kind(*kinds):
    return [pytest.param(command, id=str(command)) for command in COMMANDS if kind_of(command) in kinds]


def test_no_command_goes_unseen():
    unseen = [str(command) for command in COMMANDS if kind_of(command) == "not at all"]
    assert not unseen, "give each a test, or say before its block why it is not run"
    assert {kind_of(command) for command in COMMANDS} >= {"chaos", "arguments", "setting up", "not run"}
    for test in ELSEWHERE.values():
        assert (ROOT / test).exists()


@pytest.fixture
def ground(tmp_path, monkeypatch):
    """A folder of our own with a finished run in it, in which nothing of this user's is touched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAOS_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "chaos-runs" / "kill-node" / "20260101T000000Z"
    folder.mkdir(parents=True)
    (folder.parent.parent / "latest").symlink_to(folder)
    (folder / "events.jsonl").write_text("".join(f"{event.to_json()}\n" for event in events_of_a_run()))
    (folder / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in ledger_of_a_run(folder)))
    return tmp_path


def events_of_a_run():
    """A run that can be replayed: what it says of itself is what a real one would."""
    experiment = from_options("kill-node", {"at": "step=20", "on": "node=1", "steps": 60})
    planned = prepare(experiment).plan.incidents
    own = {
        "run_started": {
            "experiment": experiment.model_dump(mode="json"),
            "experiment_hash": experiment_hash(experiment),
            "seed": experiment.seed,
        },
        "incidents_planned": {"incidents": [to_json(incident.planned()) for incident in planned]},
    }
    return [replace(event, fields={**event.fields, **own.get(event.kind, {})}) for event in synthetic.run()]


@pytest.mark.parametrize("command", of_kind("chaos"))
def test_a_command_of_ours_is_accepted(command, ground, has_networks, capsys):
    files = experiment_files(command.block.document) or experiment_files(EXPERIMENTS)
    for word in command.words:
        if word.endswith(".py"):
            # The last of a script for a shell.
            (ground / word.split()[-1]).touch()
        if word.endswith("baseline.json"):
            stored = next((ground / "chaos-runs").glob("*/*/events.jsonl")).parent
            (ground / word).write_text(json.dumps(to_json(judge(stored)[0])))
        if word == "mine.json":
            (ground / word).write_text(named_device("a100-350m").to_text())
        if word.endswith((".yaml", ".yml")):
            (ground / word).write_text(files.get(word, next(iter(files.values()))))
    arguments = list(command.words[1:])
    if arguments[0] in PLANNED:
        end = arguments.index("--") if "--" in arguments else len(arguments)
        arguments.insert(end, "--dry-run")
    code, said = run_cli(arguments), capsys.readouterr()
    refused = [line for line in said.err.splitlines() if line.startswith("chaos: ") and "mistakes" not in line]
    if refused and all(any(known in line for known in KNOWN_REFUSALS) for line in refused):
        return
    assert code == 0, said.err
    assert said.out or arguments[0] == "heal"


@pytest.mark.parametrize("command", of_kind("arguments"))
def test_the_arguments_of_a_long_command_can_be_read(command):
    click_command, arguments = found(command.words)
    click_command.make_context(command.words[0], list(arguments))


@pytest.mark.parametrize("command", of_kind("not run"))
def test_a_command_that_is_not_run_has_only_options_that_there_are(command):
    if command.words[0] == "chaos" or command.words[:2] == ("python", "-m"):
        assert not unknown_options(shlex.join(command.words))
    assert len(command.block.reason) > 10


def test_what_is_set_up_is_what_ci_sets_up():
    script = (ROOT / ".ci/run").read_text().replace(" --quiet", "").replace("'", "")
    assert all(line in script for line in SETTING_UP[2:4])


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_options_in_sentences_are_there(document):
    assert not {code: unknown for code in code_in_sentences(document) if (unknown := unknown_options(code))}


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_every_block_says_what_it_is(document):
    fences = re.findall(r"^( *)```(\w*)", document.text, re.MULTILINE)[::2]
    languages = {language for _, language in fences}
    assert "" not in languages, "a block without a language: its commands would go unseen"
    assert not languages & {"bash", "shell", "console", "zsh"}, "shell commands stand in blocks of the language sh"
    assert not any(indent for indent, _ in fences), "an indented block: its commands would go unseen"


@pytest.mark.parametrize(
    "code",
    [
        "chaos run kill-node --at step=5 --stepz 10",
        "chaos replay latest --junit x",
        "--no-such-option",
        "python -m benchmarks.soak --peers",
        "torchrun --nproc-per-nod 2 train.py",
        "chaos rum",
    ],
)
def test_a_wrong_option_is_found(code):
    assert unknown_options(code)


def found(words):
    """(the click command, its arguments) of a command line of ours."""
    if words[0] == "chaos":
        command, rest = cli.commands[words[1]], words[2:]
        return (command.commands[rest[0]], rest[1:]) if isinstance(command, click.Group) and rest else (command, rest)
    name = "mecefo_runtime.launch.torchrun" if words[2] == "mecefo_runtime" else words[2]
    module = importlib.import_module(name)
    if not hasattr(module, "main"):
        module = importlib.import_module(f"{name}.__main__")
    return module.main, words[3:]


def option_names(command):
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {"-h", "--help", *(name for option in options for name in (*option.opts, *option.secondary_opts))}


@functools.cache
def torchrun_options():
    from torch.distributed.run import get_args_parser

    return {name.replace("_", "-") for name in get_args_parser()._option_string_actions}


def pytest_options():
    """Of pytest, and of our plugin for it."""
    parser = get_config()._parser
    if importlib.util.find_spec("harness.pytest.plugin") is not None:
        importlib.import_module("harness.pytest.plugin").pytest_addoption(parser)
    return {name for group in parser._groups for option in group.options for name in option.names()}


@functools.cache
def all_options():
    modules = [path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")]
    modules += [path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")]
    lines = [("python", "-m", "mecefo_runtime"), *(("python", "-m", f"benchmarks.{name}") for name in sorted(modules))]
    known = {"--version", *torchrun_options(), *pytest_options(), *OF_DOCKER}
    of_papers = cli.commands["paper"].commands.values()
    for command in (*cli.commands.values(), *of_papers, *(found(line)[0] for line in lines)):
        known |= option_names(command)
    return known


def unknown_options(code):
    """Options in a piece of code that its command has not, or, where it names none, that no command has."""
    words = code.replace("[", " ").replace("]", " ").split()
    while words and re.match(r"[A-Z_]+=", words[0]):  # what is put into the command's environment
        opened = words.pop(0).count('"') % 2
        while words and opened:
            opened ^= words.pop(0).count('"') % 2
    if not words or words[0] in OTHERS:
        return set()
    own = words[: words.index("--")] if "--" in words else words
    said = {word.partition("=")[0].rstrip(",.;:") for word in own if re.match(r"--?[a-z]", word)}
    try:
        return said - known_options(words, own)
    except (KeyError, ImportError):
        return {code}


def known_options(words, own):
    if words[0] == "chaos" and len(own) > 1 and re.fullmatch(r"[a-z][a-z-]*", own[1]):
        return option_names(found(tuple(own))[0])
    if words[0] == "torchrun":
        runtime = "mecefo_runtime" in words
        return torchrun_options() | (option_names(found(("python", "-m", "mecefo_runtime"))[0]) if runtime else set())
    if words[:2] == ["python", "-m"] and len(words) > 2 and re.match(r"benchmarks\.[a-z]|mecefo_runtime$", words[2]):
        return {"-m", *option_names(found(tuple(words))[0])}
    # Of which program a short option is, the sentence says.
    return all_options() | {word for word in words if re.fullmatch("-[a-zA-Z]", word)}
