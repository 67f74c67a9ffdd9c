"""Completion, asked by the real bash with the script that `chaos completion bash` prints."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

# What bash does before it calls the function of a command line.
ASK = """
eval "$(chaos completion bash)"
compopt() { echo compopt "$@"; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_chaos_completion chaos "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def offered(tmp_path):
    """What bash offers for the last of some words."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "chaos").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mecefo_chaos "$@"\n')
    (programs / "chaos").chmod(0o755)
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(root)}

    def ask(*words):
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", "chaos", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.split("\n")[:-1]

    return ask


def test_what_bash_is_offered(offered):
    assert offered("ru") == ["run", "runs"]
    assert offered("run", "kill-n") == ["kill-node"]
    assert offered("run", "--strat") == ["--strategy"]
    assert offered("run", "kill-node", "--strategy", "oo") == ["oobleck-like"]
    assert offered("run", "--gate", "'recovery_se") == ["recovery_seconds"]
    assert offered("run", "--model", "llama-t") == ["llama-tiny"]


def test_a_key_waits_for_its_value_and_bash_splits_words_at_the_sign(offered):
    assert offered("run", "slow-rank", "-p", "fac") == ["compopt -o nospace", "factor="]
    assert offered("run", "x", "--on", "role", "=", "coo") == ["coordinator"]


def test_another_fault_has_its_own_options(offered):
    line = ("run", "kill-node", "--at", "step", "=", "5", "--and")
    assert offered(*line, "slow-l") == ["slow-link"]
    assert offered(*line, "slow-rank", "--at", "ph") == ["phase=regroup", "phase=transfer"]
    assert offered(*line, "slow-rank", "-p", "fac") == ["compopt -o nospace", "factor="]


def test_strategies_one_after_the_other_and_their_qualities(offered):
    assert offered("compare", "--strategies", "exact,nd") == ["exact,ndb"]
    assert offered("compare", "--strategies", "exact,mecefo", ":", "sp") == ["speed"]
    assert offered("compare", "--strategies", "exact", ":") == [""]


def test_files(offered):
    assert offered("run", "raise", "--at", "step=5", "--", "torchrun", "tr") == ["compopt -o default", ""]
    assert offered("validate", "x") == ["compopt -o default", ""]


def test_runs_and_no_word_about_what_goes_wrong(offered, tmp_path):
    folder = tmp_path / "store" / "kill-node" / "20260101T000000Z"
    folder.mkdir(parents=True)
    for command in ("report", "replay", "serve", "shrink", "heal"):
        assert offered(command, "--out", "store", "") == ["latest", "kill-node/20260101T000000Z"]
    (tmp_path / "file").touch()
    assert offered("report", "--out", "file", "x") == ["compopt -o default", ""]
    assert offered("nonsense", "--x") == [""]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one(chaos, shell):
    code, out, err = chaos("completion", shell)
    assert (code, err) == (0, "")
    assert "_CHAOS_COMPLETE" in out
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=out, text=True, check=False).returncode == 0


def test_it_needs_no_torch():
    script = "import sys\nfrom mecefo_chaos.cli.main import run_cli\n"
    script += "try:\n    run_cli([])\nfinally:\n    assert 'torch' not in sys.modules"
    for words in ("run\nkill", "run\n--strategy\n", "run\n--gate\n", "report\n"):
        environment = {**os.environ, "COMP_WORDS": f"chaos\n{words}", "COMP_CWORD": str(words.count("\n") + 1)}
        environment["_CHAOS_COMPLETE"] = "bash_complete"
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
