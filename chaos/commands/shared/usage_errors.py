"""What a usage error leaves for a CI system: an annotation in a GitHub workflow, and the JUnit file that was asked for.

Without them a job that was never started looks like one that has nothing to report.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from chaos.errors import UsageError, in_terms

# GitHub shows ten of a kind for each step.
_MAX_ANNOTATIONS = 10


def annotate(errors: Sequence[UsageError]) -> None:
    """In a GitHub workflow, print an annotation for each of `errors`, at its line where it has one."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    for error in errors[:_MAX_ANNOTATIONS]:
        place = {"file": error.path, "line": error.line, "title": "chaos: usage error"}
        properties = ",".join(f"{key}={_property(value)}" for key, value in place.items() if value is not None)
        click.echo(f"::error {properties}::{_escaped(_message(error))}", err=True)


def _message(error: UsageError) -> str:
    hint = f" (did you mean {error.suggestion!r}?)" if error.suggestion else ""
    return ": ".join([*filter(None, (error.key,)), f"{in_terms(error.message)}{hint}"])


def _property(value: object) -> str:
    return _escaped(str(value)).replace(":", "%3A").replace(",", "%2C")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
