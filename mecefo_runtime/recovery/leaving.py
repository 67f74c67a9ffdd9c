"""A regroup while nodes are leaving: which ranks end with it, and which stay until their state has moved.

Those who are leaving hold nothing in the new layout. Where the others have all its state, they end before it begins.
Where not, or where state is fetched in the background, they stay members until they have given what they hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mecefo_runtime.recovery.commit import Decision
from mecefo_runtime.recovery.regroup import CannotGoOn, RegroupPlan, Rules, Survivors, plan_epoch


@dataclass(frozen=True, slots=True)
class Leave:
    """The next epoch, the ranks that are `dismissed` before it, and why all have to stay, None: they have not."""

    plan: RegroupPlan
    dismissed: frozenset[int] = frozenset()
    why_all_stay: str | None = None


def plan_leave(rules: Rules, survivors: Survivors, decision: Decision, reason: str) -> Leave:
    """Plan the next epoch so that the ranks that are leaving can go, as soon as nothing is lost with them.

    Raises:
        CannotGoOn: there is no way to continue, with them or without.
    """
    leaving = survivors.leaving
    try:
        plan = plan_epoch(rules, survivors, decision, reason)
    except CannotGoOn as error:
        if not leaving:
            raise
        # They will be lost, but until then the job can continue with them.
        return Leave(
            plan_epoch(rules, replace(survivors, leaving=frozenset()), decision, reason), why_all_stay=str(error)
        )
    if not leaving or plan.background:
        return Leave(plan)
    others = replace(
        survivors,
        reports={rank: report for rank, report in survivors.reports.items() if rank not in leaving},
        newcomers=tuple(rank for rank in survivors.newcomers if rank not in leaving),
        leaving=frozenset(),
    )
    try:
        alone = plan_epoch(rules, others, decision, reason)
    except CannotGoOn:
        return Leave(plan)
    is_as_good = alone.returns_to == plan.returns_to and alone.starts_anew == plan.starts_anew
    if not is_as_good or set(alone.stored_sources) - set(plan.stored_sources):
        return Leave(plan)
    return Leave(alone, leaving)
