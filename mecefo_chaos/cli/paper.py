"""`chaos paper`: what a paper claims, held against forecasts and runs of the real runtime."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from chaos.errors import UsageError, nearest, shown
from chaos.host.terminal import columns
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.options import DEFAULT_OUT, JSON_OPTION, FileToWrite
from mecefo_chaos.cli.shared.output import echo, print_as_is, print_json

_PAPERS = ("mecefo", "reft", "spare")
# Of each method; a run takes a quarter of a minute.
_NUM_UNDILATED_SEEDS = 3
# Runs of eight nodes of which the seed chooses some, whatever `--runs` says of the others.
_NUM_RUNS_OF_NODES = 10
# Options that are about some of the papers alone.
_OWN = {
    **dict.fromkeys(
        ("emulate", "seeds", "only", "time_scale", "is_undilated", "is_anew", "convergence", "fault_free"), ("mecefo",)
    ),
    **dict.fromkeys(("draws", "runs", "saving"), ("reft",)),
    "seed": ("reft", "spare"),
    **dict.fromkeys(("simulate", "rows", "assumed"), ("spare",)),
}
# Seeds of a row of one's own, as the table that came with this version has.
_NUM_SIMULATED_SEEDS = 3
_HELP = """Check a paper's claims: MeCeFO (arXiv 2510.16415), REFT (arXiv 2310.12670), SPARe (arXiv 2603.00357).

\b
chaos paper mecefo               paper | forecast | emulated, with verdicts
chaos paper mecefo --emulate     run what is missing first; takes hours, and
                                 resumes when it is called again
chaos paper reft                 closed form | drawn by chance | really lost,
                                 with verdicts; in a quarter of a minute
chaos paper reft --draws 200     lose real nodes first: 200 times, in minutes
chaos paper reft --runs 3        make real runs first: one in a quarter of a
                                 minute
chaos paper spare                closed forms and a simulated table, with
                                 verdicts; in a quarter of a minute
chaos paper spare --simulate 3   simulate every row first: 3 seeds, minutes
chaos paper spare --row spare,600,12 --row replication,600,3 \\
    --assume recovery=absorb     simulate only these, under that assumption

What was emulated, drawn, run and simulated when this version was made comes with it, with its date and machine;
results of your own take its place.

Exit codes: 0 all gates that are decided passed; 1 one failed; 5 none is decided.
"""


@click.command(help=_HELP)
@click.argument("name", metavar="PAPER", shell_complete=completing.words(*_PAPERS))
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Folder of emulated runs and their results. Default: chaos-runs/paper-PAPER.",
)
@click.option("--emulate", is_flag=True, help="mecefo: run the missing emulations; prints the time they will take.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    help="mecefo: emulated runs of each gate's cell.",
)
@click.option("--only", metavar="WORDS", help="mecefo: emulate only these, e.g. 7b,high,4x8,mecefo-speed.")
@click.option(
    "--time-scale",
    type=click.FloatRange(0.01, 1000),
    metavar="X",
    help="mecefo: real seconds per emulated second: larger is slower and more accurate. Default: what the cores carry.",
)
@click.option(
    "--undilated", "is_undilated", is_flag=True, help="mecefo: run every method on eight real ranks, undilated."
)
@click.option("--forecast", "is_anew", is_flag=True, help="mecefo: recompute all forecasts; takes minutes.")
@click.option(
    "--convergence",
    type=click.Path(path_type=Path, dir_okay=False),
    help="mecefo: what `python -m benchmarks.convergence` printed, instead of the figures that came with this version.",
)
@click.option(
    "--fault-free",
    type=click.Path(path_type=Path, dir_okay=False),
    help="mecefo: what `python -m benchmarks.fault_free --json` printed, instead of the figures of this version.",
)
@click.option(
    "--draws",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="reft: first start the snapshot processes of eight nodes N times, kill some, and restore. Results are kept.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 1000),
    metavar="N",
    help=f"reft: first run each way to lose state N times, and {_NUM_RUNS_OF_NODES} times eight nodes.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="reft: of all that is left to chance. spare: of the orders of failures; simulated jobs have seeds 1, 2, ...",
)
@click.option(
    "--saving",
    type=click.Path(path_type=Path, dir_okay=False),
    help="reft: what `python -m benchmarks.snapshots --saving FILE` wrote, instead of what came with this version.",
)
@click.option(
    "--simulate",
    type=click.IntRange(1, 1000),
    metavar="SEEDS",
    help="spare: first simulate every row with this number of seeds. Finished simulations are kept.",
)
@click.option(
    "--row",
    "rows",
    multiple=True,
    metavar="SCHEME,N,R",
    help="spare: simulate only this row: spare or replication, number of groups, copies of each shard.",
)
@click.option(
    "--assume",
    "assumed",
    multiple=True,
    metavar="NAME=VALUE",
    help="spare: of rows, e.g. recovery=absorb, restarting=failed, jitter_ratio=0.",
)
@click.option("--html", "page", type=FileToWrite(), help="Also write the page to FILE.")
@JSON_OPTION
@click.pass_context
def paper(
    context: click.Context, /, name: str, results: Path | None, page: Path | None, as_json: bool, **options: Any
) -> int:
    """Check a paper's claims."""
    if name not in _PAPERS:
        message = f"there is no paper {shown(name)}: there is {', '.join(_PAPERS)}"
        raise UsageError(message, suggestion=nearest(name, _PAPERS))
    for parameter in context.command.params:
        is_said = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        about = _OWN.get(parameter.name or "", (name,))
        if is_said and name not in about:
            raise UsageError(f"it is about {' and '.join(about)}, not {name}", key=parameter.opts[0])
    own = {key: value for key, value in options.items() if name in _OWN[key]}
    folder = results or Path(DEFAULT_OUT) / f"paper-{name}"
    view = _VIEWS[name](folder, **own)
    if page is not None:
        from harness.store.files import write_whole

        write_whole(page, view.page())
    print_json(view.document) if as_json else print_as_is(view.text)
    return view.exit_code


@dataclass(frozen=True, slots=True)
class _View:
    """What a check looks like."""

    text: str
    document: dict[str, Any]
    page: Callable[[], str]
    exit_code: int


def _mecefo(
    results: Path,
    emulate: bool,
    seeds: int,
    only: str | None,
    time_scale: float | None,
    is_undilated: bool,
    is_anew: bool,
    convergence: Path | None,
    fault_free: Path | None,
) -> _View:
    from harness.live.working import Working
    from mecefo_chaos.studies.papers.mecefo.check import check
    from mecefo_chaos.studies.papers.mecefo.fault_free import read_fault_free, shipped_fault_free
    from mecefo_chaos.studies.papers.mecefo.forecasts import compute_forecasts, shipped_forecasts
    from mecefo_chaos.studies.papers.mecefo.page import render
    from mecefo_chaos.studies.papers.mecefo.perplexity import read_convergence, shipped_convergence
    from mecefo_chaos.studies.papers.mecefo.results import merged, read_results, shipped_results
    from mecefo_chaos.studies.papers.mecefo.text import check_text
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
        found = check(merged(own, shipped_results()), forecasts, perplexity, read_undilated(results), speed)
    return _View(check_text(found, columns()), found.to_dict(), lambda: render(found), found.exit_code)


def _reft(results: Path, draws: int | None, runs: int | None, seed: int, saving: Path | None) -> _View:
    from harness.live.working import Working
    from mecefo_chaos.studies.papers.reft.check import check
    from mecefo_chaos.studies.papers.reft.page import render
    from mecefo_chaos.studies.papers.reft.real.measured import measure_draws, measure_runs, read_measured
    from mecefo_chaos.studies.papers.reft.saving import read_saving
    from mecefo_chaos.studies.papers.reft.text import check_text

    saved = read_saving(saving)
    # What is in the folder is looked at before work begins.
    read_measured(results)
    if draws is not None:
        measure_draws(draws, seed, results, sys.stderr)
    if runs is not None:
        measure_runs(runs, _NUM_RUNS_OF_NODES, seed, results, sys.stderr)
    with Working("paper reft") as progress:
        found = check(read_measured(results), saved, seed, progress=progress)
    return _View(check_text(found, columns()), found.to_dict(), lambda: render(found), found.exit_code)


def _spare(results: Path, seed: int, simulate: int | None, rows: tuple[str, ...], assumed: tuple[str, ...]) -> _View:
    from harness.live.working import Working
    from mecefo_chaos.studies.papers.spare.check import check
    from mecefo_chaos.studies.papers.spare.page import render
    from mecefo_chaos.studies.papers.spare.simulated import read_simulated, simulate_all
    from mecefo_chaos.studies.papers.spare.text import check_text

    if rows:
        return _simulated_rows(rows, assumed, simulate or _NUM_SIMULATED_SEEDS)
    if assumed:
        raise UsageError("it is about rows of your own: give --row, too", key="--assume")
    # What is in the folder is looked at before work begins.
    read_simulated(results)
    if simulate is not None:
        with Working("simulating") as progress:
            simulate_all(simulate, results, len(os.sched_getaffinity(0)), progress)
    with Working("paper spare") as progress:
        found = check(read_simulated(results), seed, progress=progress)
    return _View(check_text(found, columns()), found.to_dict(), lambda: render(found), found.exit_code)


def _simulated_rows(rows: tuple[str, ...], assumed: tuple[str, ...], num_seeds: int) -> _View:
    from dataclasses import asdict

    from harness.live.working import Working
    from mecefo_chaos.studies.papers.spare.simulated import parse_row, simulate_rows
    from mecefo_chaos.studies.papers.spare.text import rows_text

    wanted = [parse_row(row, assumed) for row in rows]
    with Working("simulating") as progress:
        found = simulate_rows(wanted, num_seeds, len(os.sched_getaffinity(0)), progress)
    document = [{**asdict(row), "outcomes": [asdict(one) for one in outcomes]} for row, outcomes in found.items()]

    def no_page() -> str:
        raise UsageError("rows of your own have no page", key="--html")

    return _View(rows_text(found, columns()), {"rows": document}, no_page, 0)


def _emulate(results: Path, seeds: int, only: str | None, time_scale: float | None) -> None:
    from harness.analysis.words import name_seconds
    from mecefo_chaos.studies.papers.mecefo.results import read_results
    from mecefo_chaos.studies.papers.mecefo.running import emulate, estimated_seconds, missing, wanted_runs

    runs = missing(wanted_runs(seeds, only), read_results(results))
    if not runs:
        _say("nothing is missing")
        return
    about = name_seconds(estimated_seconds(runs, time_scale))
    _say(f"{len(runs)} runs, about {about}; stop it at any time, what is done is kept")
    emulate(runs, results, sys.stderr, time_scale)


_VIEWS: dict[str, Callable[..., _View]] = {"mecefo": _mecefo, "reft": _reft, "spare": _spare}


def _say(text: str) -> None:
    echo(text)
