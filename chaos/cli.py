"""The roof: arguments in, exit code out. Imports neither torch nor rich on the way to `--help`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaos.commands.calibrate import calibrate
from chaos.commands.compare import (
    compare_strategies,
    compare_with_baseline,
    prepare_baseline,
    refuse_options,
    single_run_against,
)
from chaos.commands.compare import repeat as repeat_run
from chaos.commands.doctor import doctor
from chaos.commands.faults import faults
from chaos.commands.forecast import forecast
from chaos.commands.gates import gates
from chaos.commands.heal import heal
from chaos.commands.init import init
from chaos.commands.paper import paper
from chaos.commands.replay import replay
from chaos.commands.serve import serve
from chaos.commands.shared.experiment_options import CommandOfAJob, experiment_options
from chaos.commands.shared.options import JSON_OPTION, OUT_OPTION, FileToWrite, FolderToWrite
from chaos.commands.shared.output import print_json, print_plan, print_report, print_text, tell_github
from chaos.commands.shared.pages import write_page, write_pictures
from chaos.commands.shared.stored import read_run
from chaos.commands.shrink import shrink
from chaos.commands.validate import validate
from chaos.errors import ChaosError, UsageError

if TYPE_CHECKING:
    from chaos.experiment.experiment import Experiment
    from chaos.spec.validation_errors import Source

EXIT_USAGE = UsageError.exit_code
EXIT_INTERRUPTED = 2
EXIT_FAILED = 3


# \b keeps click from filling the paragraph that follows it.
_HELP = """Break a real distributed training run at an exact step, watch it survive, and know what the failure cost.

\b
chaos run kill-node --at step=500    the whole story on this machine, in about three minutes
chaos run kill-process --at step=30 --on rank=1 -- torchrun --nproc-per-node 2 train.py
                                     the same for your own job, no line of it changed
chaos faults                         what can be broken
chaos gates                          what can be asked of a run
chaos paper mecefo | reft            what a paper claims, and what comes of it here
chaos report                         the newest run, judged again from its log
chaos serve                          the newest run's metrics once more, for Prometheus
chaos forecast CLUSTER.yaml          what failures will cost, under each strategy, without a run
chaos heal                           undo what an interrupted run left behind
chaos calibrate --out FILE           what a model costs on this device, for runs that emulate it
chaos doctor                         what runs need, and this machine has or lacks

Exit codes: 0 pass, 1 a gate failed, 2 halted or interrupted, 3 the tool or its environment failed, 4 usage,
5 inconclusive, 6 something was left behind.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, help=_HELP)
@click.version_option(package_name="mecefo-chaos", prog_name="chaos")
def cli() -> None:
    """The `chaos` command."""


@cli.command(cls=CommandOfAJob)
@experiment_options
@OUT_OPTION
@JSON_OPTION
@click.option("--junit", type=FileToWrite(), help="Also write the JUnit report to this file.")
@click.option(
    "--github/--no-github",
    default=None,
    help="Write GitHub's summary of the step, and annotations to standard error. Default: in a GitHub workflow.",
)
@click.option(
    "--metrics",
    metavar="off|auto|PORT|HOST:PORT",
    default="auto",
    envvar="CHAOS_METRICS",
    help="Where Prometheus can read the run while it goes on. Default: auto, a free port of the loopback.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say what would be done, and check what was said, without starting anything. Whether there is an engine, an "
    "image or a GPU for it is not looked at: `chaos doctor` does that.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    default=1,
    metavar="K",
    help="The same K times: medians and spread, on which the gates are judged.",
)
@click.option("--baseline", metavar="RUN", help="Also compare with this run or set of runs; worse fails.")
def run(
    subject: str | None,
    out: Path,
    as_json: bool,
    junit: Path | None,
    metrics: str,
    github: bool | None,
    dry_run: bool,
    repeat: int,
    baseline: str | None,
    **options: Any,
) -> int:
    """Run an experiment: FAULT at its trigger, or all that FILE.yaml says, on the default job or on COMMAND's."""
    experiment, source = _said(subject, options)
    against = None if baseline is None else prepare_baseline(baseline, out)
    if metrics not in ("off", "auto"):
        from harness.exporter.job import address_of

        address_of(metrics)
    if dry_run:
        with source.locating():
            print_plan(experiment, as_json)
        return 0
    if repeat > 1:
        with source.locating():
            return repeat_run(experiment, repeat, out, as_json, against, junit, github)
    from harness.exporter.job import exporting
    from harness.run.execute import JUNIT_FILE, execute
    from harness.store.files import write_whole

    with exporting(metrics) as exporter:
        with source.locating():
            summary, folder = execute(
                experiment, out, sys.stderr, exporter, ratings=None if against is None else against.ratings
            )
        print_report(summary, folder, as_json)
        if junit is not None:
            write_whole(junit, (folder / JUNIT_FILE).read_text())
        tell_github(summary, folder, github)
        if exporter is not None:
            exporter.wait_for_last_read(sys.stderr)
    exit_code = summary.exit_code
    return exit_code if against is None else single_run_against(folder, exit_code, out, as_json, against)


_COMPARE_HELP = """Compare strategies, or a run with its baseline.

\b
chaos compare --strategies mecefo,checkpoint kill-node --at step=100
                              each in turn, K times
chaos compare RUN BASELINE    better, worse, or within the noise: runs, or
                              sets of runs

RUN and BASELINE are `latest`, a name, name/time, a path, or a file (summary.json, set.json).

Exit codes: 0; 1 a figure got worse by more than the noise and the tolerance; 5 it cannot be told.
"""


@cli.command(help=_COMPARE_HELP)
@experiment_options
@click.argument("baseline", required=False)
@OUT_OPTION
@JSON_OPTION
@click.option(
    "--strategies",
    metavar="NAME,NAME...",
    help="Run the experiment under each: mecefo,mecefo:spares=1,spare:redundancy=3,mecefo+spare,exact,ndb,mecefo-paper,"
    "oobleck-like,checkpoint,reft.",
)
@click.option(
    "-K", "--repeat", type=click.IntRange(1, 1000), default=3, show_default=True, metavar="K", help="Runs of each."
)
@click.option("--tolerance", metavar="PERCENT", help="Against a baseline: a smaller change is none. Default: 5%.")
@click.option(
    "--figure", "figures", multiple=True, metavar="NAME", help="Against a baseline: what decides. Repeatable."
)
@click.option("--anyway", is_flag=True, help="Against a baseline of another experiment, too.")
def compare(
    subject: str | None,
    baseline: str | None,
    out: Path,
    as_json: bool,
    strategies: str | None,
    repeat: int,
    tolerance: str | None,
    figures: tuple[str, ...],
    anyway: bool,
    **options: Any,
) -> int:
    """Run an experiment under each of several strategies, or compare a run with its baseline."""
    if strategies is not None:
        of_a_baseline = {"tolerance": tolerance, "figure": figures, "anyway": anyway, "strategy": options["strategy"]}
        refuse_options(of_a_baseline, "it says nothing beside --strategies")
        if baseline is not None:
            raise UsageError(f"of one experiment: leave out {baseline}")
        return compare_strategies(
            lambda its_own: _experiment(subject, {**options, **its_own}), strategies, repeat, out, as_json
        )
    if subject is None or baseline is None:
        raise UsageError("give --strategies and an experiment, or a run and its baseline")
    refuse_options(options, "it is of an experiment that is run: give --strategies, too")
    return compare_with_baseline(subject, baseline, out, as_json, figures, tolerance, anyway)


@cli.command(cls=CommandOfAJob)
@experiment_options
@JSON_OPTION
def plan(subject: str | None, as_json: bool, **options: Any) -> int:
    """Print the incidents that `run` would fire with the same arguments; the same seed gives the same ones."""
    experiment, source = _said(subject, options)
    with source.locating():
        print_plan(experiment, as_json)
    return 0


@cli.command()
@click.argument("reference", metavar="[RUN]", default="latest")
@OUT_OPTION
@JSON_OPTION
@click.option("--html", "page", type=FileToWrite(), help="Also write the page to FILE.")
@click.option("--pictures", type=FolderToWrite(), help="Also write the charts there, as SVG and PNG.")
def report(reference: str, out: Path, as_json: bool, page: Path | None, pictures: Path | None) -> int:
    """Judge a run again from its event log alone, and report. RUN is `latest`, a name, name/time, or a path."""
    from harness.store.log import legible

    folder, summary, events = read_run(out, reference)
    with legible(folder):
        print_report(summary, folder, as_json, events)
        if page is not None:
            write_page(page, folder, summary, events)
        if pictures is not None:
            write_pictures(pictures, summary, events)
    return summary.exit_code


@cli.command()
@OUT_OPTION
@JSON_OPTION
def runs(out: Path, as_json: bool) -> int:
    """List the runs in OUT, the newest last."""
    from harness.store.runs import list_runs

    entries = list_runs(out)
    if as_json:
        print_json([entry.to_dict() for entry in entries])
        return 0
    if not entries:
        click.echo(f"no runs in {out}: `chaos run kill-node --at step=500` makes one", err=True)
    width = max((len(entry.reference) for entry in entries), default=0)
    for entry in entries:
        steps = "?" if entry.steps is None else str(entry.steps)
        print_text(f"{entry.reference:<{width}}  {entry.verdict:<12}  {steps:>6} steps  {entry.fault}")
    return 0


@cli.command()
def schema() -> int:
    """Print the JSON Schema of experiment files, for editors."""
    from chaos.experiment.schema import json_schema

    print_json(json_schema())
    return 0


def _said(subject: str | None, options: Mapping[str, Any]) -> tuple[Experiment, Source]:
    from chaos.experiment.reading import read_options

    given = {key: value for key, value in options.items() if value not in (None, ())}
    return read_options(subject, given, violations=_violations)


def _violations(experiment: Experiment, is_sound: Callable[..., bool]) -> list[UsageError]:
    from harness.run.preparation import violations

    return violations(experiment, is_sound)


def _experiment(subject: str | None, options: Mapping[str, Any]) -> Experiment:
    return _said(subject, options)[0]


for command in (calibrate, doctor, faults, forecast, gates, heal, init, paper, replay, serve, shrink, validate):
    cli.add_command(command)


def main() -> None:
    """Entry point of the `chaos` command."""
    _open_closed_streams()
    sys.exit(run_cli(sys.argv[1:]))


def _open_closed_streams() -> None:
    """Where a standard stream is closed (`chaos run ... >&-`), what is written to it goes nowhere.

    The next file that is opened would be taken for it otherwise, by every process that is started.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest that is free: this one.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))


def _colour() -> bool | None:
    """False where the user wants no colour (https://no-color.org) or the terminal has none; else click decides."""
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return False if is_plain else None


def run_cli(arguments: list[str]) -> int:
    """Run the command line; returns the exit code. A user's mistake never shows a traceback."""
    try:
        result = cli.main(arguments, prog_name="chaos", standalone_mode=False, color=_colour())
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("chaos: interrupted", err=True)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except ChaosError as error:
        click.echo(f"chaos: {error}", err=True)
        return error.exit_code
    except Exception:
        # A mistake of ours. Python's own exit code for it would say that a gate failed.
        traceback.print_exc()
        return EXIT_FAILED
