"""Emulated runs that are kept: one small file each, in a folder of the user's, and those that were measured here.

A file is written when its run is over, whole or not at all, so whatever ends the work, what is done stays done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

from chaos.errors import EnvironmentFailure, UsageError
from chaos.user_files import read_regular
from harness.store.files import write_whole
from mecefo_chaos.studies.papers.mecefo.emulated import EmulatedRun
from mecefo_chaos.studies.papers.mecefo.setting import Cell, twin_of
from mecefo_runtime.system.json_values import JsonTypeError, from_json, to_json

FORMAT = "chaos paper mecefo 1"
SHIPPED_FILE = "measured.json"
# Below a folder of results: the runs that they are of.
RUNS_FOLDER = "runs"
_SUFFIX = ".result.json"


@dataclass(frozen=True, slots=True)
class Result:
    """One emulated run, with where and when: `folder` is its run's, in the store.

    `twin_step_seconds` is the failure-free step of the twin among the results that it was read with, None without one.
    """

    STORED_FORMAT: ClassVar[str] = FORMAT

    run: EmulatedRun
    date: str
    machine: str
    folder: str
    is_shipped: bool = False
    twin_step_seconds: float | None = None

    @property
    def key(self) -> tuple[Cell, int | None]:
        """What it is the result of."""
        return self.run.cell, self.run.seed


Results = Mapping[tuple[Cell, int | None], Result]


def result_file(folder: Path, cell: Cell, seed: int | None) -> Path:
    """Where the result of a run is kept."""
    return folder / f"{cell.key}-{'twin' if seed is None else f'seed{seed}'}{_SUFFIX}"


def write_result(folder: Path, result: Result) -> None:
    """Keep a result.

    Raises:
        EnvironmentFailure: it could not be written.
    """
    cell, seed = result.key
    write_whole(result_file(folder, cell, seed), _text(result))


def read_results(folder: Path) -> Results:
    """The results in `folder`; none where there is no such folder.

    Raises:
        UsageError: a file that is named like a result is none.
        EnvironmentFailure: the folder may not be read.
    """
    try:
        paths = sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []
        if folder.exists() and not folder.is_dir():
            raise UsageError("is no folder", path=str(folder))
        texts = {path: read_regular(path) for path in paths}
    except OSError as error:
        raise EnvironmentFailure(f"cannot read {folder}: {error.strerror}") from error
    return paired(_parse(raw, path) for path, raw in texts.items())


def shipped_results() -> Results:
    """Those that were measured when this version was made, and came with it."""
    text = files(__package__).joinpath(SHIPPED_FILE).read_text(encoding="utf-8")
    return paired(
        from_json(Result, {"format": FORMAT, **one, "is_shipped": True}) for one in json.loads(text)["results"]
    )


def merged(own: Results, shipped: Results) -> Results:
    """The user's own results, and the shipped ones of cells of which the user has no usable run with failures.

    A failure-free run of the user's takes no other place: the shipped runs keep the twin that they came with.
    """
    ours = {cell for (cell, seed), result in own.items() if seed is not None and result.run.is_usable}
    return {**{key: result for key, result in shipped.items() if key[0] not in ours}, **own}


def paired(results: Iterable[Result]) -> Results:
    """By cell and seed, each with the failure-free step of its twin among them."""
    by_key = {result.key: result for result in results}
    twins = {
        cell: one.run.free_step_seconds for (cell, seed), one in by_key.items() if seed is None and one.run.is_usable
    }
    return {
        (cell, seed): replace(one, twin_step_seconds=None if seed is None else twins.get(twin_of(cell)))
        for (cell, seed), one in by_key.items()
    }


def _text(result: Result) -> str:
    return json.dumps(to_json(result), indent=1) + "\n"


def _parse(raw: bytes, path: Path) -> Result:
    try:
        return from_json(Result, json.loads(raw))
    except (ValueError, RecursionError) as error:
        said = str(error) if isinstance(error, JsonTypeError) else "it is no JSON"
        raise UsageError(f"is no result of an emulated run: {said}", path=str(path)) from error
