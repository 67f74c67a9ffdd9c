"""`chaos paper reft`: what REFT's paper claims, compared with closed forms, draws by chance and real losses."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mecefo_chaos.cli.paper.shared import output_options, results_option, show

# Runs of eight nodes of which the seed chooses some, whatever `--runs` says of the others.
_NUM_RUNS_OF_NODES = 10
_HELP = """Check the claims of REFT (arXiv 2310.12670): closed form | drawn by chance | really lost, with verdicts.

\b
chaos paper reft                 what came with this version, with verdicts; in
                                 a quarter of a minute
chaos paper reft --draws 200     lose real nodes first: 200 times, in minutes
chaos paper reft --runs 3        make real runs first: one in a quarter of a
                                 minute

Exit codes: 0 all gates that are decided passed; 1 one failed; 5 none is decided.
"""


@click.command(help=_HELP, short_help="snapshots in memory: survival, and what a loss costs")
@results_option("reft")
@click.option(
    "--draws",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="First start the snapshot processes of eight nodes N times, kill some, and restore. Results are kept.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 1000),
    metavar="N",
    help=f"First run each way to lose state N times, and {_NUM_RUNS_OF_NODES} times eight nodes.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of all that is left to chance."
)
@click.option(
    "--saving",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What `python -m benchmarks.snapshots --saving FILE` wrote, instead of what came with this version.",
)
@output_options
def reft(
    results: Path,
    draws: int | None,
    runs: int | None,
    seed: int,
    saving: Path | None,
    page: Path | None,
    as_json: bool,
) -> int:
    """See `_HELP`."""
    from harness.live.working import Working
    from mecefo_chaos.studies.papers.reft.check import check
    from mecefo_chaos.studies.papers.reft.real.measured import measure_draws, measure_runs, read_measured
    from mecefo_chaos.studies.papers.reft.saving import read_saving

    saved = read_saving(saving)
    # What is in the folder is read before work begins.
    read_measured(results)
    if draws is not None:
        measure_draws(draws, seed, results, sys.stderr)
    if runs is not None:
        measure_runs(runs, _NUM_RUNS_OF_NODES, seed, results, sys.stderr)
    with Working("paper reft") as progress:
        checked = check(read_measured(results), saved, seed, progress=progress)
    return show(checked, page, as_json)
