"""Completion, asked by the real bash with the script that `chaos completion bash` prints, or as that script asks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
# What bash does before it calls the function of a command line.
ASK = """
. ./completion
compopt() { echo compopt "$@"; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_chaos_completion chaos "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script():
    """What `chaos completion bash` prints."""
    command = [sys.executable, "-m", "mecefo_chaos", "completion", "bash"]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def offered(tmp_path, script):
    """What bash offers for the last of some words."""
    (tmp_path / "completion").write_text(script)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "chaos").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mecefo_chaos "$@"\n')
    (programs / "chaos").chmod(0o755)
    environment = {**ENVIRONMENT, "PATH": f"{programs}:{os.environ['PATH']}"}

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


@pytest.fixture
def told(chaos, capsys, monkeypatch):
    """What the script of bash is told for the last of some words, without bash: the kind and value of each."""

    def ask(*words):
        monkeypatch.setenv("COMP_WORDS", "\n".join(("chaos", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv("_CHAOS_COMPLETE", "bash_complete")
        with pytest.raises(SystemExit):
            chaos()
        return capsys.readouterr().out.splitlines()

    return ask


def test_what_bash_is_offered(offered):
    assert offered("ru") == ["run", "runs"]
    assert offered("run", "--gate", "'recovery_se") == ["recovery_seconds"]


def test_faults_options_and_their_values(told):
    assert told("run", "kill-n") == ["plain,kill-node"]
    assert told("run", "--strat") == ["plain,--strategy"]
    assert told("run", "kill-node", "--strategy", "oo") == ["plain,oobleck-like"]
    assert told("run", "--model", "llama-t") == ["plain,llama-tiny"]


def test_a_key_waits_for_its_value_and_bash_splits_words_at_the_sign(offered):
    assert offered("run", "slow-rank", "-p", "fac") == ["compopt -o nospace", "factor="]
    assert offered("run", "x", "--on", "role", "=", "coo") == ["coordinator"]


def test_another_fault_has_its_own_options(told):
    line = ("run", "kill-node", "--at", "step", "=", "5", "--and")
    assert told(*line, "slow-l") == ["plain,slow-link"]
    assert told(*line, "slow-rank", "--at", "ph") == ["plain,phase=regroup", "plain,phase=transfer"]
    assert told(*line, "slow-rank", "-p", "fac") == ["plain,factor="]


def test_strategies_one_after_the_other_and_their_qualities(offered, told):
    assert told("compare", "--strategies", "exact,nd") == ["plain,exact,ndb"]
    assert offered("compare", "--strategies", "exact,mecefo", ":", "sp") == ["speed"]
    assert told("compare", "--strategies", "exact", ":") == [""]


def test_files(offered):
    assert offered("run", "raise", "--at", "step=5", "--", "torchrun", "tr") == ["compopt -o default", ""]
    assert offered("validate", "x") == ["compopt -o default", ""]


def test_runs_and_no_word_about_what_goes_wrong(offered, tmp_path):
    folder = tmp_path / "store" / "kill-node" / "20260101T000000Z"
    folder.mkdir(parents=True)
    assert offered("report", "--out", "store", "") == ["latest", "kill-node/20260101T000000Z"]
    (tmp_path / "file").touch()
    assert offered("report", "--out", "file", "x") == ["compopt -o default", ""]
    assert offered("nonsense", "--x") == [""]


@pytest.mark.parametrize("command", ["report", "replay", "serve", "shrink", "heal"])
def test_each_command_that_reads_a_run_offers_them(told, tmp_path, command):
    (tmp_path / "kill-node" / "20260101T000000Z").mkdir(parents=True)
    assert told(command, "--out", str(tmp_path), "") == ["plain,latest", "plain,kill-node/20260101T000000Z"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one(chaos, shell):
    code, out, err = chaos("completion", shell)
    assert (code, err) == (0, "")
    assert "_CHAOS_COMPLETE" in out
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=out, text=True, check=False).returncode == 0


# All questions in one process: what was imported for one of them stays.
ASK_ALL = """
import os, sys
from mecefo_chaos.cli.main import run_cli
os.environ["_CHAOS_COMPLETE"] = "bash_complete"
for words in ("run\\nkill", "run\\n--strategy\\n", "run\\n--gate\\n", "report\\n"):
    os.environ |= {"COMP_WORDS": f"chaos\\n{words}", "COMP_CWORD": str(words.count("\\n") + 1)}
    try:
        run_cli([])
    except SystemExit:
        print("asked", words)
    assert "torch" not in sys.modules, words
"""


def test_it_needs_no_torch():
    done = subprocess.run([sys.executable, "-c", ASK_ALL], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("asked") == 4 and "plain,exact" in done.stdout and "plain,recovery_seconds" in done.stdout
