"""Which layout another quality would have led to, after the same losses: a prediction for the log, without I/O."""

from __future__ import annotations

from mecefo_runtime.job.config import QUALITIES
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout, configured_layout
from mecefo_runtime.planners import NoLayout, Situation
from mecefo_runtime.prediction.step_time import step_seconds
from mecefo_runtime.recovery.regroup import Rules, plan_layout
from mecefo_runtime.system.job_records import OtherQualityPlanned


class OtherQuality:
    """The layouts of `rules.other_quality`, one epoch after the other.

    A planner prefers to keep what ran last and what ranks hold, so a layout depends on the ones before it.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._layout: Layout | None = None

    def plan(self, epoch: int, alive: frozenset[int], costs: Costs) -> OtherQualityPlanned | None:
        """What another quality would have led to in `epoch`, which is one of the ranks that are `alive`.

        None if the strategy has no quality, if every rank is alive, or if no layout is possible.
        """
        quality, cluster = self._rules.other_quality, self._rules.cluster
        if quality is None:
            return None
        limits, before = QUALITIES[quality], self._layout
        situation = Situation(
            cluster=cluster,
            alive=alive,
            costs=costs,
            current=before,
            holdings={} if before is None else {rank: frozenset(before.units(rank)) for rank in alive},
            degraded_share_limit=limits.degraded_share_limit,
            projected_share_limit=limits.projected_share_limit,
            placement=self._rules.placement,
        )
        try:
            layout = self._layout = plan_layout(self._rules, situation)
        except NoLayout:
            self._layout = None
            return None
        if len(alive) == cluster.num_ranks:
            return None
        return OtherQualityPlanned(
            epoch=epoch,
            quality=quality,
            degraded_layers=layout.num_degraded_layers,
            projected_layers=layout.num_projected_layers,
            predicted_step_seconds=step_seconds(layout, costs),
            failure_free_step_seconds=step_seconds(configured_layout(cluster), costs),
        )
