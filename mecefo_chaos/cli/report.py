"""`chaos report` and `chaos runs`: reports on stored runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from chaos.host.terminal import columns
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.options import JSON_OPTION, OUT_OPTION, FileToWrite, FolderToWrite
from mecefo_chaos.cli.shared.output import echo, print_as_is, print_json, print_report
from mecefo_chaos.cli.shared.pages import write_page, write_pictures
from mecefo_chaos.cli.shared.stored import read_run
from mecefo_runtime.system.json_values import to_json


@click.command()
@click.argument("reference", metavar="[RUN]", default="latest", shell_complete=completing.RUNS)
@OUT_OPTION
@JSON_OPTION
@click.option("--html", "page", type=FileToWrite(), help="Also write the HTML report to FILE.")
@click.option("--pictures", type=FolderToWrite(), help="Also write the charts to this folder, as SVG and PNG.")
def report(reference: str, out: Path, as_json: bool, page: Path | None, pictures: Path | None) -> int:
    """Report on a run: judge it again from its event log. RUN is `latest`, a name, name/time, or a path."""
    from harness.store.log import legible

    folder, summary, events = read_run(out, reference)
    with legible(folder):
        print_report(summary, folder, as_json, events)
        if page is not None:
            write_page(page, folder, summary, events)
        if pictures is not None:
            write_pictures(pictures, summary, events)
    return summary.exit_code


@click.command()
@OUT_OPTION
@JSON_OPTION
def runs(out: Path, as_json: bool) -> int:
    """List the stored runs, the newest last."""
    from harness.report.run_list import lines
    from harness.store.runs import list_runs

    entries = list_runs(out)
    if as_json:
        print_json([to_json(entry) for entry in entries])
        return 0
    if not entries:
        echo(f"no runs in {out}: `chaos run kill-node --at step=500` makes one")
        return 0
    # Of a pipe the lines are as long as they have to be.
    print_as_is("\n".join(lines(entries, columns() if sys.stdout.isatty() else None)))
    return 0
