"""Does a job survive whatever is killed, whenever? `python -m benchmarks.soak [--losses N] [--seed S] [--only RUN]`.

Short jobs of several shapes lose random ranks, nodes, supervisors and coordinators at random moments: several at once,
again during the regroup or the rejoin, hanging ones that wake up in an old epoch, nodes that die again as soon as they
are back. What is lost is repaired. Every job must commit every step once, with its own samples, and leave nothing
behind; with an exact strategy its losses must be the fault-free run's. A few lose what they cannot do without, and must
stop and say so. Runs that fail are kept.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from benchmarks._machine import Machine, describe_machine
from benchmarks._runs import benchmark_options, finish, progress
from benchmarks._spread import name_milliseconds, spread, table
from benchmarks.soak.driver import Driver, Record
from benchmarks.soak.judge import count_rejoins, judge, loss_deviations, recovery_seconds
from benchmarks.soak.plan import RunPlan, Shape, plan_run
from benchmarks.soak.shared_backend import SharedBackend
from harness.analysis.step_ledger import read_steps
from mecefo_runtime.system.events import MAIN_JOB

NUM_LOSSES, QUICK_NUM_LOSSES = 300, 6


@dataclass(frozen=True, slots=True)
class Result:
    """One run of the soak and all that is wrong with it. `losses` names (kind, target) of everything that was hit."""

    number: int
    name: str
    shape: str
    strategy: str
    is_fatal: bool
    losses: tuple[tuple[str, str], ...]
    skipped: tuple[str, ...]
    num_rejoins: int
    num_epochs: int
    recovery_seconds: tuple[float, ...]
    max_loss_deviation_ratio: float | None
    wall_seconds: float
    violations: tuple[str, ...]


def summarize(plan: RunPlan, record: Record, reference: dict[int, float] | None) -> Result:
    """Judge a run and count what happened in it."""
    deviations = {}
    steps = read_steps(record.events, MAIN_JOB).first
    if reference is not None and plan.is_exact:
        deviations = loss_deviations(steps, reference)
    return Result(
        number=plan.number,
        name=plan.name,
        shape=str(plan.shape),
        strategy=plan.strategy,
        is_fatal=plan.is_fatal,
        losses=tuple((loss.name, loss.target) for loss in record.losses),
        skipped=tuple(record.skipped),
        num_rejoins=count_rejoins(record.events),
        num_epochs=sum(event.kind == "regrouped" for event in record.events),
        recovery_seconds=tuple(round(seconds, 6) for seconds in recovery_seconds(record.events, record.losses)),
        max_loss_deviation_ratio=max(deviations.values(), default=None),
        wall_seconds=round(record.wall_seconds, 3),
        violations=tuple(judge(plan, record, reference)),
    )


def report(results: Sequence[Result], machine: Machine, seed: int, folder: Path) -> str:
    """The result as text."""
    kinds = Counter(kind for result in results for kind, _ in result.losses)
    failed = [result for result in results if result.violations]
    recoveries = spread(seconds for result in results for seconds in result.recovery_seconds)
    deviations = [r.max_loss_deviation_ratio for r in results if r.max_loss_deviation_ratio is not None]
    lines = [
        f"machine: {machine}",
        f"runs: {len(results)} with seed {seed}, {sum(result.is_fatal for result in results)} of them fatal by intent",
        "",
        table(("losses, by kind", "n"), [(kind, str(number)) for kind, number in sorted(kinds.items())]),
        "",
        f"losses: {kinds.total()}; ranks taken back: {sum(result.num_rejoins for result in results)}; "
        f"epochs: {sum(result.num_epochs for result in results)}",
        table(
            ("loss of ranks -> next step committed", "median", "min", "max", "n"),
            [("time", *recoveries.to_text(name_milliseconds))],
        ),
        f"largest deviation of a loss from the fault-free run's, exact: {max(deviations, default=0.0):.1e}",
        "",
        f"failed: {len(failed)} of {len(results)} runs",
    ]
    for result in failed:
        lines.append(f"  {folder / result.name} (--seed {seed} --only {result.number})")
        lines += [f"    {violation}" for violation in result.violations]
    return "\n".join(lines)


def to_document(results: Sequence[Result], machine: Machine, seed: int) -> dict[str, Any]:
    """The result as plain JSON values."""
    return {
        "benchmark": "soak",
        "machine": machine.to_dict(),
        "seed": seed,
        "num_losses": count_losses(results),
        "num_rejoins": sum(result.num_rejoins for result in results),
        "num_failed": sum(bool(result.violations) for result in results),
        "recovery_seconds": spread(s for result in results for s in result.recovery_seconds).to_dict(),
        "runs": [asdict(result) for result in results],
    }


def count_losses(results: Sequence[Result]) -> int:
    """All targets that were hit."""
    return sum(len(result.losses) for result in results)


class Soak:
    """Runs one plan after the other; `folder` keeps those that failed, or all of them."""

    def __init__(self, seed: int, folder: Path, shared: SharedBackend, *, quick: bool, keep: bool) -> None:
        self._seed = seed
        self._folder = folder
        self._shared = shared
        self._quick = quick
        self._keep = keep
        self._references: dict[Shape, dict[int, float]] = {}

    async def run(self, number: int) -> Result:
        """One run and, for the first exact run of a shape, the fault-free run that it is compared with."""
        plan = plan_run(self._seed, number, quick=self._quick)
        reference = None
        if plan.is_exact:
            reference = await self._reference(plan)
        result = summarize(plan, await Driver(plan, self._folder / plan.name, self._shared).run(), reference)
        if not result.violations and not self._keep:
            shutil.rmtree(self._folder / plan.name)
        return result

    async def _reference(self, plan: RunPlan) -> dict[int, float]:
        if plan.shape not in self._references:
            name = f"fault-free-{len(self._references)}"
            record = await Driver(replace(plan, blows=()), self._folder / name, self._shared).run()
            steps = read_steps(record.events, MAIN_JOB).first
            if record.outcome != "completed" or len(steps) != plan.num_steps:
                raise click.ClickException(f"the fault-free run of {plan.shape} did not complete: {record.outcome}")
            self._references[plan.shape] = {step.step: step.loss for step in steps if step.loss is not None}
            if not self._keep:
                shutil.rmtree(self._folder / name)
        return self._references[plan.shape]


async def run_all(seed: int, folder: Path, target: int, only: int | None, *, quick: bool, keep: bool) -> list[Result]:
    """Run until `target` losses were dealt, or the run numbered `only`."""
    results: list[Result] = []
    async with SharedBackend(folder) as shared:
        soak = Soak(seed, folder, shared, quick=quick, keep=keep)
        while not results or (only is None and count_losses(results) < target):
            number = len(results) if only is None else only
            result = await soak.run(number)
            results.append(result)
            outcome = f"FAILED: {'; '.join(result.violations)}" if result.violations else "fine"
            progress(
                f"run {number}, {result.shape}, {result.strategy}: {len(result.losses)} losses "
                f"({count_losses(results)} of {target}), {result.wall_seconds:.1f} s: {outcome}"
            )
    return results


@click.command(help=__doc__)
@benchmark_options
@click.option("--losses", "num_losses", type=click.IntRange(1), help="Go on until so many were dealt.  [default: 300]")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws all runs.")
@click.option("--only", type=click.IntRange(0), help="Only the run of this number.")
def main(as_json: bool, quick: bool, out: Path | None, num_losses: int | None, seed: int, only: int | None) -> None:
    """Entry point."""
    target = num_losses or (QUICK_NUM_LOSSES if quick else NUM_LOSSES)
    folder = Path(tempfile.mkdtemp(prefix="soak-")) if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    machine = describe_machine()
    results = asyncio.run(run_all(seed, folder, target, only, quick=quick, keep=out is not None))
    has_failures = any(result.violations for result in results)
    if out is None and not has_failures:
        shutil.rmtree(folder)
    finish(
        to_document(results, machine, seed),
        report(results, machine, seed, folder),
        as_json=as_json,
        has_failures=has_failures,
    )


if __name__ == "__main__":
    main()
