"""`chaos paper spare`: what SPARe's paper claims, compared with closed forms and simulated jobs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from chaos.errors import UsageError
from chaos.host.terminal import columns
from mecefo_chaos.cli.paper.shared import output_options, results_option, show
from mecefo_chaos.cli.shared.output import print_as_is, print_json

# Seeds of a row of one's own, as the table that came with this version has.
_NUM_SIMULATED_SEEDS = 3
_HELP = """Check the claims of SPARe (arXiv 2603.00357): closed forms and a simulated table, with verdicts.

\b
chaos paper spare                what came with this version, with verdicts; in
                                 a quarter of a minute
chaos paper spare --simulate 3   simulate every row first: 3 seeds, minutes
chaos paper spare --row spare,600,12 --row replication,600,3 \\
    --assume recovery=absorb     simulate only these, under that assumption

Exit codes: 0 all gates that are decided passed; 1 one failed; 5 none is decided.
"""


@click.command(help=_HELP, short_help="stacked shards: time to train, against replication")
@results_option("spare")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Seed of the orders of failures; simulated jobs have seeds 1, 2, ...",
)
@click.option(
    "--simulate",
    type=click.IntRange(1, 1000),
    metavar="SEEDS",
    help="First simulate every row with this number of seeds. Finished simulations are kept.",
)
@click.option(
    "--row",
    "rows",
    multiple=True,
    metavar="SCHEME,N,R",
    help="Simulate only this row: spare or replication, number of groups, copies of each shard.",
)
@click.option(
    "--assume",
    "assumed",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of rows, e.g. recovery=absorb, restarting=failed, jitter_ratio=0.",
)
@output_options
def spare(
    results: Path,
    seed: int,
    simulate: int | None,
    rows: tuple[str, ...],
    assumed: tuple[str, ...],
    page: Path | None,
    as_json: bool,
) -> int:
    """See `_HELP`."""
    from harness.live.working import Working
    from mecefo_chaos.studies.papers.spare.check import check
    from mecefo_chaos.studies.papers.spare.simulated import read_simulated, simulate_all

    if rows:
        if page is not None:
            raise UsageError("rows of your own have no page", key="--html")
        _simulate_rows(rows, assumed, simulate or _NUM_SIMULATED_SEEDS, as_json)
        return 0
    if assumed:
        raise UsageError("it is about rows of your own: give --row, too", key="--assume")
    # What is in the folder is read before work begins.
    read_simulated(results)
    if simulate is not None:
        with Working("simulating") as progress:
            simulate_all(simulate, results, len(os.sched_getaffinity(0)), progress)
    with Working("paper spare") as progress:
        checked = check(read_simulated(results), seed, progress=progress)
    return show(checked, page, as_json)


def _simulate_rows(rows: tuple[str, ...], assumed: tuple[str, ...], num_seeds: int, as_json: bool) -> None:
    from dataclasses import asdict

    from harness.live.working import Working
    from mecefo_chaos.studies.papers.spare.sections import rows_text
    from mecefo_chaos.studies.papers.spare.simulated import parse_row, simulate_rows

    parsed = [parse_row(row, assumed) for row in rows]
    with Working("simulating") as progress:
        simulated = simulate_rows(parsed, num_seeds, len(os.sched_getaffinity(0)), progress)
    if as_json:
        print_json(
            {"rows": [{**asdict(row), "outcomes": [asdict(one) for one in of]} for row, of in simulated.items()]}
        )
    else:
        print_as_is(rows_text(simulated, columns()))
