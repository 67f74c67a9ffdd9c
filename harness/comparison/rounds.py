"""Runs experiments in alternating rounds and keeps their results: a drift of the machine affects all alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from chaos.errors import ChaosError, EnvironmentFailure, HealError, UsageError
from chaos.experiment.experiment import Experiment, experiment_hash
from harness.comparison.same_experiment import drawn_from
from harness.comparison.sample import Kind, Run, RunSet, Sample, Status
from harness.comparison.stored import machine_of, verdict_but_gates
from harness.judging.stored import judge
from harness.judging.summary import Summary
from harness.live.working import Working
from harness.run.execute import execute, require_packages
from harness.run.preparation import check
from harness.store.files import write_whole
from harness.store.runs import SET_FILE, new_set_folder
from mecefo_runtime.system.json_values import to_json

FOLDER_OF: dict[Kind, str] = {"comparison": "compare", "repetition": "repeat"}
REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Contender:
    """One experiment of a set. `experiment` None: it cannot be run, and `refusal` says why."""

    label: str
    experiment: Experiment | None
    refusal: str = ""


def check_repeatable(experiment: Experiment) -> None:
    """Everything that can be refused before the first of several runs.

    Raises:
        UsageError: the experiment cannot be run, or not more than once.
    """
    checkpoint = experiment.job.checkpoint
    has_own = experiment.job.traits.keeps_own_checkpoints
    if not has_own and checkpoint is not None and checkpoint.folder is not None:
        message = "a run would resume from the checkpoints of another: leave it out, and each run has its own"
        raise UsageError(message, key="job.checkpoint.folder")
    check(experiment)


def contender(label: str, make: Callable[[], Experiment]) -> Contender:
    """What `make` makes, or why it cannot be run."""
    try:
        experiment = make()
        check_repeatable(experiment)
    except UsageError as error:
        return Contender(label, None, str(error))
    return Contender(label, experiment)


class Rounds:
    """The rounds of a set, stored in `folder`; whatever ends them, what is done is kept.

    `summaries` are those of the runs that there are, in the order in which they were made.
    """

    def __init__(
        self,
        kind: Kind,
        contenders: Sequence[Contender],
        num_rounds: int,
        out: Path,
        ratings: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the set's folder. Without `ratings` (a reference's), the first run's are those of all.

        Raises:
            EnvironmentFailure: it cannot be made, or what every run needs is not installed.
        """
        for one in contenders:
            if one.experiment is not None:
                require_packages(one.experiment)
        self._kind = kind
        self._contenders = list(contenders)
        self._num_rounds = num_rounds
        self._out = out
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._runs: dict[str, list[Run]] = {one.label: [] for one in contenders}
        self._machine: dict[str, Any] = {}
        self._drawn: dict[str, Mapping[str, Any]] = {}
        self._ratings = ratings
        self.summaries: list[Summary] = []
        self.folder = new_set_folder(out, FOLDER_OF[kind])

    def run(self, stream: TextIO) -> RunSet:
        """All rounds, shown on `stream`; the set is `partial` when they were interrupted.

        Raises:
            EnvironmentFailure: the set could not be written.
        """
        try:
            is_complete = self._run_all(stream)
        except KeyboardInterrupt:
            is_complete = False
        return self._write("complete" if is_complete else "partial")

    def _run_all(self, stream: TextIO) -> bool:
        for number in range(1, self._num_rounds + 1):
            for one in self._contenders:
                print(f"round {number} of {self._num_rounds}: {one.label}", file=stream, flush=True)
                if not self._run_one(one, number, stream):
                    return False
                self._write("running")
        return True

    def _run_one(self, one: Contender, number: int, stream: TextIO) -> bool:
        """One run; False when it was interrupted, or nothing more can be run."""
        runs = self._runs[one.label]
        if one.experiment is None:
            runs.append(Run(REFUSED, round=number, error=one.refusal))
            return True
        try:
            summary, folder = execute(one.experiment, self._out, stream, ratings=self._ratings)
        except ChaosError as error:
            verdict = "dirty" if isinstance(error, HealError) else "error"
            runs.append(Run(verdict, round=number, error=str(error)))
            # What one run left behind stops the next as well.
            return not isinstance(error, HealError | EnvironmentFailure)
        self.summaries.append(summary)
        self._ratings = self._ratings or summary.ratings
        with Working(f"judging {folder}", stream):
            _, events = judge(folder)
            verdict = verdict_but_gates(folder)
        place = str(Path("..") / ".." / folder.relative_to(self._out))
        runs.append(replace(Run.of(summary, place, number), verdict_but_gates=verdict))
        self._machine = machine_of(events)
        self._drawn.setdefault(one.label, drawn_from(events))
        link = self.folder / f"{one.label}-{number}"
        # A convenience only: not every file system has links.
        with suppress(OSError):
            link.symlink_to(place, target_is_directory=True)
        return summary.status != "interrupted"

    def _write(self, status: Status) -> RunSet:
        samples = [
            Sample(
                label=one.label,
                experiment_hash=None if one.experiment is None else experiment_hash(one.experiment),
                experiment={} if one.experiment is None else one.experiment.model_dump(mode="json"),
                machine=self._machine,
                runs=tuple(self._runs[one.label]),
                drawn=self._drawn.get(one.label, {}),
            )
            for one in self._contenders
        ]
        name = next((one.experiment.name for one in self._contenders if one.experiment is not None), "nothing")
        found = RunSet(self._kind, name, self._started, self._num_rounds, samples, status)
        write_whole(self.folder / SET_FILE, json.dumps(to_json(found), indent=1) + "\n")
        return found
