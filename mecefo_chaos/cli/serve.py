"""`chaos serve`: the metrics of a stored run, for Prometheus and Grafana."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click

from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.options import OUT_OPTION
from mecefo_chaos.cli.shared.output import echo


@click.command()
@click.argument("reference", metavar="[RUN]", default="latest", shell_complete=completing.RUNS)
@OUT_OPTION
@click.option(
    "--port",
    metavar="PORT|HOST:PORT",
    default="auto",
    help="Address to serve on. Default: a free port of the loopback.",
)
def serve(reference: str, out: Path, port: str) -> int:
    """Serve the metrics of a run from its event log, until Ctrl-C. RUN is `latest`, a name, name/time, or a path.

    A finished run is served with its verdict, a running or interrupted one up to its last event.
    """
    from harness.exporter.follow import follow
    from harness.exporter.job import JobExporter
    from harness.store.runs import find_run

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        folder = find_run(out, reference)
        with JobExporter(port, option="--port", is_live=False) as exporter:

            def publish() -> None:
                experiment = exporter.figures.info.get("experiment") or folder.parent.name
                echo(f"{folder}: {exporter.publish(out, experiment)}; Ctrl-C ends it", err=False)

            follow(folder, exporter, publish)
    except KeyboardInterrupt:
        return 0
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
