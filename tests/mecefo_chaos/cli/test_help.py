"""Help in groups, what a group says of `-- COMMAND`, and `chaos run --quick`."""

import re

import click
import pytest

from chaos.experiment.command_job import CommandJob
from chaos.experiment.job import Job
from chaos.experiment.terms import place_of
from mecefo_chaos.cli.main import cli
from mecefo_chaos.cli.shared import experiment_options, quick

pytestmark = pytest.mark.unit

RUN = cli.commands["run"]


def headings(text):
    return re.findall(r"^(\S.*):$", text, re.MULTILINE)


def test_every_subcommand_stands_under_a_heading_once(chaos):
    named = [name for lines in cli.sections.values() for name in lines]
    assert sorted(named) == sorted(cli.commands)
    out = chaos("--help")[1]
    assert set(cli.sections) <= set(headings(out))
    assert "..." not in out.partition("Options:")[2]


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_help_has_no_trace_of_its_markup(chaos, command):
    assert "\\b" not in chaos(command, "--help")[1]


@pytest.mark.parametrize("command", ["run", "plan", "init", "compare"])
def test_options_of_an_experiment_are_shown_in_groups(chaos, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = chaos(command, "--help")[1]
    shown = headings(out)
    assert len(shown) == len(set(shown)) >= 7
    assert shown[-1] == "Other options"
    assert max(map(len, out.splitlines())) <= 80
    ungrouped = re.findall(r"--[\w-]+", out.rpartition("Other options:")[2])
    assert ungrouped == ["--help"]


def test_the_headings_say_truly_what_works_with_a_command():
    wrong = []
    for option in RUN.params:
        if not isinstance(option, click.Option) or option.name in ("gates", "abort_unless", "abort_on_fail"):
            continue
        place = place_of(option.name)
        if place[0] != "job" or place[1] not in (*Job.model_fields, *CommandJob.model_fields):
            continue
        # Of a command's checkpoints only the folder can be said.
        of_command = place[1] in CommandJob.model_fields and option.name != "checkpoint_every"
        of_ours = place[1] in Job.model_fields
        wanted = {
            (True, True): experiment_options.ANY_JOB,
            (True, False): experiment_options.OWN_JOB,
            (False, True): experiment_options.BUILT_IN_JOB,
        }[of_command, of_ours]
        if option.group != wanted:
            wrong.append(option.name)
    assert not wrong


class TestQuick:
    def test_it_says_what_it_chose(self, chaos):
        code, out, err = chaos("run", "--quick", "--dry-run")
        assert code == 0
        assert err == f"quick run: kill-node, --steps {quick.STEPS}, --at step={quick.AT_STEP}, --repair 20steps\n"
        assert f"{quick.STEPS} steps" in out and "kill-node on" in out and "at step=40, repaired after 20steps" in out

    @pytest.mark.parametrize(
        ("arguments", "chosen"),
        [
            (("slow-rank", "-p", "factor=3"), "slow-rank, --steps 100, --at step=40"),
            (("kill-node", "--at", "step=70", "--repair", "none"), "kill-node, --steps 100"),
            (("kill-process", "--every", "20steps"), "kill-process, --steps 100, --repair 20steps"),
            (("--profile", "llama3:3"), "llama3:3, --steps 100"),
            (("kill-node", "--steps", "300", "--at", "step=200"), "kill-node"),
            (("none",), "none, --steps 100"),
        ],
    )
    def test_what_is_given_stays(self, chaos, arguments, chosen):
        code, _, err = chaos("run", "--quick", *arguments, "--dry-run")
        assert (code, err) == (0, f"quick run: {chosen}\n")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("kill-node", "--at", "step=500"), ["--at: step=500 is after the 100 steps of --quick"]),
            (("file.yaml",), ["--quick: 'file.yaml' says how many steps", "--steps 100"]),
            (("raise", "--", "torchrun", "train.py"), ["--quick: shortens the built-in job", "--at step=30"]),
            (("kill-nod",), ["did you mean 'kill-node'?"]),
        ],
    )
    def test_what_it_cannot_shorten(self, chaos, arguments, words):
        code, out, err = chaos("run", "--quick", *arguments)
        assert (code, out) == (4, "")
        assert all(word in err for word in words), err
