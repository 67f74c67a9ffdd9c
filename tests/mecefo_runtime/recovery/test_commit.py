"""The step-and-commit rule by itself: what the survivors' reports make of the step in flight."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.comm.messages import RankReport
from mecefo_runtime.job.config import HealthConfig
from mecefo_runtime.job.step_report import (
    HealthHistory,
    LateCommit,
    PartHealth,
    ReadyStep,
    StepStats,
    StepTotals,
    StepVerdict,
)
from mecefo_runtime.recovery.commit import Decision, RuleBroken, decide, lacks_step
from mecefo_runtime.step.health import after_commit, judge

pytestmark = pytest.mark.unit

HEALTH = HealthConfig(window_steps=4)
STATS = StepStats(12.5, tokens=8, samples=2, checksum=99)
TOTALS = StepTotals(7.0, STATS)
USUAL = HealthHistory(norms=(1.0,) * 4, num_verdicts=4)
"""After steps of gradients of norm 1."""


def report(committed: int, ready: ReadyStep | None = None, totals: StepTotals | None = None, **more: Any) -> RankReport:
    return RankReport(committed_step=committed, totals=totals, ready=ready, **more)


def gradients(
    step: int, norms: dict[str, float], stats: StepStats | None = None, totals: StepTotals | None = None, **more: Any
) -> ReadyStep:
    return ReadyStep(step, norms, stats, totals=totals, **{"part": PartHealth(1.0), **more})


def decided(*reports: RankReport, health: HealthConfig = HEALTH) -> Decision:
    return decide(dict(enumerate(reports)), health)


def outcome(decision: Decision) -> tuple[int, LateCommit | None]:
    return decision.committed_step, decision.commit


def test_totals_that_nobody_has_are_put_together_from_the_survivors_parts() -> None:
    reports = [
        report(4, gradients(5, {"embedding": 1.0, "layer.0": 2.0})),
        # Two holders of one unit have the same sum of squares.
        report(4, gradients(5, {"layer.0": 2.0, "head": 4.0}, STATS)),
    ]
    assert outcome(decided(*reports)) == (5, LateCommit(5, TOTALS))


def test_totals_that_somebody_knows_are_not_computed_anew() -> None:
    known = StepTotals(7.000001, STATS, StepVerdict.SKIP)
    reports = [report(4, gradients(5, {"layer.0": 3.0}, STATS)), report(4, gradients(5, {"head": 4.0}, STATS, known))]
    assert outcome(decided(*reports)) == (5, LateCommit(5, known))
    assert decided(*reports).judgement is None


def test_what_one_has_applied_all_apply_with_its_totals() -> None:
    older = replace(TOTALS, squared_norm=1.0)
    reports = [report(4, gradients(5, {"layer.0": 3.0}), older), report(5, None, TOTALS)]
    assert outcome(decided(*reports)) == (5, LateCommit(5, TOTALS))


@pytest.mark.parametrize(
    "ready",
    [None, gradients(4, {"layer.0": 3.0}, STATS), gradients(6, {"layer.0": 3.0}, STATS)],
    ids=["nothing", "the step before", "a later step"],
)
def test_a_step_that_one_survivor_lacks_is_repeated(ready: ReadyStep | None) -> None:
    assert outcome(decided(report(4, gradients(5, {"head": 4.0}, STATS)), report(4, ready))) == (4, None)


def test_without_the_head_nobody_knows_the_totals() -> None:
    assert outcome(decided(report(4, gradients(5, {"layer.0": 3.0})))) == (4, None)
    assert outcome(decided()) == (0, None)


@pytest.mark.parametrize(
    ("norm", "loss_sum"), [(nan, 12.5), (inf, 12.5), (1.0, nan), (1.0, inf)], ids=["norm", "norm", "loss", "loss"]
)
def test_a_step_that_is_not_finite_is_not_committed(norm: float, loss_sum: float) -> None:
    stats = replace(STATS, loss_sum=loss_sum)
    assert outcome(decided(report(4, gradients(5, {"head": norm}, stats)))) == (4, None)


def test_a_survivor_that_cannot_follow_breaks_the_rule() -> None:
    for behind in (report(4), report(4, gradients(4, {})), report(3, gradients(4, {}))):
        assert lacks_step(behind, 5)
        with pytest.raises(RuleBroken, match="before all had its gradients"):
            decided(report(5, None, TOTALS), behind)
    assert not lacks_step(report(5), 5)
    assert not lacks_step(report(4, gradients(5, {})), 5)


# ---- a step that no leader has judged ----


def unjudged(norm: float = 1.0, stats: StepStats = STATS, history: HealthHistory = USUAL, **more: Any) -> RankReport:
    return report(4, gradients(5, {"head": norm**2}, stats, **more), history=history)


def test_an_outlier_that_no_leader_has_judged_is_repeated_and_its_repetition_is_committed() -> None:
    first = decided(unjudged(1e6))
    assert outcome(first) == (4, None)
    assert first.judgement is not None and first.judgement.verdict is StepVerdict.REPEAT
    repeated = replace(USUAL, repeated_step=5, num_repeats=1, num_verdicts=5)
    assert outcome(decided(unjudged(1e6, history=repeated)))[0] == 5


def test_an_outlier_that_no_leader_has_judged_is_skipped_where_the_policy_says_so() -> None:
    decision = decided(unjudged(1e6), health=replace(HEALTH, outlier="skip"))
    assert outcome(decision) == (5, LateCommit(5, StepTotals(1e12, STATS, StepVerdict.SKIP)))
    assert decision.history.norms == USUAL.norms, "what is skipped says nothing of what is usual"


def test_a_step_that_is_not_finite_is_skipped_or_committed_where_the_policy_says_so() -> None:
    skipped = decided(unjudged(nan), health=replace(HEALTH, nonfinite="skip"))
    assert skipped.commit is not None and skipped.commit.totals.verdict is StepVerdict.SKIP
    committed = decided(unjudged(nan), health=replace(HEALTH, nonfinite="commit"))
    assert committed.commit is not None and committed.commit.totals.verdict is StepVerdict.COMMIT


@pytest.mark.parametrize("part", [PartHealth(1.0, differs=True), PartHealth(1.0, is_corrupted=True)])
def test_nothing_is_committed_that_was_computed_with_state_to_be_healed(part: PartHealth) -> None:
    decision = decided(unjudged(), unjudged(part=part))
    assert outcome(decision) == (4, None)
    assert decision.judgement is not None and decision.judgement.verdict is StepVerdict.HEAL


def test_a_lost_rank_whose_state_its_peers_saw_to_differ_spoils_the_step_too() -> None:
    decision = decided(unjudged(), unjudged(odd_ranks=(7,)))
    assert outcome(decision) == (4, None)
    assert decision.judgement is not None and decision.judgement.suspects == (7,)


def test_the_members_judge_by_the_same_history_whoever_committed_the_last_step() -> None:
    applied = replace(USUAL, norms=(1.0, 1.0, 1.0, 7.0**0.5), num_verdicts=5)
    late = decided(report(4, gradients(5, {"head": 7.0}), history=USUAL), report(5, None, TOTALS, history=applied))
    assert late.history == applied
    nobody = decided(unjudged(7.0**0.5))
    assert nobody.commit is not None and nobody.history == after_commit(HEALTH, USUAL, nobody.commit.totals)
    assert nobody.history.norms == pytest.approx(applied.norms)


POLICIES = st.sampled_from(["repeat", "skip", "evict", "commit"])
NORMS = st.sampled_from([0.5, 1.0, 40.0, 1e3, 1e6, inf, nan])
PARTS = st.builds(PartHealth, NORMS, st.booleans(), st.booleans(), st.booleans())


@given(
    health=st.builds(HealthConfig, POLICIES, POLICIES, window_steps=st.just(4), max_repeats=st.integers(0, 2)),
    history=st.builds(
        HealthHistory,
        st.lists(st.sampled_from([0.5, 1.0, 2.0]), max_size=4).map(tuple),
        st.sampled_from([4, 5]),
        st.integers(0, 3),
        st.sampled_from([4, 5]),
        st.integers(0, 3),
        st.integers(0, 9),
    ),
    norms=st.lists(NORMS, min_size=2, max_size=4),
    loss_sum=st.sampled_from([1.0, nan, inf]),
    parts=st.lists(PARTS, min_size=4, max_size=4),
)
def test_the_coordinator_judges_as_the_leader_would(
    health: HealthConfig, history: HealthHistory, norms: list[float], loss_sum: float, parts: list[PartHealth]
) -> None:
    stats = replace(STATS, loss_sum=loss_sum)
    reports = {
        rank: report(4, gradients(5, {f"layer.{rank}": norm}, stats, part=parts[rank]), history=history)
        for rank, norm in enumerate(norms)
    }
    told = {rank: parts[rank] for rank in reports}
    leaders = judge(health, history, 5, loss_sum, sum(norms), told)
    decision = decide(reports, health)
    assert decision.judgement == leaders
    if leaders.verdict in (StepVerdict.COMMIT, StepVerdict.SKIP):
        assert decision.committed_step == 5
        assert decision.commit is not None and decision.commit.totals.verdict is leaders.verdict
    else:
        assert outcome(decision) == (4, None)


@given(lost=st.integers(0, 3), parts=st.lists(PARTS, min_size=4, max_size=4), norm=st.sampled_from([1.0, 1e3]))
def test_what_a_leader_may_have_committed_before_it_was_lost_is_committed_without_it(
    lost: int, parts: list[PartHealth], norm: float
) -> None:
    """Somebody dead may have applied it: then it must not be computed again."""
    everybody = dict(enumerate(parts))
    reports = {rank: report(4, gradients(5, {"head": norm}, STATS, part=part)) for rank, part in everybody.items()}
    if judge(HEALTH, HealthHistory(), 5, STATS.loss_sum, norm, everybody).verdict is StepVerdict.COMMIT:
        del reports[lost]
        assert decide(reports, HEALTH).committed_step == 5
