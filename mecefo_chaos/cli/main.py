"""The command line: arguments in, exit code out. Imports neither torch nor rich on the way to `--help`."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chaos.errors import ChaosError, EnvironmentFailure, UsageError
from chaos.host import streams
from chaos.host.inherited import hear_of_children, is_limit, why_limit
from chaos.host.runtime_extra import why_not_imported
from mecefo_chaos.cli.calibrate import calibrate
from mecefo_chaos.cli.compare import compare, prepare_reference, single_run_against
from mecefo_chaos.cli.compare import repeat as repeat_run
from mecefo_chaos.cli.completion import completion
from mecefo_chaos.cli.doctor import doctor
from mecefo_chaos.cli.faults import faults
from mecefo_chaos.cli.forecast import forecast
from mecefo_chaos.cli.gates import gates
from mecefo_chaos.cli.heal import heal
from mecefo_chaos.cli.init import init
from mecefo_chaos.cli.paper import paper
from mecefo_chaos.cli.replay import replay
from mecefo_chaos.cli.report import report, runs
from mecefo_chaos.cli.serve import serve
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.experiment_options import CommandOfAJob, given, read_experiment
from mecefo_chaos.cli.shared.grouped import GroupedGroup, option
from mecefo_chaos.cli.shared.hints import sentence
from mecefo_chaos.cli.shared.options import JSON_OPTION, OUT_OPTION, OUTPUT, FileToWrite
from mecefo_chaos.cli.shared.output import echo, print_json, print_plan, print_report, tell_github
from mecefo_chaos.cli.shared.quick import AT_STEP as QUICK_AT
from mecefo_chaos.cli.shared.quick import STEPS as QUICK_STEPS
from mecefo_chaos.cli.shared.quick import quick as shorten
from mecefo_chaos.cli.shared.usage_errors import leave_traces
from mecefo_chaos.cli.shrink import shrink
from mecefo_chaos.cli.validate import validate

if TYPE_CHECKING:
    pass

EXIT_USAGE = UsageError.exit_code
EXIT_INTERRUPTED = 2
EXIT_FAILED = 3
RUNNING = "Run"


# \b keeps click from filling the paragraph that follows it.
_HELP = """Chaos engineering for PyTorch training: inject a fault at an exact step, and measure how the job recovers.

\b
Try it:
  chaos run --quick                              built-in job, under a minute
  chaos run kill-process --at step=30 --on rank=1 -- \\
      torchrun --nproc-per-node 2 train.py       your own script, unchanged
  chaos run kill-node --at step=500              built-in job, three minutes

Exit codes: 0 pass, 1 a gate failed, 2 halted or interrupted, 3 the tool or its environment failed, 4 usage error,
5 inconclusive, 6 changes of this tool could not be undone.
"""


class _Commands(GroupedGroup):
    """The subcommands, by what they are for."""

    sections: ClassVar = {
        "Run experiments": {
            "run": "run an experiment and judge it",
            "compare": "compare strategies, or a run with a reference",
            "replay": "repeat a run from its log",
            "shrink": "find the smallest set of faults with which a run still fails",
        },
        "Write experiments": {
            "faults": "list the faults that can be injected",
            "gates": "list the metrics for pass criteria, or explain a gate",
            "init": "write an experiment file, from options or questions",
            "validate": "check experiment files without running them",
            "plan": "print the incidents that `run` would inject",
            "schema": "print the JSON Schema of experiment files",
        },
        "Look at runs": {
            "runs": "list the stored runs",
            "report": "report on a stored run",
            "serve": "serve the metrics of a stored run to Prometheus",
        },
        "Predict and reproduce": {
            "forecast": "forecast the cost of failures in a cluster, without a run",
            "paper": "check the claims of a paper on this machine",
            "calibrate": "measure this device, to emulate it elsewhere",
        },
        "Set up and clean up": {
            "doctor": "check what runs need on this machine",
            "completion": "print the completion script of bash, zsh, or fish",
            "heal": "undo what interrupted runs left behind",
        },
    }


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, help=_HELP)
@click.version_option(package_name="mecefo-chaos", prog_name="chaos")
def cli() -> None:
    """The `chaos` command."""


_RUN_HELP = """Run an experiment and judge it: FAULT at its trigger, or everything in FILE.yaml.

The job is the built-in one, or your own training script: everything after -- is the command that starts it.

\b
Examples:
  chaos run kill-node --at step=500
  chaos run kill-process --at step=30 --on rank=1 -- \\
      torchrun --nproc-per-node 2 train.py
  chaos run slow-rank --at step=20 -p factor=3 --for 10steps \\
      --gate 'throughput_drop < 40%' -- torchrun train.py
  chaos run experiment.yaml --repeat 5

`chaos faults` lists the faults, `chaos gates` the metrics, and `chaos init` writes an experiment file.
"""


@cli.command(cls=CommandOfAJob, help=_RUN_HELP)
@option(
    RUNNING,
    "--quick",
    is_flag=True,
    help=f"Built-in job in less than a minute: {QUICK_STEPS} steps, and kill-node at step {QUICK_AT} unless given.",
)
@option(
    RUNNING,
    "--dry-run",
    is_flag=True,
    help="Check the experiment and print the plan without starting anything. Docker, images and GPUs are not checked: "
    "`chaos doctor` does that.",
)
@option(
    RUNNING,
    "--repeat",
    type=click.IntRange(1, 1000),
    default=1,
    metavar="K",
    help="Run the experiment K times; gates are judged on the medians.",
)
@option(
    RUNNING,
    "--reference",
    "reference",
    metavar="RUN",
    shell_complete=completing.RUNS,
    help="Also compare with this stored run or set of runs; worse fails.",
)
@click.option("--baseline", "earlier_reference", hidden=True, metavar="RUN", shell_complete=completing.RUNS)
@OUT_OPTION
@JSON_OPTION
@option(OUTPUT, "--junit", type=FileToWrite(), help="Also write the JUnit report to this file.")
@option(
    OUTPUT,
    "--github/--no-github",
    default=None,
    help="Write a GitHub step summary, and annotations to standard error. Default: in a GitHub workflow.",
)
@option(
    OUTPUT,
    "--metrics",
    metavar="off|auto|PORT|HOST:PORT",
    default="auto",
    envvar="CHAOS_METRICS",
    help="Address of the Prometheus metrics during the run. Default: auto, a free port of the loopback.",
)
def run(
    subject: str | None,
    out: Path,
    as_json: bool,
    junit: Path | None,
    metrics: str,
    github: bool | None,
    quick: bool,
    dry_run: bool,
    repeat: int,
    reference: str | None,
    earlier_reference: str | None,
    **options: Any,
) -> int:
    """Run an experiment; see `_RUN_HELP`."""
    chosen = ""
    if quick:
        subject, options, chosen = shorten(subject, given(options))
    experiment, source = read_experiment(subject, options)
    if chosen:
        echo(chosen)
    reference = earlier_reference if reference is None else reference
    against = None if reference is None else prepare_reference(reference, out)
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
        # Before the report: standard output may take nothing.
        if junit is not None:
            write_whole(junit, (folder / JUNIT_FILE).read_text(encoding="utf-8"))
        print_report(summary, folder, as_json)
        tell_github(summary, folder, github)
        if exporter is not None:
            exporter.wait_for_last_read(sys.stderr)
    exit_code = summary.exit_code
    return exit_code if against is None else single_run_against(folder, exit_code, out, as_json, against)


@cli.command(cls=CommandOfAJob)
@JSON_OPTION
def plan(subject: str | None, as_json: bool, **options: Any) -> int:
    """Print the incidents that `run` would inject with the same arguments; the same seed gives the same incidents."""
    experiment, source = read_experiment(subject, options)
    with source.locating():
        print_plan(experiment, as_json)
    return 0


@cli.command()
def schema() -> int:
    """Print the JSON Schema of experiment files, for editors."""
    from chaos.experiment.schema import json_schema

    print_json(json_schema())
    return 0


for command in (
    *(calibrate, compare, completion, doctor, faults, forecast, gates, heal, init, paper, replay),
    *(report, runs, serve, shrink, validate),
):
    cli.add_command(command)


def main() -> None:
    """Entry point of the `chaos` command."""
    hear_of_children()
    _open_closed_streams()
    _ready_streams()
    code = run_cli(sys.argv[1:])
    # Python flushes it once more: what could not be written has been reported, and is dropped.
    sys.stdout = sys.__stdout__
    sys.exit(code)


def _open_closed_streams() -> None:
    """Where a standard stream is closed (`chaos run ... >&-`), what is written to it goes nowhere.

    The next file that is opened would be taken for it otherwise, by every process that is started.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # The lowest that is free: this one.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", encoding="utf-8"))


def _ready_streams() -> None:
    """That nobody reads what is printed, or that its encoding lacks a character, ends no command."""
    sys.stderr = streams.forgiving(sys.stderr)
    sys.stdout = streams.standard_output(sys.stdout)


def _colour() -> bool | None:
    """False where the user wants no colour (https://no-color.org) or the terminal has none; else click decides."""
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return False if is_plain else None


def run_cli(arguments: list[str]) -> int:
    """Run the command line; returns the exit code. A user's mistake never shows a traceback."""
    try:
        result = cli.main(arguments, prog_name="chaos", standalone_mode=False, color=_colour())
        # Here it can still be told that nobody took it.
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        echo("chaos: interrupted")
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        return _told(arguments, UsageError(sentence(error)))
    except ChaosError as error:
        return _told(arguments, error)
    except Exception as error:
        if (reason := _why_refused(error)) is not None:
            return _told(arguments, EnvironmentFailure(reason))
        # A mistake of ours. Python's own exit code for it would say that a gate failed.
        traceback.print_exc()
        return EXIT_FAILED


def _why_refused(error: Exception) -> str | None:
    """What the machine lacks, of an error that came up where nobody expects one; None: it is a mistake of ours."""
    if (lack_of_package := why_not_imported(error)) is not None:
        return lack_of_package
    if is_limit(error):
        return why_limit(error)
    if not isinstance(error, OSError):
        return None
    from chaos.host.process_table import why_no_process_table

    return None if (lack := why_no_process_table()) is None else ": ".join(lack)


def _told(arguments: list[str], error: ChaosError) -> int:
    """Report what ended the command, to the user and to CI; returns the exit code."""
    echo(f"chaos: {error}")
    leave_traces(arguments, error)
    return error.exit_code
