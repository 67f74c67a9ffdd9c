"""`chaos replay`: the faults of a run once more, from its log."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.options import JSON_OPTION, OUT_OPTION
from mecefo_chaos.cli.shared.output import print_plan, print_report
from mecefo_chaos.cli.shared.stored import read_run


@click.command()
@click.argument("reference", metavar="[RUN]", default="latest", shell_complete=completing.RUNS)
@click.option(
    "--only", "only", type=int, multiple=True, metavar="INCIDENT", help="Repeat only this incident. Repeatable."
)
@OUT_OPTION
@JSON_OPTION
@click.option("--dry-run", is_flag=True, help="Print the plan without starting anything.")
def replay(reference: str, only: tuple[int, ...], out: Path, as_json: bool, dry_run: bool) -> int:
    """Repeat a run from its log: the same faults, on the same ranks, at the same steps.

    Random targets and times are those of the first run. RUN is `latest`, a name, name/time, or a path.
    """
    from chaos.experiment.reading import from_mapping
    from chaos.plan.replay import Recorded, explicit, explicit_faults
    from harness.run.execute import execute
    from harness.store.log import legible

    folder, summary, events = read_run(out, reference)
    with legible(folder):
        recorded = Recorded.of(events)
        if recorded.started_in is not None and not Path(recorded.started_in).is_dir():
            # The log is from another machine: the command starts here, as with `chaos run`.
            recorded = replace(recorded, started_in=None)
        faults = explicit_faults(recorded, only)
    name = f"{str(summary.name).removesuffix('-replay')}-replay"
    experiment = from_mapping(explicit(recorded, faults, name), path=str(folder))
    if dry_run:
        print_plan(experiment, as_json)
        return 0
    again, new_folder = execute(experiment, out, sys.stderr, ratings=summary.ratings)
    print_report(again, new_folder, as_json)
    return again.exit_code
