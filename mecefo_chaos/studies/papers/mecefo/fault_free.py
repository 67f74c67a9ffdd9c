"""The speed while nothing fails, over that of plain training, by `python -m benchmarks.fault_free --json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from chaos.errors import UsageError
from chaos.user_files import read_input
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_runtime.system.json_values import JsonTypeError, from_json

SHIPPED_FILE = "fault_free.json"
COMMAND = "python -m benchmarks.fault_free --json"
_RATIO = "speed, ours / plain"


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of the default strategy over that of plain training of the same layout, within rounds of both."""

    shape: str
    median_ratio: float
    least_ratio: float
    greatest_ratio: float
    num_rounds: int

    @property
    def measured(self) -> Measured:
        """As a figure for a rule."""
        return Measured(self.median_ratio, self.least_ratio, self.greatest_ratio, self.num_rounds)


@dataclass(frozen=True, slots=True)
class FaultFree:
    """The speeds that the benchmark measured, with date and machine."""

    date: str
    command: str
    machine: str
    rows: tuple[Speed, ...]


def shipped_fault_free() -> FaultFree:
    """The figures in docs/explanation/benchmarks.md."""
    return from_json(FaultFree, json.loads(files(__package__).joinpath(SHIPPED_FILE).read_text(encoding="utf-8")))


def read_fault_free(path: Path) -> FaultFree:
    """The JSON document that the benchmark printed into a file.

    Raises:
        UsageError: the file cannot be read, or is not such a document.
    """
    try:
        document = json.loads(read_input(path))
        rows = tuple(_speed(shape) for shape in document["shapes"] if shape["ratios"][_RATIO]["n"])
        machine = document["machine"]
        about = f"{machine['num_cores_used']} cores, {machine['cpu_model']}"
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=str(path)) from error
    except (ValueError, KeyError, TypeError, AttributeError, JsonTypeError, RecursionError) as error:
        raise UsageError(f"is not what `{COMMAND}` prints", path=str(path)) from error
    return FaultFree("", f"{COMMAND} > {path.name}", about, rows)


def _speed(shape: Any) -> Speed:
    ratio = shape["ratios"][_RATIO]
    values = {"median_ratio": ratio["median"], "least_ratio": ratio["min"], "greatest_ratio": ratio["max"]}
    return from_json(Speed, {"shape": shape["name"], **values, "num_rounds": ratio["n"]})
