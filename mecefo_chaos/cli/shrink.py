"""`chaos shrink`: the smallest schedule with which a failed run still fails."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from chaos.errors import EnvironmentFailure, InjectionError, UsageError
from chaos.user_files import write_output
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.options import OUT_OPTION, FileToWrite
from mecefo_chaos.cli.shared.output import echo
from mecefo_chaos.cli.shared.stored import read_run

DEFAULT_MAX_RUNS = 30
_STEP = "step="


@click.command()
@click.argument("reference", metavar="[RUN]", default="latest", shell_complete=completing.RUNS)
@OUT_OPTION
@click.option(
    "--max-runs",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_RUNS,
    show_default=True,
    help="Maximum number of runs.",
)
@click.option(
    "--output",
    "-o",
    type=FileToWrite(),
    help="The experiment file to write. Default: shrunk.yaml in the run's folder.",
)
def shrink(reference: str, out: Path, max_runs: int, output: Path | None) -> int:
    """Find the smallest set of faults with which a failed run still fails, by repeated runs.

    Incidents are left out, then the job is shortened and the faults are moved earlier, while it still fails in the
    same way. The file is written after every success, so an interrupted search leaves the best that was found.
    """
    from chaos.experiment.experiment import to_yaml
    from chaos.experiment.reading import from_mapping
    from chaos.plan.replay import Recorded, explicit, explicit_faults
    from chaos.plan.shrink import BudgetSpent, Trials
    from harness.judging.failure import failure_of
    from harness.live.working import Working
    from harness.run.execute import execute
    from harness.store.log import legible

    folder, summary, events = read_run(out, reference)
    wanted = failure_of(summary)
    if wanted is None:
        raise UsageError(f"{folder} ended as {summary.verdict}: only a run that failed can be shrunk")
    path = output or folder / "shrunk.yaml"
    with legible(folder):
        recorded = Recorded.of(events)
        faults = explicit_faults(recorded)
    name = f"{str(summary.name).removesuffix('-shrunk')}-shrunk"
    echo(f"to be kept: {wanted}")

    def fails(values: Mapping[str, Any]) -> bool:
        with Working("shrink") as progress:
            # At most: it may be known sooner that nothing more can be left out.
            progress(_in_short(values), trials.num_trials + 1, max_runs)
            again, _ = execute(from_mapping(values), out, io.StringIO(), ratings=summary.ratings)
        if again.verdict == "halted" and wanted.verdict != "halted":
            raise KeyboardInterrupt
        is_same = wanted.is_like(failure_of(again))
        echo(f"run {trials.num_trials + 1}: {_in_short(values)}: {again.verdict}")
        if is_same:
            _write(path, to_yaml(from_mapping(values)))
        return is_same

    trials = Trials(fails, max_runs)
    best = _Best(explicit(recorded, faults, name), trials)
    if not trials(best.values):
        raise InjectionError(
            f"run again with the same faults it did not fail of {wanted}: "
            "it does not depend on the schedule alone, so there is nothing to shrink"
        )
    try:
        best.drop_incidents()
        best.come_earlier()
        end = "nothing more can be left out"
    except BudgetSpent:
        end = f"stopped after {max_runs} runs: --max-runs allows more"
    from harness.analysis.words import count

    echo(f"{count(len(faults), 'incident')} -> {_in_short(best.values)}; {end}")
    echo(str(path), err=False)
    return 0


class _Best:
    """The smallest experiment so far that fails."""

    def __init__(self, values: dict[str, Any], fails: Callable[[Mapping[str, Any]], bool]) -> None:
        self.values = values
        self._fails = fails

    def drop_incidents(self) -> None:
        """Leave out every incident that it does not take."""
        from chaos.plan.shrink import minimize

        minimize(range(len(self.values["faults"])), self._keeps_failing_with(list(self.values["faults"])))

    def _keeps_failing_with(self, faults: Sequence[Mapping[str, Any]]) -> Callable[[tuple[int, ...]], bool]:
        def fails(indices: tuple[int, ...]) -> bool:
            return self._try({**self.values, "faults": [faults[index] for index in indices]})

        return fails

    def come_earlier(self) -> None:
        """Let the faults come at earlier steps, the last one first, and then shorten the job."""
        from chaos.plan.shrink import lowest

        for index in reversed(range(len(self.values["faults"]))):
            step = _step_of(self.values["faults"][index])
            if step is not None:
                lowest(step, 1, lambda wanted, index=index: self._try(_with_step(self.values, index, wanted)))  # type: ignore[misc]
        steps = self.values.get("job", {}).get("steps")
        last = max((_step_of(fault) or 0 for fault in self.values["faults"]), default=0)
        if isinstance(steps, int) and last:
            lowest(steps, last, lambda wanted: self._try(_with_steps(self.values, wanted)))

    def _try(self, candidate: dict[str, Any]) -> bool:
        try:
            is_failing = self._fails(candidate)
        except UsageError:
            # It cannot be run, such as a fault after the end of the job.
            return False
        if is_failing:
            self.values = candidate
        return is_failing


def _step_of(fault: Mapping[str, Any]) -> int | None:
    first = str(fault["at"]).split(",")[0]
    return int(first.removeprefix(_STEP)) if first.startswith(_STEP) else None


def _with_step(values: Mapping[str, Any], index: int, step: int) -> dict[str, Any]:
    faults = list(values["faults"])
    _, _, rest = str(faults[index]["at"]).partition(",")
    faults[index] = {**faults[index], "at": ",".join(filter(None, [f"{_STEP}{step}", rest]))}
    return {**values, "faults": faults}


def _with_steps(values: Mapping[str, Any], num_steps: int) -> dict[str, Any]:
    """The experiment with a shorter job; a repair after its end is left out."""
    from chaos.plan.replay import without_late_repairs

    faults = without_late_repairs(values["faults"], num_steps)
    return {**values, "job": {**values["job"], "steps": num_steps}, "faults": faults}


def _in_short(values: Mapping[str, Any]) -> str:
    faults = ", ".join(f"{fault['kind']} at {fault['at']}" for fault in values["faults"]) or "no fault"
    steps = values.get("job", {}).get("steps")
    of_steps = f" of {steps} step{'' if steps == 1 else 's'}" if steps else ""
    return f"{faults}{of_steps}"


def _write(path: Path, text: str) -> None:
    try:
        write_output(path, text)
    except OSError as error:
        raise EnvironmentFailure(f"cannot write {path}: {error.strerror}. Choose another file with --output") from error
