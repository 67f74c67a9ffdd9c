"""The causes of a failed run, to compare whether two runs fail in the same way."""

from __future__ import annotations

from dataclasses import dataclass

from harness.judging.summary import Summary
from harness.judging.verdict import GATE_FAILED, HALT_CONDITION, LOSS_NOT_FINITE
from mecefo_runtime.system.reason import Reason, Table

_FAILED = ("fail", "halted", "dirty")
CAUSES = Table(
    {
        GATE_FAILED: "{gate}",
        "state_differs": "state differs between the ranks that hold it",
        LOSS_NOT_FINITE: "the loss is not finite",
        "job_died": "the job died",
        HALT_CONDITION: "a halt condition became true: {condition}",
        "left_behind": "something was left behind",
    }
)
"""The causes, and what `chaos shrink` calls them."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The verdict, and what it came from."""

    verdict: str
    causes: frozenset[Reason]

    def is_like(self, other: Failure | None) -> bool:
        """Whether both have the verdict and at least one cause in common."""
        return other is not None and self.verdict == other.verdict and bool(self.causes & other.causes)

    def __str__(self) -> str:
        return f"{self.verdict} ({'; '.join(sorted(map(CAUSES.text, self.causes)))})"


def failure_of(summary: Summary) -> Failure | None:
    """The failure that `summary` tells of; None of a run that passed, or of which nothing is known."""
    verdict = summary.verdict
    if verdict not in _FAILED:
        return None
    causes = {Reason(GATE_FAILED, gate=gate.expression) for gate in summary.gates if gate.passed is False}
    if summary.diverged_units:
        causes.add(Reason("state_differs"))
    if summary.first_non_finite_loss_step is not None:
        causes.add(Reason(LOSS_NOT_FINITE))
    if summary.job_outcome == "failed":
        causes.add(Reason("job_died"))
    if verdict == "halted":
        conditions = (one for one in summary.reason_codes if one.code == HALT_CONDITION)
        causes |= {Reason(HALT_CONDITION, condition=one.get("condition") or "not recorded") for one in conditions}
    if verdict == "dirty":
        causes.add(Reason("left_behind"))
    return Failure(verdict, frozenset(causes)) if causes else None
