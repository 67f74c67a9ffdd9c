"""No circle: whatever a message tells the user to write is accepted in that very situation. See `table.py`."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from mecefo_chaos.cli.main import cli, run_cli
from tests.mecefo_chaos.cli.advice.messages import Message, in_source, messages
from tests.mecefo_chaos.cli.advice.table import EXCEPTIONS, FILES, ONLY_NAMED, OTHER_PROGRAMS, TABLE, Advice

pytestmark = pytest.mark.unit

# What these would do takes longer than to say whether they accept their words.
ONLY_PARSED = ("report", "runs", "heal", "shrink", "calibrate")
TABLE_PATH = "tests/mecefo_chaos/cli/advice/table.py"


class Accepted(BaseException):
    """What was asked for would begin now."""


@pytest.fixture(autouse=True)
def situation(tmp_path, monkeypatch, has_networks):
    """The files of the table, a torchrun, and no run that begins."""
    for name, text in FILES.items():
        Path(name).write_text(text)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("torchrun", "python"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def begin(*_, **__):
        raise Accepted

    monkeypatch.setattr("harness.comparison.rounds.Rounds.run", begin)
    monkeypatch.setattr("chaos.host.small_disk.may_mount", lambda: True)
    monkeypatch.setattr("harness.node.node.ThisMachine.shows_mounts", lambda self, path: True)


@pytest.fixture
def answer(capsys):
    """(whether a command line is accepted, what it prints)."""

    def answered(line: str) -> tuple[bool, str]:
        words = shlex.split(line)
        if words[0] in ONLY_PARSED or (words[0] == "compare" and words[1] in FILES):
            cli.commands[words[0]].make_context(words[0], words[1:])
            return True, ""
        if words[0] == "run" and "--help" not in words:
            words.insert(1, "--dry-run")
        try:
            is_accepted = run_cli(words) == 0
        except Accepted:
            is_accepted = True
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return is_accepted, out + err

    return answered


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.line[:60]} | {row.write or row.leave_out}")
def test_what_a_message_advises_is_accepted(answer, row: Advice):
    is_accepted, told = answer(row.line)
    if row.text:
        assert is_accepted, told
        told = row.text
    else:
        assert not is_accepted
    assert (row.write or row.leave_out) in told, told
    assert has_option(row.then, row.option) is bool(row.write), "the line after the advice does not follow it"
    is_accepted, told = answer(row.then)
    assert is_accepted, told


def has_option(line: str, option: str) -> bool:
    """Whether a command line has `option` among the words of chaos; of a file, what its name says."""
    words = shlex.split(line)
    if words[0] == "validate" or option.startswith("--standalone"):
        return option in words or words[0] == "validate"
    own = words[: words.index("--")] if "--" in words and option != "--" else words
    if not option.startswith("-"):
        return any(option in word for word in own)
    return any(word == option or word.startswith(f"{option}=") for word in own)


def test_every_message_that_names_an_option_has_a_row(answer):
    told = {row: row.text or answer(row.line)[1] for row in TABLE}
    missing = [
        f"{message.place}: {option}: {message.text[:120]!r}"
        for message in messages()
        if not is_excepted(message)
        for option in sorted(message.options - OTHER_PROGRAMS.keys() if message.options else [""])
        if not has_row(message, option, told)
    ]
    assert not missing, f"add a row to {TABLE_PATH} for each of\n" + "\n".join(missing)


def has_row(message: Message, option: str, told: dict[Advice, str]) -> bool:
    """Whether a row is about this option of this message; "": whether any is about the message."""
    if any(part in message.text and one == option for part, one in ONLY_NAMED):
        return True
    return any(option in (*row.write.split(), row.leave_out, "") and message.is_in(text) for row, text in told.items())


def is_excepted(message: Message) -> bool:
    """Whether there is a reason why the message has no row."""
    return any(message.place.startswith(part) or part in message.text for part in EXCEPTIONS)


def test_no_exception_and_no_text_is_stale():
    """A message that was changed or removed takes with it what the table says of it."""
    unused = [part for part in EXCEPTIONS if not any(m.place.startswith(part) or part in m.text for m in messages())]
    unused += [part for part, _ in ONLY_NAMED if not any(part in message.text for message in messages())]
    named = {option for message in messages() for option in message.options}
    unused += [option for option in OTHER_PROGRAMS if option not in named]
    unused += [row.text for row in TABLE if row.text and not any(message.is_in(row.text) for message in messages())]
    assert not unused, f"nothing in the product says this any more: remove it from {TABLE_PATH}"


def test_messages_are_found():
    """A message that names an option is found whichever way it is put together; other texts are not."""
    source = '''
"""A docstring with --option in it."""
raise UsageError("it cannot be: write --steps 5")
raise UsageError(f"{what} cannot be: " f"write {setting('job.steps', 5)} instead", key="--at is no advice")
option("--steps", help="Any text with --steps in it.")
RUN_HELP = "write --steps 5"
name = "--steps"
'''
    found = list(in_source(source, "x.py"))
    assert [(message.place, message.options) for message in found] == [
        ("x.py:3", {"--steps"}),
        ("x.py:4", {"--steps"}),
    ]
    assert found[1].is_in("chaos: 7 nodes cannot be: write --steps 5 instead")
    assert not found[1].is_in("chaos: 7 nodes cannot be: write it")


LOSSES = ("kill-process", "kill-node", "kill-job", "segfault", "exit", "raise", "drain-node", "kill-smp")
LASTING = ("slow-rank", "pause-process", "hang-gil", "bit-flip", "set-nan", "drop-link", "hide-checkpoint", "scale")
ENDINGS = ("--for 5s", "--repair 5s", "--repair none", "--for 700steps", "--repair 700steps")


@pytest.mark.parametrize("kind", [*LOSSES, *LASTING])
def test_how_a_fault_ends_is_told_without_a_circle(answer, kind):
    """Of every kind, whatever is said of its end, following what is told about it leaves nothing to be told of it."""
    for ending in ENDINGS:
        for job in ("", "--strategy reft", "--on role=coordinator", f"-- {OWN_JOB}"):
            line = f"run {kind} --at step=30 --checkpoint-every 20 --snapshot-every 1 {ending} {job}"
            line = re.sub(r"--\w+-every \d+ ", "", line) if "--" in job.split() else line
            _, told = answer(line)
            followed = follow(line, ending, told)
            if followed is None:
                continue
            _, again = answer(followed)
            # What else is wrong stays so.
            assert not re.search(r"--(for|repair)", again), f"{line}: {told}\n{followed}: {again}"


OWN_JOB = "torchrun --nproc-per-node 2 train.py"


def follow(line: str, ending: str, told: str) -> str | None:
    """The line after the advice about `ending` was followed; None: there is none."""
    option = ending.split()[0]
    if re.search(rf"leave {option} out", told):
        return line.replace(ending, "")
    if match := re.search(r"write (--repair \d\S*)", told):
        return line.replace(ending, match[1])
    if match := re.search(r"raise (--steps)|choose a shorter (--for)", told):
        return f"{line.replace('--at', '--steps 900 --at')}" if match[1] else line.replace(ending, "--for 1s")
    if "write --repair" in told:
        return line.replace(ending, "--repair 5s")
    if "--for is the duration" in told:
        return line.replace(ending, "--for 5s")
    return None
