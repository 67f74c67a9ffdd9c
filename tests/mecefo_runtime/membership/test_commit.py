"""The step-and-commit rule by itself: what the survivors' reports make of the step in flight."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from mecefo_runtime.membership.commit import Decision, RuleBroken, decide, lacks_step
from mecefo_runtime.training.health import StepVerdict

pytestmark = pytest.mark.unit

TALLY = {"loss_sum": 12.5, "tokens": 8, "samples": 2, "checksum": 99}
TOTALS = {"squared_norm": 7.0, "tally": TALLY, "verdict": 0}


def report(committed: int, ready: dict[str, Any] | None = None, totals: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"committed_step": committed, "totals": totals, "ready": ready}


def gradients(
    step: int, norms: dict[str, float], stats: dict[str, Any] | None = None, totals: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"step": step, "norms": norms, "tally": stats, "totals": totals}


def test_totals_that_nobody_has_are_put_together_from_the_survivors_parts() -> None:
    reports = [
        report(4, gradients(5, {"embedding": 1.0, "layer.0": 2.0})),
        # Two holders of one unit have the same sum of squares.
        report(4, gradients(5, {"layer.0": 2.0, "head": 4.0}, TALLY)),
    ]
    assert decide(reports) == Decision(5, {"step": 5, "totals": {**TOTALS, "verdict": int(StepVerdict.COMMIT)}})


def test_totals_that_somebody_knows_are_not_computed_anew() -> None:
    known = {**TOTALS, "squared_norm": 7.000001, "verdict": int(StepVerdict.SKIP)}
    reports = [report(4, gradients(5, {"layer.0": 3.0}, TALLY)), report(4, gradients(5, {"head": 4.0}, TALLY, known))]
    assert decide(reports) == Decision(5, {"step": 5, "totals": known})


def test_what_one_has_applied_all_apply_with_its_totals() -> None:
    older = {**TOTALS, "squared_norm": 1.0}
    reports = [report(4, gradients(5, {"layer.0": 3.0}), older), report(5, None, TOTALS)]
    assert decide(reports) == Decision(5, {"step": 5, "totals": TOTALS})


@pytest.mark.parametrize(
    "ready",
    [None, gradients(4, {"layer.0": 3.0}, TALLY), gradients(6, {"layer.0": 3.0}, TALLY)],
    ids=["nothing", "the step before", "a later step"],
)
def test_a_step_that_one_survivor_lacks_is_repeated(ready: dict[str, Any] | None) -> None:
    assert decide([report(4, gradients(5, {"head": 4.0}, TALLY)), report(4, ready)]) == Decision(4, None)


def test_without_the_head_nobody_knows_the_totals() -> None:
    assert decide([report(4, gradients(5, {"layer.0": 3.0}))]) == Decision(4, None)
    assert decide([]) == Decision(0, None)


@pytest.mark.parametrize(
    ("norm", "loss_sum"), [(nan, 12.5), (inf, 12.5), (1.0, nan), (1.0, inf)], ids=["norm", "norm", "loss", "loss"]
)
def test_a_step_that_is_not_finite_is_not_committed(norm: float, loss_sum: float) -> None:
    stats = {**TALLY, "loss_sum": loss_sum}
    assert decide([report(4, gradients(5, {"head": norm}, stats))]) == Decision(4, None)


def test_a_survivor_that_cannot_follow_breaks_the_rule() -> None:
    for behind in (report(4), report(4, gradients(4, {})), report(3, gradients(4, {}))):
        assert lacks_step(behind, 5)
        with pytest.raises(RuleBroken, match="before all had its gradients"):
            decide([report(5, None, TOTALS), behind])
    assert not lacks_step(report(5), 5)
    assert not lacks_step(report(4, gradients(5, {})), 5)
