"""`chaos paper`: what a paper claims, held against forecasts and runs of the real runtime."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from chaos.commands.options import JSON_OPTION, FileToWrite
from chaos.commands.output import print_json, print_text
from chaos.errors import UsageError, nearest, shown

_PAPERS = ("mecefo",)
# Of each method; a run takes a quarter of a minute.
_NUM_UNDILATED_SEEDS = 3
_HELP = """Check a paper's claims: `chaos paper mecefo` (arXiv 2510.16415).

\b
chaos paper mecefo               paper | forecast | emulated, with verdicts
chaos paper mecefo --emulate     run what is missing first; takes hours, and
                                 goes on where it was when it is called again

What was emulated when this version was made comes with it, with its date and machine; results of your own take its
place.

Exit codes: 0 all gates that are decided passed; 1 one failed; 5 none is decided.
"""


@click.command(help=_HELP)
@click.argument("name", metavar="PAPER")
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("chaos-runs/paper-mecefo"),
    show_default=True,
    help="Where results of emulated runs are kept, and the runs.",
)
@click.option("--emulate", is_flag=True, help="Emulate what is missing, after saying how long it takes.")
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=5, show_default=True, help="Emulated runs of mecefo at 7B."
)
@click.option("--only", metavar="WORDS", help="Emulate only these, e.g. 7b,high,4x8,mecefo-speed.")
@click.option(
    "--time-scale",
    type=click.FloatRange(0.01, 1000),
    metavar="X",
    help="Seconds that a second of the device lasts in what is emulated: larger is slower and truer. Default: what the "
    "cores carry.",
)
@click.option("--undilated", "is_undilated", is_flag=True, help="Run every method on eight real ranks, undilated.")
@click.option("--forecast", "is_anew", is_flag=True, help="Compute all forecasts anew, which takes minutes.")
@click.option(
    "--convergence",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What `python -m benchmarks.convergence` printed, instead of the figures that came with this version.",
)
@click.option("--html", "page", type=FileToWrite(), help="Also write the page to FILE.")
@JSON_OPTION
def paper(
    name: str,
    results: Path,
    emulate: bool,
    seeds: int,
    only: str | None,
    time_scale: float | None,
    is_undilated: bool,
    is_anew: bool,
    convergence: Path | None,
    page: Path | None,
    as_json: bool,
) -> int:
    """Check a paper's claims."""
    if name not in _PAPERS:
        message = f"there is no paper {shown(name)}: there is {', '.join(_PAPERS)}"
        raise UsageError(message, suggestion=nearest(name, _PAPERS))
    from harness.papers.mecefo.check import check
    from harness.papers.mecefo.forecasts import compute_forecasts, shipped_forecasts
    from harness.papers.mecefo.perplexity import read_convergence, shipped_convergence
    from harness.papers.mecefo.results import merged, read_results, shipped_results
    from harness.papers.mecefo.text import check_text
    from harness.papers.mecefo.undilated import measure, read_undilated

    for option, value in (("--only", only), ("--time-scale", time_scale)):
        if value is not None and not emulate:
            raise UsageError("it is about what is emulated: give --emulate, too", key=option)
    perplexity = shipped_convergence() if convergence is None else read_convergence(convergence)
    if emulate:
        _emulate(results, seeds, only, time_scale)
    if is_undilated:
        measure(_NUM_UNDILATED_SEEDS, results, sys.stderr)
    own = read_results(results)
    num_cores = len(os.sched_getaffinity(0))
    forecasts = compute_forecasts(num_cores, _say) if is_anew else shipped_forecasts()
    found = check(merged(own, shipped_results()), forecasts, perplexity, read_undilated(results))
    if page is not None:
        from harness.papers.mecefo.page import render
        from harness.store.files import write_whole

        write_whole(page, render(found))
    print_json(found.to_dict()) if as_json else print_text(check_text(found))
    return found.exit_code


def _emulate(results: Path, seeds: int, only: str | None, time_scale: float | None) -> None:
    from harness.analysis.words import name_seconds
    from harness.papers.mecefo.results import read_results
    from harness.papers.mecefo.running import emulate, estimated_seconds, missing, wanted_runs

    runs = missing(wanted_runs(seeds, only), read_results(results))
    if not runs:
        _say("nothing is missing")
        return
    about = name_seconds(estimated_seconds(runs, time_scale))
    _say(f"{len(runs)} runs, about {about}; stop it at any time, what is done is kept")
    emulate(runs, results, sys.stderr, time_scale)


def _say(text: str) -> None:
    click.echo(text, err=True)
