"""`chaos doctor`: what runs need, what this machine lacks of it, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaos.errors import EnvironmentFailure
from chaos.host.terminal import text_columns, wrap
from chaos.plain_text import plain
from chaos.plugins import DEFAULT_BACKEND
from mecefo_chaos.cli.shared.backend_name import BackendName
from mecefo_chaos.cli.shared.options import JSON_OPTION, OUT_OPTION
from mecefo_chaos.cli.shared.output import print_json, print_text, standard_output
from mecefo_runtime.system.json_values import to_json

if TYPE_CHECKING:
    from harness.doctor.finding import Finding

_COLOURS = {"ok": "green", "missing": "yellow", "wrong": "red"}
_OUTCOME_COLUMNS = 9
_NAME_COLUMNS = 23


@click.command()
@click.option(
    "--backend",
    type=BackendName(),
    default=DEFAULT_BACKEND,
    show_default=True,
    help="What must be there for the exit code to be 0: all that runs on this backend need.",
)
@click.option("--image", metavar="NAME", help="The image of --backend docker. Default: mecefo-chaos.")
@click.option(
    "--hosts",
    is_flag=False,
    flag_value="",
    metavar="[HOSTS|FILE]",
    help="Check hosts instead: a,b,c or a file of them, by ssh; without a value those of the Slurm allocation.",
)
@OUT_OPTION
@JSON_OPTION
def doctor(backend: str, image: str | None, hosts: str | None, out: Path, as_json: bool) -> int:
    """Check what runs need on this machine: what is there, what is missing, why it matters, and what to do.

    Exit code 0 when runs can be made on the backend, 3 when not. What only some faults need is told, and no reason for
    a 3.
    """
    if hosts is not None:
        return _examine_hosts(hosts, as_json)
    from chaos.experiment.terms import place_of
    from harness.backends.examine import examine

    findings: list[Finding] = []
    (key, name) = map(str, place_of("image"))
    checks = examine(out, {} if image is None else {key: {name: image}})
    while (finding := _next(checks, len(findings))) is not None:
        findings.append(finding)
        if not as_json:
            with standard_output():
                click.echo(_told(finding))
    stopping = [finding.name for finding in findings if finding.stops(backend)]
    if as_json:
        document = {"backend": backend, "usable": not stopping, "checks": [to_json(finding) for finding in findings]}
        print_json(document)
    else:
        print_text("\n" + _conclusion(backend, findings))
    return EnvironmentFailure.exit_code if stopping else 0


def _examine_hosts(hosts: str, as_json: bool) -> int:
    from harness.backends.cluster.examination import engine_of, examine_hosts
    from harness.live.working import Working

    engine = engine_of(hosts)
    with Working("doctor") as progress:
        progress(f"asking {len(engine.hosts)} hosts")
        found = examine_hosts(engine)
    stopped = [host for host, findings in found if any(finding.stops(engine.name) for finding in findings)]
    if as_json:
        told = [{"host": host, "checks": [to_json(one) for one in findings]} for host, findings in found]
        print_json({"engine": engine.name, "usable": not stopped, "hosts": told})
        return EnvironmentFailure.exit_code if stopped else 0
    for host, findings in found:
        print_text(f"{host}")
        with standard_output():
            for finding in findings:
                click.echo(_told(finding))
            click.echo()
    print_text(f"--backend {engine.name} cannot run: see {', '.join(stopped)}" if stopped else _all_usable(engine.name))
    return EnvironmentFailure.exit_code if stopped else 0


def _all_usable(name: str) -> str:
    return f"--backend {name} has all that it needs on every host"


def _next(checks: Iterator[Finding], num_done: int) -> Finding | None:
    """The next finding; the check may take longer than a user waits without a sign."""
    from harness.live.working import Working

    with Working("doctor") as progress:
        progress(f"check {num_done + 1}")
        return next(checks, None)


def _told(finding: Finding) -> str:
    width = text_columns()
    hanging = _OUTCOME_COLUMNS + _NAME_COLUMNS
    lines = [plain(finding.found)]
    if finding.outcome != "ok":
        lines += [f"for: {plain(finding.purpose)}", f"do:  {plain(finding.remedy)}"]
    wrapped = [
        part[hanging:]
        for number, line in enumerate(lines)
        for part in wrap(" " * hanging + line, width, hanging + (5 if number else 0))
    ]
    outcome = click.style(f"{finding.outcome:<{_OUTCOME_COLUMNS}}", fg=_COLOURS[finding.outcome])
    return f"{outcome}{finding.name:<{_NAME_COLUMNS}}" + f"\n{' ' * hanging}".join(wrapped)


def _conclusion(backend: str, findings: list[Finding]) -> str:
    from chaos.experiment.backends import backends

    lines = []
    # The one that was asked for last, where it stands alone before the prompt.
    for one in sorted(backends(), key=lambda name: name == backend):
        stopping = [finding.name for finding in findings if finding.stops(one)]
        if stopping:
            lines.append(f"--backend {one} cannot run here: see {', '.join(stopping)}")
        else:
            lines.append(f"--backend {one} has all that it needs")
    return "\n".join(lines)
