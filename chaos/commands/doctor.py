"""`chaos doctor`: what runs need, what this machine lacks of it, and what to do."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaos.commands.shared.options import JSON_OPTION, OUT_OPTION
from chaos.commands.shared.output import print_json, print_text, standard_output
from chaos.errors import EnvironmentFailure
from chaos.plain_text import plain

if TYPE_CHECKING:
    from harness.backends.finding import Backend, Finding

_COLOURS = {"ok": "green", "missing": "yellow", "wrong": "red"}
_MAX_COLUMNS = 120
_OUTCOME_COLUMNS = 9
_NAME_COLUMNS = 23


@click.command()
@click.option(
    "--backend",
    type=click.Choice(["local", "docker"]),
    default="local",
    show_default=True,
    help="What must be there for the exit code to be 0: all that runs on this backend need.",
)
@click.option("--image", metavar="NAME", help="The image of --backend docker. Default: mecefo-chaos.")
@OUT_OPTION
@JSON_OPTION
def doctor(backend: Backend, image: str | None, out: Path, as_json: bool) -> int:
    """Check what runs need on this machine: what is there, what is missing, why it matters, and what to do.

    Exit code 0 when runs can be made on the backend, 3 when not. What only some faults need is told, and no reason for
    a 3.
    """
    from harness.backends.docker.image import DEFAULT_IMAGE
    from harness.doctor.examine import examine

    findings = []
    for finding in examine(out, image or DEFAULT_IMAGE):
        findings.append(finding)
        if not as_json:
            with standard_output():
                click.echo(_told(finding))
    stopping = [finding.name for finding in findings if finding.stops(backend)]
    if as_json:
        document = {"backend": backend, "usable": not stopping, "checks": [finding.to_dict() for finding in findings]}
        print_json(document)
    else:
        print_text("\n" + _conclusion(backend, findings))
    return EnvironmentFailure.exit_code if stopping else 0


def _told(finding: Finding) -> str:
    columns = min(shutil.get_terminal_size().columns, _MAX_COLUMNS)
    indent = " " * (_OUTCOME_COLUMNS + _NAME_COLUMNS)
    outcome = click.style(f"{finding.outcome:<{_OUTCOME_COLUMNS}}", fg=_COLOURS[finding.outcome])
    lines = [plain(finding.found)]
    if finding.outcome != "ok":
        lines += [f"for: {plain(finding.purpose)}", f"do:  {plain(finding.remedy)}"]
    wrapped = [
        part
        for line in lines
        # A path or a command may be longer than the line: it is to be copied whole.
        for part in textwrap.wrap(
            line,
            max(columns - len(indent), 30),
            break_long_words=False,
            break_on_hyphens=False,
            subsequent_indent="     " if line is not lines[0] else "",
        )
    ]
    return f"{outcome}{finding.name:<{_NAME_COLUMNS}}" + f"\n{indent}".join(wrapped)


def _conclusion(backend: Backend, findings: list[Finding]) -> str:
    from harness.backends.finding import EVERY_BACKEND

    lines = []
    # The one that was asked for last, where it stands alone before the prompt.
    for one in sorted(EVERY_BACKEND, key=lambda name: name == backend):
        stopping = [finding.name for finding in findings if finding.stops(one)]
        if stopping:
            lines.append(f"--backend {one} cannot run here: see {', '.join(stopping)}")
        else:
            lines.append(f"--backend {one} has all that it needs")
    return "\n".join(lines)
