"""The step-and-commit rule: what becomes of the step in flight when members are lost.

A step is committed when every living member has its reduced gradients. So at a regroup, where every survivor says what
it has: if all of them have the gradients, the step is committed, whether or not somebody, dead or alive, has applied
it already; if not, nobody can have applied it, since nobody gets the totals before everybody has the gradients, and it
is repeated from unchanged parameters. No step is lost, no sample is used twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from mecefo_runtime.training.health import StepVerdict

Report = Mapping[str, Any]
"""What a survivor has: `committed_step` (the last one applied) with its `totals`, and `ready`.

`ready` is None, or says of a step whose reduced gradients the survivor holds unapplied: `step`, the `norms` of its
units, the `step stats` if it holds the head, and the `totals` if it knows them."""


class RuleBroken(RuntimeError):
    """A survivor applied a step whose gradients another one does not have: a bug, and never to be papered over."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`committed_step` is the last step that counts; `commit` says {step, totals} to those who have yet to apply it."""

    committed_step: int
    commit: dict[str, Any] | None


def decide(reports: Sequence[Report]) -> Decision:
    """Apply the rule to the reports of all survivors that hold state.

    Raises:
        RuleBroken: they contradict it.
    """
    committed = max((int(report["committed_step"]) for report in reports), default=0)
    behind = [report for report in reports if report["committed_step"] < committed]
    if behind:
        if any(lacks_step(report, committed) for report in behind):
            raise RuleBroken(f"a rank applied step {committed} before all had its gradients")
        # Not computed anew: the holders of a layer must apply the very same numbers.
        totals = next(report["totals"] for report in reports if report["committed_step"] == committed)
        return Decision(committed, {"step": committed, "totals": totals})
    ready = [report["ready"] for report in reports]
    if not ready or any(r is None or r["step"] != committed + 1 for r in ready):
        return Decision(committed, None)
    totals = next((r["totals"] for r in ready if r["totals"] is not None), None) or _totals(ready)
    # A step that is not finite would not have been committed by the members either (see `health`).
    if totals is None or not (isfinite(totals["squared_norm"]) and isfinite(totals["tally"]["loss_sum"])):
        return Decision(committed, None)
    return Decision(committed + 1, {"step": committed + 1, "totals": totals})


def lacks_step(report: Report, step: int) -> bool:
    """Whether the survivor has neither applied `step` nor its reduced gradients."""
    return bool(report["committed_step"] < step and (report["ready"] or {}).get("step") != step)


def _totals(ready: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The totals from the survivors' parts; None when the head is lost with all its holders, and the job with it."""
    norms: dict[str, float] = {}
    for part in ready:
        norms |= part["norms"]
    stats = next((part["tally"] for part in ready if part["tally"] is not None), None)
    if stats is None:
        return None
    squared_norm = sum(norms[unit] for unit in sorted(norms))
    return {"squared_norm": squared_norm, "tally": stats, "verdict": int(StepVerdict.COMMIT)}
