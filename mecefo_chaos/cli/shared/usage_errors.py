"""Reports an error before the start to a CI system: annotations and a summary for GitHub, the JUnit file.

Without them, a job that was never started looks like one that has nothing to report.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from chaos.errors import ChaosError, UsageError, in_terms
from chaos.plain_text import plain
from chaos.user_files import open_output, write_output
from mecefo_chaos.cli.shared.output import echo

# GitHub shows ten of a kind for each step.
_MAX_ANNOTATIONS = 10
_JUNIT = "--junit"


def leave_traces(arguments: Sequence[str], error: ChaosError) -> None:
    """Tell a GitHub workflow of `error`, which ended the command line `arguments`, and write its JUnit file."""
    before = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    errors = error.problems if isinstance(error, UsageError) else (UsageError(str(error)),)
    title = "usage error" if isinstance(error, UsageError) else "could not run"
    if "--no-github" not in before:
        annotate(errors, title)
    if (path := _junit_file(before)) is not None:
        # Where it cannot be written, that is the error which is told, or it is told by the exit code.
        with contextlib.suppress(OSError, ValueError):
            write_output(path, _junit(before, errors, title))


def annotate(errors: Sequence[UsageError], title: str = "usage error") -> None:
    """In a GitHub workflow, print an annotation for each of `errors`, at its line where it has one."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    for error in errors[:_MAX_ANNOTATIONS]:
        place = {"file": error.path, "line": error.line, "title": f"chaos: {title}"}
        properties = ",".join(f"{key}={_property(value)}" for key, value in place.items() if value is not None)
        echo(f"::error {properties}::{_escaped(_message(error))}")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        lines = [f"### ⛔ chaos: {title}", "", "```text", *map(plain, errors), "```", ""]
        try:
            with open_output(Path(summary), "ab") as file:
                file.write("\n".join(lines).encode(errors="replace"))
        except (OSError, ValueError) as error:
            echo(f"chaos: cannot write the step's summary: {error}")


def _junit_file(arguments: Sequence[str]) -> Path | None:
    """The file that the command line asks for, which may be one that click could not read."""
    for index, word in enumerate(arguments):
        name = word.removeprefix(f"{_JUNIT}=") if word.startswith(f"{_JUNIT}=") else None
        if word == _JUNIT and index + 1 < len(arguments):
            name = arguments[index + 1]
        if name:
            return Path(name)
    return None


def _junit(arguments: Sequence[str], errors: Sequence[UsageError], title: str) -> str:
    """A suite with one test case, which is in error: the experiment was never run."""
    name = " ".join(arguments[:2])
    suite = ElementTree.Element("testsuite", name="chaos.usage", tests="1", failures="0", errors="1", skipped="0")
    case = ElementTree.SubElement(suite, "testcase", classname="chaos.usage", name=plain(name))
    told = "\n".join(map(str, errors))
    element = ElementTree.SubElement(case, "error", type=title, message=plain(_message(errors[0])))
    element.text = plain(told)
    ElementTree.indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suite, encoding="unicode")}\n'


def _message(error: UsageError) -> str:
    hint = f" (did you mean {error.suggestion!r}?)" if error.suggestion else ""
    return ": ".join([*filter(None, (error.key,)), f"{in_terms(error.message)}{hint}"])


def _property(value: object) -> str:
    return _escaped(str(value)).replace(":", "%3A").replace(",", "%2C")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
