"""What do degraded layers cost in convergence? `python -m benchmarks.convergence [--json] [--quick] [--out DIR]`.

llama-tiny is trained on real text without failures and under the paper's failure processes, for every policy and seed.
Every policy's final validation loss is compared with the failure-free run's of the same seed, and, through failure-free
runs of other lengths, turned into the share of its committed steps: its statistical efficiency. The predicted time
of its steps over that efficiency is what the policy takes to the failure-free run's loss.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click

from benchmarks._machine import describe_machine
from benchmarks._runs import benchmark_options, finish, progress, run_folder
from benchmarks.convergence.cases import FREE, Case, list_cases
from benchmarks.convergence.report import report, to_document
from benchmarks.convergence.runs import SAMPLES_PER_REPLICA, Outcome, Run, recall, train_and_keep

NUM_STEPS, NUM_SEEDS = 1000, 3
QUICK_NUM_STEPS, QUICK_NUM_SEEDS = 20, 1


@click.command(help=__doc__)
@benchmark_options
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs at a time, of a core each.")
@click.option("--steps", type=click.IntRange(20), default=NUM_STEPS, show_default=True, help="Steps of a run.")
@click.option("--seeds", type=click.IntRange(1), default=NUM_SEEDS, show_default=True, help="Runs of every case.")
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=SAMPLES_PER_REPLICA,
    show_default=True,
    help="Sequences of a step, for each of the 8 replicas.",
)
@click.option("--data", help="Text to train on: a file or a folder. Default: Python's standard library.")
@click.option("--only", metavar="TEXT", help="Only the cases with this in their names, and those without failures.")
@click.option("--only-done", is_flag=True, help="Train nothing: report on the runs that are in --out.")
def main(
    as_json: bool,
    quick: bool,
    out: Path | None,
    jobs: int,
    steps: int,
    seeds: int,
    samples: int,
    data: str | None,
    only: str | None,
    only_done: bool,
) -> None:
    """Entry point."""
    if quick:
        steps, seeds = QUICK_NUM_STEPS, QUICK_NUM_SEEDS
    cases = [(case, seed) for case, seed in list_cases(seeds) if case.process is None or (only or "") in str(case)]
    planned = [(case, seed, case.run(seed, steps, samples)) for case, seed in cases]
    outcomes: dict[Case, dict[int, Outcome]] = {}
    with run_folder(out) as folder:
        for case, seed, outcome in _train_all(planned, data, folder, 0 if only_done else jobs):
            outcomes.setdefault(case, {})[seed] = outcome
    if FREE not in outcomes:
        raise click.UsageError("no failure-free run is done: leave out --only-done, or name the folder with --out")
    setting = (steps, planned[0][2].job().samples_per_step, describe_machine())
    finish(to_document(outcomes, *setting), report(outcomes, *setting), as_json=as_json, has_failures=False)


def _train_all(
    planned: Sequence[tuple[Case, int, Run]], data: str | None, folder: Path, jobs: int
) -> Iterator[tuple[Case, int, Outcome]]:
    """The outcomes of all cases with their seeds, in their order; with no `jobs`, of those that are done already."""
    trained = {(case, seed): run for case, seed, run in planned if run.is_trained()}
    names = {(case, seed): f"{case.slug}-seed{seed}" for case, seed in trained}
    found: dict[tuple[Case, int], Outcome] = {}
    for key, run in trained.items():
        if outcome := recall(run, names[key], data, folder):
            found[key] = outcome
    missing = {key: run for key, run in trained.items() if key not in found} if jobs else {}
    # A forked child would inherit torch's threads in whatever state they are.
    with ProcessPoolExecutor(max(1, jobs), mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(train_and_keep, run, names[key], data, folder): key for key, run in missing.items()}
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                case, seed = futures[future]
                found[case, seed] = future.result()
                progress(f"[{number}/{len(futures)}] {case}, seed {seed}: loss {future.result().validation_loss:.4f}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for case, seed, run in planned:
        if (case, seed) in found:
            yield case, seed, found[case, seed]
        elif not run.is_trained() and (FREE, seed) in found:
            # Nothing approximated, nothing lost: the gradients are the failure-free run's.
            yield case, seed, run.outcome(found[FREE, seed].validation_loss, ())


if __name__ == "__main__":
    main()
