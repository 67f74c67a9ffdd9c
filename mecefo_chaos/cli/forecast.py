"""`chaos forecast`: what failures will cost a job on a cluster, under each strategy, before it exists."""

from __future__ import annotations

from pathlib import Path

import click

from chaos.errors import UsageError
from chaos.host.runtime_extra import require_runtime
from chaos.host.terminal import columns
from mecefo_chaos.cli.shared.options import JSON_OPTION, FileToWrite
from mecefo_chaos.cli.shared.output import print_as_is, print_json

_HELP = """Forecast the cost of failures for each recovery strategy, by simulation: no training job is started.

\b
chaos forecast --example > cluster.yaml    a file to start from
chaos forecast cluster.yaml                goodput, time to train, what decides it

Exit codes: 0; 3 the tool failed; 4 usage error.
"""


@click.command(help=_HELP)
@click.argument("file", metavar="CLUSTER.yaml", required=False, type=click.Path(path_type=Path))
@click.option("--example", is_flag=True, help="Print an example of a cluster file, with comments.")
@click.option("--hours", type=click.FloatRange(0.01, 1e6), help="Hours to simulate. Default: enough for 200 failures.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="K",
    help="Number of simulations per strategy, each with different failures.",
)
@click.option(
    "--sensitivity/--no-sensitivity",
    default=True,
    help="Show the effect of halving and doubling each input. Default: yes.",
)
@click.option("--html", "page", type=FileToWrite(), help="Also write a page with pictures to FILE.")
@JSON_OPTION
def forecast(
    file: Path | None,
    example: bool,
    hours: float | None,
    seed: int,
    repeat: int,
    sensitivity: bool,
    page: Path | None,
    as_json: bool,
) -> int:
    """Forecast what failures will cost a job, under each strategy."""
    from harness.live.working import Working
    from mecefo_chaos.studies.forecast.cluster_file import EXAMPLE, load
    from mecefo_chaos.studies.forecast.study import study

    if example:
        if file is not None:
            raise UsageError("it stands alone: leave out the file", key="--example")
        click.echo(EXAMPLE, nl=False)
        return 0
    if file is None:
        raise UsageError("which cluster? `chaos forecast --example` prints a file to start from")
    require_runtime("chaos forecast", ("scipy",))
    question = load(file)
    with Working("forecast") as progress:
        found = study(
            question,
            hours=hours,
            seed=seed,
            num_replications=repeat,
            with_sensitivities=sensitivity,
            progress=progress,
        )
    if page is not None:
        from harness.store.files import write_whole
        from mecefo_chaos.studies.forecast.page import render

        write_whole(page, render(found))
    if as_json:
        print_json(found.document())
    else:
        from mecefo_chaos.studies.forecast.text import to_text

        print_as_is(to_text(found, columns()))
    return 0
