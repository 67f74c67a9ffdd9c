"""The roof: arguments in, exit code out. Imports neither torch nor rich on the way to `--help`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaos.errors import ChaosError, EnvironmentFailure, UsageError

if TYPE_CHECKING:
    from chaos.experiment import Experiment

DEFAULT_OUT = "chaos-runs"
EXIT_USAGE = UsageError.exit_code
EXIT_INTERRUPTED = 2
EXIT_FAILED = 3

OUT_OPTION = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(DEFAULT_OUT),
    show_default=True,
    help="Where runs are kept.",
)
JSON_OPTION = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on standard output, all else on standard error."
)


def experiment_options(command: Any) -> Any:
    """The options that describe an experiment, shared by `run` and `plan`."""
    options = [
        click.argument("subject", metavar="FAULT|FILE.yaml"),
        click.option("--at", "at", metavar="WHEN", help="When: step=N[,phase=P] or time=10s."),
        click.option(
            "--on",
            "on",
            metavar="TARGET",
            help="On whom: rank=3, node=1, stage=2, replica=0, role=coordinator, random[:K]. Default: the seed draws.",
        ),
        click.option(
            "--repair", metavar="AFTER", help="Start the target again after 40steps, 10s, or none. Default: 40steps."
        ),
        click.option("--nodes", type=int, help="Nodes. Default: 4."),
        click.option("--gpus-per-node", type=int, help="Ranks per node. Default: 2."),
        click.option("--data-parallel", type=int, metavar="D", help="Replicas of the model."),
        click.option("--pipeline", type=int, metavar="P", help="Pipeline stages of a replica."),
        click.option("--model", help="Model preset. Default: llama-tiny."),
        click.option(
            "--data",
            type=click.Path(),
            help="Text file or folder to train on. Default: the Python standard library's sources.",
        ),
        click.option("--steps", type=int, help="Training steps. Default: 560."),
        click.option("--strategy", help="Who takes over lost layers, and how: ndb, exact. Default: ndb."),
        click.option("--seed", type=int, help="Seed of everything random. Default: 0."),
        click.option(
            "--dilation",
            metavar="auto|off|X",
            help="Time dilation: pad compute to X times its CPU time. Default: auto.",
        ),
        click.option(
            "--gate",
            "gates",
            multiple=True,
            metavar="EXPRESSION",
            help='What must hold, e.g. "throughput_drop <= 40%". Repeatable.',
        ),
        click.option(
            "--twin/--no-twin",
            default=None,
            help="Also run the same job without faults, to compare the loss. Default: on.",
        ),
        click.option("--backend", type=click.Choice(["local"]), help="Where nodes run. Default: local."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


# \b keeps click from filling the paragraph that follows it.
_HELP = """Break a real distributed training run at an exact step, watch it survive, and know what the failure cost.

\b
chaos run kill-node --at step=500    the whole story on this machine, in about three minutes
chaos faults                         what can be broken
chaos report                         the newest run, judged again from its log

Exit codes: 0 pass, 1 a gate failed, 2 halted or interrupted, 3 the tool or its environment failed, 4 usage,
5 inconclusive, 6 something was left behind.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, help=_HELP)
@click.version_option(package_name="mecefo-chaos", prog_name="chaos")
def cli() -> None:
    """The `chaos` command."""


@cli.command()
@experiment_options
@OUT_OPTION
@JSON_OPTION
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JUnit report to this file."
)
@click.option(
    "--dry-run", is_flag=True, help="Say what would be done, and check that it can be, without starting anything."
)
def run(subject: str, out: Path, as_json: bool, junit: Path | None, dry_run: bool, **options: Any) -> int:
    """Run an experiment: FAULT at its trigger on the default job, or all that FILE.yaml says."""
    experiment = _experiment(subject, options)
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UsageError(f"--junit: there is no folder {junit.parent} for it to be written to")
    if dry_run:
        _print_plan(experiment, as_json)
        return 0
    from harness.execute import JUNIT_FILE, execute, write_whole

    summary, folder = execute(experiment, out, sys.stderr)
    if junit is not None:
        write_whole(junit, (folder / JUNIT_FILE).read_text())
    _print_report(summary, folder, as_json)
    return int(summary["exit_code"])


@cli.command()
@experiment_options
@JSON_OPTION
def plan(subject: str, as_json: bool, **options: Any) -> int:
    """Print the incidents that `run` would fire with the same arguments; the same seed gives the same ones."""
    _print_plan(_experiment(subject, options), as_json)
    return 0


@cli.command()
@JSON_OPTION
def faults(as_json: bool) -> int:
    """List the faults: how real each is, what it needs, how it is undone."""
    from chaos.faults import registry

    rows = [
        {
            "kind": kind,
            "scope": fault.scope,
            "fidelity": fault.fidelity,
            "needs": list(fault.needs),
            "undo": fault.undo_summary,
            "summary": (fault.__doc__ or "").strip().splitlines()[0],
        }
        for kind, fault in registry().items()
    ]
    if as_json:
        _print_json(rows)
        return 0
    for row in rows:
        needs = ", ".join(row["needs"]) or "nothing"
        _print(f"{row['kind']}\n    {row['summary']}")
        _print(f"    fidelity: {row['fidelity']}   acts on: {row['scope']}   needs: {needs}   undo: {row['undo']}")
    return 0


@cli.command()
@click.argument("reference", metavar="RUN", default="latest")
@OUT_OPTION
@JSON_OPTION
def report(reference: str, out: Path, as_json: bool) -> int:
    """Judge a run again from its event log alone, and report. RUN is `latest`, a name, name/time, or a path."""
    from harness.execute import judge
    from harness.log import LogError
    from harness.runs import RunNotFound, StoreError, find_run

    try:
        folder = find_run(out, reference)
        summary, events = judge(folder)
    except RunNotFound as error:
        raise UsageError(str(error)) from error
    except (StoreError, LogError) as error:
        raise EnvironmentFailure(str(error)) from error
    _print_report(summary, folder, as_json, events)
    return int(summary["exit_code"])


@cli.command()
@OUT_OPTION
@JSON_OPTION
def runs(out: Path, as_json: bool) -> int:
    """List the runs in OUT, the newest last."""
    from harness.runs import StoreError, list_runs

    try:
        entries = list_runs(out)
    except StoreError as error:
        raise EnvironmentFailure(str(error)) from error
    if as_json:
        _print_json([entry.to_dict() for entry in entries])
        return 0
    if not entries:
        click.echo(f"no runs in {out}: `chaos run kill-node --at step=500` makes one", err=True)
    width = max((len(entry.reference) for entry in entries), default=0)
    for entry in entries:
        steps = "?" if entry.steps is None else str(entry.steps)
        _print(f"{entry.reference:<{width}}  {entry.verdict:<12}  {steps:>6} steps  {entry.fault}")
    return 0


@cli.command()
def schema() -> int:
    """Print the JSON Schema of experiment files, for editors."""
    from chaos.experiment import json_schema

    _print_json(json_schema())
    return 0


def _experiment(subject: str, options: Mapping[str, Any]) -> Experiment:
    from chaos.experiment import from_options

    return from_options(subject, {key: value for key, value in options.items() if value not in (None, ())})


def _print_plan(experiment: Experiment, as_json: bool) -> None:
    from harness.execute import check

    job, incidents = check(experiment)
    if as_json:
        _print_json({"experiment": experiment.model_dump(mode="json"), "incidents": [i.to_dict() for i in incidents]})
        return
    cluster = job.cluster()
    _print(
        f"{job.nodes} nodes x {job.gpus_per_node} ranks, {job.data_parallel} replicas x {job.pipeline} stages, "
        f"{cluster.num_layers} layers, {job.steps} steps, strategy {job.strategy}, "
        f"dilation x{job.dilation_ratio:g}, seed {job.seed}"
    )
    for incident in incidents:
        _print(str(incident))
    for gate in experiment.gates:
        _print(f"gate: {gate}")
    _print(
        "twin: the same job without faults, for the loss" if experiment.twin else "no twin: the loss is not compared"
    )


def _print_report(summary: Mapping[str, Any], folder: Path, as_json: bool, events: Any = None) -> None:
    if as_json:
        _print_json(summary)
        return
    from rich.console import Console

    from harness.execute import judge
    from harness.report.terminal import render

    class ReportConsole(Console):
        def on_broken_pipe(self) -> None:
            # Rich's own would end the process with 1: a gate failed.
            raise BrokenPipeError

    events = judge(folder)[1] if events is None else events
    with _standard_output():
        render(summary, events, ReportConsole(), folder=folder)


def _print_json(document: Any) -> None:
    _print(json.dumps(document, indent=2))


def _print(text: str) -> None:
    with _standard_output():
        click.echo(text)


@contextmanager
def _standard_output() -> Iterator[None]:
    """While something is printed: nobody reading any more (`chaos runs | head`) is no failure.

    Raises:
        EnvironmentFailure: standard output takes nothing, such as on a full disk.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # What is still in the buffer would fail once more when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise EnvironmentFailure(f"cannot write to standard output: {error.strerror}") from error


def main() -> None:
    """Entry point of the `chaos` command."""
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    """Run the command line; returns the exit code. A user's mistake never shows a traceback."""
    try:
        result = cli.main(arguments, prog_name="chaos", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
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
