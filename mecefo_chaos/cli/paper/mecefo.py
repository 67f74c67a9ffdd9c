"""`chaos paper mecefo`: what MeCeFO's paper claims, compared with forecasts and runs of the real runtime."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from chaos.errors import UsageError
from mecefo_chaos.cli.paper.shared import output_options, results_option, show
from mecefo_chaos.cli.shared.output import echo

# Of each method; a run takes a quarter of a minute.
_NUM_UNDILATED_SEEDS = 3
_HELP = """Check the claims of MeCeFO (arXiv 2510.16415): paper | forecast | emulated, with verdicts.

\b
chaos paper mecefo               what came with this version, with verdicts
chaos paper mecefo --tables      every figure of every setting, too
chaos paper mecefo --emulate     run what is missing first; takes hours, and
                                 resumes when it is called again

Exit codes: 0 all gates that are decided passed; 1 one failed; 5 none is decided.
"""


@click.command(help=_HELP, short_help="takeover by a neighbour: drop of tokens/s, perplexity")
@results_option("mecefo")
@click.option("--emulate", is_flag=True, help="Run the missing emulations; prints the time they will take.")
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=5, show_default=True, help="Emulated runs of each gate's cell."
)
@click.option("--only", metavar="WORDS", help="Emulate only these, e.g. 7b,high,4x8,mecefo-speed.")
@click.option(
    "--time-scale",
    type=click.FloatRange(0.01, 1000),
    metavar="X",
    help="Real seconds per emulated second: larger is slower and more accurate. Default: what the cores carry.",
)
@click.option("--undilated", "is_undilated", is_flag=True, help="Run every method on eight real ranks, undilated.")
@click.option("--forecast", "is_anew", is_flag=True, help="Recompute all forecasts; takes minutes.")
@click.option(
    "--convergence",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What `python -m benchmarks.convergence` printed, instead of the figures that came with this version.",
)
@click.option(
    "--fault-free",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What `python -m benchmarks.fault_free --json` printed, instead of the figures of this version.",
)
@click.option("--tables", "with_details", is_flag=True, help="Also print the tables with every figure.")
@output_options
def mecefo(
    results: Path,
    emulate: bool,
    seeds: int,
    only: str | None,
    time_scale: float | None,
    is_undilated: bool,
    is_anew: bool,
    convergence: Path | None,
    fault_free: Path | None,
    with_details: bool,
    page: Path | None,
    as_json: bool,
) -> int:
    """See `_HELP`."""
    from harness.live.working import Working
    from mecefo_chaos.studies.papers.mecefo.check import check
    from mecefo_chaos.studies.papers.mecefo.fault_free import read_fault_free, shipped_fault_free
    from mecefo_chaos.studies.papers.mecefo.forecasts import compute_forecasts, shipped_forecasts
    from mecefo_chaos.studies.papers.mecefo.perplexity import read_convergence, shipped_convergence
    from mecefo_chaos.studies.papers.mecefo.results import merged, read_results, shipped_results
    from mecefo_chaos.studies.papers.mecefo.undilated import measure, read_undilated

    for option, value in (("--only", only), ("--time-scale", time_scale)):
        if value is not None and not emulate:
            raise UsageError("it is about what is emulated: give --emulate, too", key=option)
    perplexity = shipped_convergence() if convergence is None else read_convergence(convergence)
    speed = shipped_fault_free() if fault_free is None else read_fault_free(fault_free)
    if emulate:
        _emulate(results, seeds, only, time_scale)
    if is_undilated:
        measure(_NUM_UNDILATED_SEEDS, results, sys.stderr)
    own = read_results(results)
    num_cores = len(os.sched_getaffinity(0))
    with Working("paper mecefo") as progress:
        forecasts = compute_forecasts(num_cores, progress) if is_anew else shipped_forecasts()
        progress("verdicts")
        checked = check(merged(own, shipped_results()), forecasts, perplexity, read_undilated(results), speed)
    return show(checked, page, as_json, with_details=with_details)


def _emulate(results: Path, seeds: int, only: str | None, time_scale: float | None) -> None:
    from harness.analysis.words import name_seconds
    from mecefo_chaos.studies.papers.mecefo.results import read_results
    from mecefo_chaos.studies.papers.mecefo.running import emulate, estimated_seconds, missing, wanted_runs

    runs = missing(wanted_runs(seeds, only), read_results(results))
    if not runs:
        echo("nothing is missing")
        return
    about = name_seconds(estimated_seconds(runs, time_scale))
    echo(f"{len(runs)} runs, about {about}; stop it at any time, what is done is kept")
    emulate(runs, results, sys.stderr, time_scale)
