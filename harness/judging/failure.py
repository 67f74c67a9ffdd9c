"""The causes of a failed run, to compare whether two runs fail in the same way."""

from __future__ import annotations

from dataclasses import dataclass

from harness.judging.summary import Summary

_FAILED = ("fail", "halted", "dirty")


@dataclass(frozen=True, slots=True)
class Failure:
    """The verdict, and what it came from: failed gates by their expressions, and other causes by a word."""

    verdict: str
    causes: frozenset[str]

    def is_like(self, other: Failure | None) -> bool:
        """Whether both have the verdict and at least one cause in common."""
        return other is not None and self.verdict == other.verdict and bool(self.causes & other.causes)

    def __str__(self) -> str:
        return f"{self.verdict} ({'; '.join(sorted(self.causes))})"


def failure_of(summary: Summary) -> Failure | None:
    """The failure that `summary` tells of; None of a run that passed, or of which nothing is known."""
    verdict = summary.verdict
    if verdict not in _FAILED:
        return None
    causes = {gate.expression for gate in summary.gates if gate.passed is False}
    if summary.diverged_units:
        causes.add("state differs between the ranks that hold it")
    if summary.first_non_finite_loss_step is not None:
        causes.add("the loss is not finite")
    if summary.job_outcome == "failed":
        causes.add("the job died")
    if verdict == "halted":
        causes |= {reason for reason in summary.reasons if "halt condition" in reason}
    if verdict == "dirty":
        causes.add("something was left behind")
    return Failure(verdict, frozenset(causes)) if causes else None
