"""The step-and-commit rule: what becomes of the step in flight when members are lost.

A step is committed when every living member has its reduced gradients and it is fit for that. So at a regroup, where
every survivor says what it has: if all of them have the gradients, the step is committed, whether or not somebody, dead
or alive, has applied it already; if not, nobody can have applied it, since nobody gets the totals before everybody has
the gradients, and it is done again from unchanged parameters, or completed: what survivors have computed of it still
counts (see `completion`). No step is lost, no sample is used twice.

Whether it is fit the leader says. Where no survivor has heard that, it is judged here, as the leader would have: by the
same function, from what the survivors say of their own parts, and of lost ones whose parameters they saw to differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mecefo_runtime.comm.messages import RankReport
from mecefo_runtime.job.config import HealthConfig
from mecefo_runtime.job.contribution import Contribution
from mecefo_runtime.job.step_report import (
    NO_HISTORY,
    HealthHistory,
    LateCommit,
    PartHealth,
    ReadyStep,
    StepTotals,
    StepVerdict,
)
from mecefo_runtime.step.health import Judgement, after_commit, judge


class RuleBroken(RuntimeError):
    """A survivor applied a step whose gradients another one does not have: a bug that must not be hidden."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`committed_step` is the last step that counts; `commit` is for those who have yet to apply it.

    `history` is what the members' judgements begin with. `judgement` is set when the step in flight was judged here.
    `contributions` are what ranks have computed of the step after it, as far as no verdict stands against it.
    """

    committed_step: int
    commit: LateCommit | None = None
    history: HealthHistory = NO_HISTORY
    judgement: Judgement | None = None
    contributions: Mapping[int, Contribution] = field(default_factory=dict)


def decide(reports: Mapping[int, RankReport], health: HealthConfig) -> Decision:
    """Apply the rule to the reports of all survivors that hold state, by rank.

    Raises:
        RuleBroken: they contradict it.
    """
    decision = _decide(reports, health)
    if decision.judgement is not None and decision.commit is None:
        return decision
    step, num_verdicts = decision.committed_step + 1, decision.history.num_verdicts
    said = {rank: report.contribution for rank, report in reports.items() if report.contribution is not None}
    counting = {rank: one for rank, one in said.items() if (one.step, one.num_verdicts) == (step, num_verdicts)}
    return replace(decision, contributions=counting)


def _decide(reports: Mapping[int, RankReport], health: HealthConfig) -> Decision:
    committed = max((report.committed_step for report in reports.values()), default=0)
    history = newest_history(reports)
    behind = [report for report in reports.values() if report.committed_step < committed]
    if behind:
        if any(lacks_step(report, committed) for report in behind):
            raise RuleBroken(f"a rank applied step {committed} before all had its gradients")
        # Not computed again: the holders of a layer must apply the very same numbers.
        known = next(report.totals for report in reports.values() if report.committed_step == committed)
        assert known is not None
        return Decision(committed, LateCommit(committed, known), history)
    ready = {rank: report.ready for rank, report in reports.items() if report.ready is not None}
    if not reports or len(ready) < len(reports) or any(part.step != committed + 1 for part in ready.values()):
        return Decision(committed, history=history)
    totals = next((part.totals for part in ready.values() if part.totals is not None), None)
    judgement = None
    if totals is None:
        summed = _sums(ready)
        if summed is None:
            return Decision(committed, history=history)
        judgement = judge(health, history, committed + 1, summed.stats.loss_sum, summed.squared_norm, _parts(ready))
        if judgement.verdict not in (StepVerdict.COMMIT, StepVerdict.SKIP):
            return Decision(committed, None, history, judgement)
        totals = StepTotals(summed.squared_norm, summed.stats, judgement.verdict)
    commit = LateCommit(committed + 1, totals)
    return Decision(committed + 1, commit, after_commit(health, history, totals), judgement)


def lacks_step(report: RankReport, step: int) -> bool:
    """Whether the survivor has neither applied `step` nor its reduced gradients."""
    return report.committed_step < step and (report.ready is None or report.ready.step != step)


def newest_history(reports: Mapping[int, RankReport]) -> HealthHistory:
    """The history of the member that has heard most verdicts; all histories are prefixes of it."""
    return max((report.history for report in reports.values()), key=lambda h: h.num_verdicts, default=NO_HISTORY)


def _sums(ready: Mapping[int, ReadyStep]) -> StepTotals | None:
    """The sums from the survivors' parts; None when the head is lost with all its holders, and the job with it."""
    norms: dict[str, float] = {}
    for part in ready.values():
        norms |= part.norms
    stats = next((part.stats for part in ready.values() if part.stats is not None), None)
    return None if stats is None else StepTotals(sum(norms[unit] for unit in sorted(norms)), stats)


def _parts(ready: Mapping[int, ReadyStep]) -> dict[int, PartHealth]:
    odd = {rank for part in ready.values() for rank in part.odd_ranks}
    return {rank: PartHealth(differs=True) for rank in odd} | {rank: part.part for rank, part in ready.items()}
