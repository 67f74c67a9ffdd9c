"""`chaos validate`: experiment files are checked, and nothing is started. Its lines are those of a linter."""

from __future__ import annotations

from typing import Any

import click

from chaos.errors import UsageError
from mecefo_chaos.cli.shared.options import JSON_OPTION
from mecefo_chaos.cli.shared.output import print_as_is, print_json
from mecefo_chaos.cli.shared.usage_errors import annotate


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@JSON_OPTION
def validate(files: tuple[str, ...], as_json: bool) -> int:
    """Check experiment files without running them: every error with its line and key, for editors and pre-commit.

    This machine is not checked: neither data and programs nor networks, GPUs and memory. `chaos run FILE --dry-run`
    does that.

    Exit codes: 0 all files are valid, 4 some are not.
    """
    found = {path: _check(path) for path in dict.fromkeys(files)}
    if as_json:
        print_json([_document(path, *checked) for path, checked in found.items()])
    else:
        lines = [line for path, (contents, errors) in found.items() for line in _lines(path, contents, errors)]
        print_as_is("\n".join(lines))
    errors = [error for _, of_file in found.values() for error in of_file]
    annotate(errors)
    return UsageError.exit_code if errors else 0


def _check(path: str) -> tuple[str, list[UsageError]]:
    """What is in the file, in a few words, and what is wrong with it."""
    from chaos.experiment.reading import read_options
    from harness.run.preparation import prepare_anywhere, violations_anywhere

    try:
        # Never the name of a fault: `kill-node` is the file here.
        subject = path if path.startswith("/") else f"./{path}"
        experiment, source = read_options(subject, {}, violations=violations_anywhere)
        with source.locating():
            incidents = prepare_anywhere(experiment).plan.incidents
    except UsageError as error:
        return "", [_in_file(problem, path) for problem in error.problems]
    counts = {"fault": len(experiment.faults), "incident": len(incidents), "gate": len(experiment.gates)}
    return ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for word, number in counts.items()), []


def _in_file(problem: UsageError, path: str) -> UsageError:
    """`problem`, which may not say in which file it is."""
    line = problem.line if problem.path is not None else None
    return UsageError(problem.message, path=path or "''", line=line, key=problem.key, suggestion=problem.suggestion)


def _lines(path: str, contents: str, errors: list[UsageError]) -> list[str]:
    return [str(error) for error in sorted(errors, key=lambda one: one.line or 0)] or [f"{path}: valid: {contents}"]


def _document(path: str, contents: str, errors: list[UsageError]) -> dict[str, Any]:
    told = [
        {"line": error.line, "key": error.key, "message": error.message, "suggestion": error.suggestion}
        for error in errors
    ]
    return {"file": path, "valid": not errors, "errors": told}
