"""Runs and sets of runs that are stored, as samples to compare: by name, by folder, or as a file of figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.errors import UsageError
from chaos.host.run_files import EVENTS_FILE
from chaos.user_files import read_input
from harness.analysis.state import state_of
from harness.comparison.same_experiment import drawn_from
from harness.comparison.sample import NoSet, RunSet, Sample, sample_of
from harness.judging.stored import judge
from harness.judging.summary import read_summary
from harness.store.log import legible
from harness.store.runs import SET_FILE, find_run
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.run_records import RunStarted


def find_samples(out: Path, reference: str) -> list[Sample]:
    """The samples of what `reference` names: a set's folder or file, a run (see `find_run`), a copied summary.json.

    A run is judged again from its log; of a set or a lone summary the figures are those that it holds.

    Raises:
        UsageError: there is no such thing, or a file of figures that holds none.
        EnvironmentFailure: the run, or the store, cannot be read.
    """
    for path in (Path(reference), out / reference):
        # What may not be looked at is told of by who looks for a run there.
        with suppress(OSError):
            if (path / SET_FILE).is_file():
                return _read(path / SET_FILE)
            if path.is_file() and path.suffix == ".json" and not (path.parent / EVENTS_FILE).is_file():
                return _read(path)
    folder = find_run(out, reference)
    with legible(folder):
        summary, events = judge(folder)
        began = state_of(events).first_of(RunStarted)
        experiment = _mapping(began and began.experiment)
        machine, drawn = machine_of(events), drawn_from(events)
        return [sample_of(summary, experiment, machine, folder, verdict_but_gates(folder), drawn)]


def machine_of(events: Sequence[Event]) -> dict[str, Any]:
    """What a run ran on, as its log tells: the machine, and how much slower its ranks were made."""
    began = state_of(events).first_of(RunStarted)
    if began is None:
        return {}
    dilation = {} if began.dilation_ratio is None else {"dilation": began.dilation_ratio}
    return {**_mapping(began.machine), **dilation}


def machine_words(events: Sequence[Event]) -> str:
    """`cores 2, platform Linux-6.18, python 3.11.7`: the machine that a run's log tells of."""
    return ", ".join(f"{key} {value}" for key, value in machine_of(events).items() if key != "dilation")


def verdict_but_gates(folder: Path) -> str:
    """The verdict of a stored run if the gates that were asked for are left aside."""
    return judge(folder, gates=())[0].verdict


def _read(path: Path) -> list[Sample]:
    try:
        document = json.loads(read_input(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot be read as JSON: {error}", path=str(path)) from error
    if isinstance(document, Mapping) and "verdict" in document and "experiment_hash" in document:
        try:
            return [sample_of(read_summary(document), {}, {}, None)]
        except (AttributeError, TypeError, ValueError) as error:
            message = f"is not a summary of a run ({type(error).__name__}: {error})"
            raise UsageError(message, path=str(path)) from error
    try:
        return list(RunSet.parse(document).samples)
    except NoSet as error:
        raise UsageError(str(error), path=str(path)) from error


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
