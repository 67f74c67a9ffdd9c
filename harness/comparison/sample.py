"""Runs of one experiment as a sample, and several samples as a set: what is stored, shown and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal

from harness.analysis.words import count
from harness.comparison.figures import figures_of, with_earlier_names
from harness.judging.metrics import METRICS
from harness.judging.summary import DEPRECATED_KEYS, GateResult, Summary
from mecefo_runtime.system.json_values import FormatError, JsonTypeError, from_json

Kind = Literal["comparison", "repetition"]
Status = Literal["running", "complete", "partial"]
FORMAT = "chaos-set-1"
USABLE = ("pass", "fail")
"""Verdicts of runs whose figures count: the fault was seen to affect, and the run came to its end."""


class NoSet(Exception):
    """What was read is no set of runs."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its verdict, and its figures by name. `folder` is where its files are, None if that is not known.

    `error` says why there is no run. `verdict_but_gates` is what its verdict would be without the gates asked for
    (None: not known), `gates` are their answers. `dilation_overrun_ratio`: how much too busy the machine was for it;
    `num_overlapping_runs`: how many other runs of chaos shared the machine with it.
    `ratings`: by what its compute was padded, which other runs can use too.
    """

    verdict: str
    figures: Mapping[str, float | None] = field(default_factory=dict)
    folder: str | None = None
    round: int = 1
    reasons: Sequence[str] = ()
    gates: Sequence[GateResult] = ()
    error: str | None = None
    verdict_but_gates: str | None = None
    dilation_overrun_ratio: float | None = None
    ratings: Mapping[str, Any] | None = None
    num_overlapping_runs: int = 0

    @classmethod
    def of(cls, summary: Summary, folder: str | None = None, round: int = 1) -> Run:
        """The run that a summary tells of."""
        return cls(
            verdict=summary.verdict,
            figures=figures_of(summary),
            folder=folder,
            round=round,
            reasons=summary.reasons,
            gates=tuple(gate for gate in summary.gates if not gate.builtin),
            dilation_overrun_ratio=summary.dilation_overrun_ratio,
            ratings=summary.ratings,
            num_overlapping_runs=len(summary.overlapping_runs),
        )

    @classmethod
    def from_older(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """`raw` with today's names of figures, and without the booleans that an earlier version had among them."""
        figures = {name: value for name, value in raw["figures"].items() if not isinstance(value, bool)}
        renamed = {new: figures[old] for old, new in DEPRECATED_KEYS.items() if old in figures}
        return {**raw, "figures": {**renamed, **figures}}

    @property
    def is_done(self) -> bool:
        """Whether it was run, and nobody stopped it."""
        return self.error is None and self.verdict != "halted"

    @property
    def is_usable(self) -> bool:
        """Whether its figures count."""
        return self.error is None and (self.verdict_but_gates or self.verdict) in USABLE


@dataclass(frozen=True, slots=True)
class Sample:
    """Runs of one experiment, called `label` (its strategy). `experiment` is it as plain values, `machine` on what.

    `drawn` is the experiment with the incidents of its first run in place of the schedule; empty where not known.
    """

    ALSO_WRITTEN: ClassVar[Mapping[str, str]] = {"figures": "spreads"}

    label: str
    experiment_hash: str | None
    experiment: Mapping[str, Any]
    machine: Mapping[str, Any]
    runs: Sequence[Run]
    drawn: Mapping[str, Any] = field(default_factory=dict)

    @property
    def usable(self) -> tuple[Run, ...]:
        """The runs whose figures count."""
        return tuple(run for run in self.runs if run.is_usable)

    def values(self, name: str) -> list[float]:
        """The figure `name` of every run that counts and has one."""
        return [value for run in self.usable if (value := run.figures.get(name)) is not None]

    @property
    def ratings(self) -> Mapping[str, Any] | None:
        """Those of the first run that has some."""
        return next((run.ratings for run in self.runs if run.ratings is not None), None)

    def num_missing(self, name: str) -> int:
        """How many runs, of all, have no value of it."""
        return len(self.runs) - len(self.values(name))

    def spread(self, name: str) -> dict[str, Any]:
        """Median, least and greatest value, how many there are, and all of them."""
        values = self.values(name)
        return {
            "median": median(values) if values else None,
            "min": min(values, default=None),
            "max": max(values, default=None),
            "n": len(values),
            "values": values,
        }

    @property
    def spreads(self) -> dict[str, dict[str, Any]]:
        """The spread of each figure."""
        return with_earlier_names({name: self.spread(name) for name in METRICS})


@dataclass(frozen=True, slots=True)
class RunSet:
    """What one command ran: `num_rounds` runs of each sample were asked for, in turn."""

    STORED_FORMAT: ClassVar[str] = FORMAT

    kind: Kind
    name: str
    started: str
    num_rounds: int
    samples: Sequence[Sample]
    status: Status = "complete"

    @classmethod
    def parse(cls, document: object) -> RunSet:
        """Read a stored set, which another version may have written.

        Raises:
            NoSet: it is none, or of another format.
        """
        try:
            return from_json(cls, document, lenient=True)
        except FormatError as error:
            raise NoSet(f"this version cannot read this set of runs: {error}") from error
        except JsonTypeError as error:
            raise NoSet(f"it is a damaged set of runs ({error})") from error


def overlapped_words(sample: Sample, where: str) -> str | None:
    """The caveat that runs of `sample` had company on their machine; None where none had."""
    num = sum(run.num_overlapping_runs > 0 for run in sample.runs)
    if not num:
        return None
    return (
        f"{num} of {count(len(sample.runs), 'run')} {where} shared the machine with other runs of chaos: their times "
        "are longer than those of a run that has the machine to itself."
    )


def sample_of(
    summary: Summary,
    experiment: Mapping[str, Any],
    machine: Mapping[str, Any],
    folder: Path | None,
    verdict_but_gates: str | None = None,
    drawn: Mapping[str, Any] | None = None,
) -> Sample:
    """A single run as a sample."""
    run = replace(Run.of(summary, None if folder is None else str(folder)), verdict_but_gates=verdict_but_gates)
    label = summary.strategy or summary.runtime
    return Sample(label, summary.experiment_hash, experiment, machine, (run,), drawn or {})
