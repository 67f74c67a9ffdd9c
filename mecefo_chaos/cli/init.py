"""`chaos init`: an experiment file from a command line, or on a terminal from a few questions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from chaos.errors import EnvironmentFailure, UsageError, shown
from chaos.user_files import write_output
from mecefo_chaos.cli.shared.experiment_options import CommandOfAJob
from mecefo_chaos.cli.shared.grouped import option
from mecefo_chaos.cli.shared.options import OUTPUT
from mecefo_chaos.cli.shared.output import echo, print_as_is

T = TypeVar("T")

_STANDARD_OUTPUT = "-"
_HELP = """Write an experiment file: from the options of `chaos run`, or without any, on a terminal, from questions.

\b
chaos init
chaos init kill-process --at step=30 -- torchrun train.py
"""


@click.command(cls=CommandOfAJob, help=_HELP)
@option(OUTPUT, "--output", "-o", metavar="FILE", help="File to write; - is standard output. Default: FAULT.yaml.")
@option(OUTPUT, "--force", is_flag=True, help="Overwrite the file if it exists.")
def init(subject: str | None, output: str | None, force: bool, **options: Any) -> int:
    """Write the experiment file; returns the exit code."""
    given = {key: value for key, value in options.items() if value not in (None, ())}
    if subject is None and "profile" not in given:
        if given or not sys.stdin.isatty():
            raise UsageError(
                "which fault? Write one, as in `chaos init kill-process --at step=30` (`chaos faults` lists them); "
                "without any argument, on a terminal, `chaos init` asks"
            )
        subject, given, output = _asked(output, force)
    path = _path(output, subject, force)
    text = _text(subject, given, path)
    if path is None:
        print_as_is(text.rstrip("\n"))
        return 0
    _write(path, text, force)
    echo(f"{path} written. Check it with `chaos validate {path}`, run it with `chaos run {path}`")
    return 0


def _path(output: str | None, subject: str | None, force: bool) -> Path | None:
    """The file to write; None: standard output."""
    if output == _STANDARD_OUTPUT:
        return None
    if output == "":
        raise UsageError("name a file", key="--output")
    path = Path(output or f"{subject or 'experiment'}.yaml")
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file in it", key="--output")
    if path.exists() and not force:
        raise UsageError(f"{path} exists: choose another file with --output, or overwrite it with --force")
    return path


def _write(path: Path, text: str, force: bool) -> None:
    try:
        if force:
            write_output(path, text)
            return
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise EnvironmentFailure(f"{path} cannot be written: {reason}") from None


def _text(subject: str | None, options: Mapping[str, Any], path: Path | None) -> str:
    """The experiment as a file.

    Raises:
        UsageError: the options do not make an experiment; all errors at once, in the terms of the command line.
    """
    from chaos.experiment.reading import installed_faults, read_options
    from harness.run.preparation import prepare_anywhere, violations_anywhere
    from mecefo_chaos.cli.shared.experiment_text import experiment_text

    if subject is not None and subject not in installed_faults() and Path(subject).is_file():
        raise UsageError(f"{shown(subject)} is a file already: name a kind of fault; `chaos faults` lists them")
    experiment, source = read_options(subject, options, violations=violations_anywhere)
    with source.locating():
        prepare_anywhere(experiment)
    return experiment_text(subject, options, name=experiment.name, file=path.name if path else "FILE")


def _asked(output: str | None, force: bool) -> tuple[str, dict[str, Any], str | None]:
    """(kind of fault, options, file) by asking; an answer that is refused is asked for again."""
    from chaos.experiment.command_job import words_of_command
    from chaos.experiment.reading import installed_faults

    options: dict[str, Any] = {}
    echo("An experiment: a training job, a fault, and pass criteria. Enter takes what is in brackets.")
    command = _ask(
        "Command that starts your training ('torchrun train.py'; empty: the built-in model)",
        "",
        lambda text: [str(word) for word in words_of_command(text)] if text.strip() else [],
    )
    if command:
        options["command"] = tuple(command)

    def accepted(answer: str, key: str | None = None) -> str:
        """The answer as the option `key`, or as the fault; none leaves the option out."""
        if answer:
            said = {} if key is None else {key: (answer,) if key == "gates" else answer}
            _text(subject if key else answer, {"at": "step=30", **options, **said}, None)
            options.update(said)
        return answer

    subject = ""
    subject = _ask("Fault (`chaos faults` lists all)", "kill-process", accepted)
    _ask("When (step=30, time=60s)", "step=30", partial(accepted, key="at"))
    scope = installed_faults()[subject].scope
    if scope in ("rank", "node"):
        _ask(f"Target ({scope}=1, random; empty: drawn by the seed)", "", partial(accepted, key="on"))
    criterion = "Pass criterion ('recovery_seconds < 60'; empty: the job recovers; `chaos gates` lists metrics)"
    _ask(criterion, "", partial(accepted, key="gates"))
    if output is None:
        output = str(_ask("File", f"{subject}.yaml", lambda file: _path(file, subject, force)) or _STANDARD_OUTPUT)
    return subject, options, output


def _ask(question: str, default: str, read: Callable[[str], T]) -> T:
    """The answer as `read` takes it, asked for again while that refuses it."""
    while True:
        answer = click.prompt(question, default=default, show_default=bool(default), err=True).strip()
        try:
            return read(answer)
        except UsageError as error:
            for problem in error.problems:
                echo(f"  {UsageError(problem.message, suggestion=problem.suggestion)}")
