"""Samples and sets made of numbers, for the tests of what is made from them."""

from __future__ import annotations

from typing import Any

from harness.comparison.sample import Run, RunSet, Sample
from harness.judging.summary import GateResult

EXPERIMENT = {"name": "x", "seed": 0, "gates": [], "halt": [], "job": {"steps": 50, "strategy": "mecefo"}}


def run(verdict: str = "pass", *, gates: Any = (), but_gates: str | None = None, **figures: float | None) -> Run:
    return Run(verdict, figures, folder="../../x/1", gates=tuple(gates), verdict_but_gates=but_gates)


def sample(*values: float | None, name: str = "recovery_seconds", label: str = "mecefo", **changes: Any) -> Sample:
    """A sample whose runs have these values of one figure."""
    runs = [run(**{name: value}) for value in values]
    known = {"experiment_hash": "a", "experiment": EXPERIMENT, "machine": {"cores": 2}, "runs": runs, **changes}
    return Sample(label, **known)


def run_set(*samples: Sample, kind: Any = "comparison", status: Any = "complete") -> RunSet:
    return RunSet(kind, "kill-node", "2026-01-01T00:00:00+00:00", len(samples[0].runs), samples, status)


def gate(expression: str, value: float | None, reason: str | None = None) -> GateResult:
    return GateResult(expression, value, reason=reason)
