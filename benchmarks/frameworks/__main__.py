"""What becomes of a training when something breaks? `python -m benchmarks.frameworks [--json] [--quick]`.

Small scripts under nine frameworks, two ranks each on CPUs, and in each the same faults at the same step: verdict, exit
code, steps lost and recovery, beside what the script wrote down of its own steps. A framework that is not installed is
a row that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks._machine import OtherLoad, confined_to, describe_machine
from benchmarks._runs import benchmark_options, finish, progress, run_folder
from benchmarks.frameworks.cases import FAULTS, FRAMEWORKS, Fault, Framework
from benchmarks.frameworks.cells import EXIT_ENVIRONMENT, Round, measure
from benchmarks.frameworks.report import Cell, Row, report, to_document

NUM_CORES = 2


def row_of(framework: Framework, faults: Sequence[Fault], out: Path, *, quick: bool) -> Row:
    """Measure a framework; where its job does not even start, the first run's reason stands for all."""
    absent = [library for library, number in framework.versions().items() if number is None]
    if absent:
        return Row(framework, why_not=f"not installed: {', '.join(absent)}")
    cells: list[Cell] = []
    for fault in faults:
        rounds: list[Round] = []
        for number in range(1, 1 + (1 if quick else fault.num_rounds)):
            done = measure(framework, fault, out / framework.name / f"{fault.name}-{number}")
            progress(f"{framework.name}, {fault.name}, {number}: {done.verdict} ({done.exit_code}): {done.what}")
            if not cells and not rounds and done.exit_code == EXIT_ENVIRONMENT:
                return Row(framework, why_not=f"does not run here: {done.what}")
            rounds.append(done)
        cells.append(Cell(fault, tuple(rounds)))
    return Row(framework, tuple(cells))


@click.command(help=__doc__)
@benchmark_options
@click.option(
    "--framework",
    "names",
    multiple=True,
    type=click.Choice([framework.name for framework in FRAMEWORKS]),
    help="Only this one. Repeatable.",
)
@click.option(
    "--fault",
    "fault_names",
    multiple=True,
    type=click.Choice([fault.name for fault in FAULTS]),
    help="Only this one. Repeatable.",
)
def main(as_json: bool, quick: bool, out: Path | None, names: tuple[str, ...], fault_names: tuple[str, ...]) -> None:
    """Entry point."""
    chosen = [framework for framework in FRAMEWORKS if not names or framework.name in names]
    faults = [fault for fault in FAULTS if not fault_names or fault.name in fault_names]
    with confined_to(NUM_CORES) as cores, run_folder(out) as folder:
        machine = describe_machine()
        with OtherLoad(cores) as others:
            rows = [row_of(framework, faults, folder.absolute(), quick=quick) for framework in chosen]
    finish(
        to_document(rows, machine, others.num_cores),
        report(rows, machine, others.num_cores),
        as_json=as_json,
        has_failures=any(cell.disagreements for row in rows for cell in row.cells),
    )


if __name__ == "__main__":
    main()
