"""What all benchmarks that run jobs share: the options, one run at a time, and an end that says what went wrong."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from chaos.errors import ChaosError
from chaos.experiment.experiment import Experiment
from harness.judging.summary import Summary
from harness.run.execute import execute

EXIT_FAILED_RUNS = 1


def benchmark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every benchmark: `--json`, `--quick` and `--out`."""
    options = [
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output."),
        click.option("--quick", is_flag=True, help="Just enough runs to see that it works; the figures mean little."),
        click.option(
            "--out",
            type=click.Path(path_type=Path, file_okay=False),
            help="Keep the runs, with their event logs, in this folder. Default: they are thrown away.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def run_folder(out: Path | None) -> Iterator[Path]:
    """The folder that runs go to: `out`, or one that is gone afterwards."""
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        yield Path(folder)


def run_once(experiment: Experiment, out: Path, ratings: Mapping[str, Any] | None = None) -> Summary:
    """Run `experiment` unseen, with the `ratings` of another run's summary; returns its summary.

    Raises:
        click.exceptions.Exit: the machine does not let us run it; it has been said why.
        click.Abort: the user interrupted it.
    """
    try:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            summary, _ = execute(experiment, out, nowhere, ratings=ratings)
    except ChaosError as error:
        click.echo(f"cannot run {experiment.name}: {error}", err=True)
        raise click.exceptions.Exit(error.exit_code) from error
    if summary.status == "interrupted":
        raise click.Abort
    return summary


def failure_of(summary: Summary) -> str | None:
    """Why the job did not commit all its steps, None if it did."""
    if summary.steps_committed == summary.steps_planned:
        return None
    reasons = "; ".join(summary.reasons) or str(summary.status)
    return f"{summary.steps_committed} of {summary.steps_planned} steps committed: {reasons}"


def progress(text: str) -> None:
    """Tell whoever waits that one more run is done."""
    click.echo(text, err=True)


def finish(document: Mapping[str, Any], text: str, *, as_json: bool, has_failures: bool) -> None:
    """Print the result and end with exit code 0, or `EXIT_FAILED_RUNS` where a run did not do what it should."""
    click.echo(json.dumps(document, indent=2) if as_json else text)
    if has_failures:
        sys.exit(EXIT_FAILED_RUNS)
