"""Each replica that lost ranks is made whole by the rest of it (MeCeFO) or masked by others (SPARe): what is faster.

Every replica holds the shards that SPARe gives it, and computes no others; one that lost all its ranks can only be
masked. Of the others those with the fewest ranks left are masked first: none of them, one, two, ..., and the layout
with the least predicted step time is taken, of equals the one that degrades least. No layer is projected.
"""

from __future__ import annotations

from dataclasses import replace

from mecefo_runtime.job.layout import Layout, configured_layout
from mecefo_runtime.planners import TOLERANCE_RATIO, NoLayout, Situation, WipeOut
from mecefo_runtime.planners._configured import survivors
from mecefo_runtime.planners._search import plan_shares
from mecefo_runtime.planners.spare import masked
from mecefo_runtime.prediction.step_time import step_seconds

PLACES_SHARDS = True
APPROXIMATES = "degrading"
# As with `spare`, no layout bridges the time until state has moved.
FIXED_SETTINGS = {"takeover": "direct"}


def plan(situation: Situation) -> Layout:
    """See `Planner`."""
    cluster, costs = situation.cluster, situation.costs
    configured = configured_layout(cluster)
    if len(situation.alive) == cluster.num_ranks:
        return configured
    left = survivors(situation, configured)
    if not left:
        raise NoLayout("no replica has a living rank left")
    hurt = sorted((len(ranks), number) for number, ranks in left.items() if len(ranks) < cluster.pipeline)
    found: list[Layout] = []
    refused: list[NoLayout] = []
    for num_masked in range(len(hurt) + 1):
        computing = left.keys() - {number for _, number in hurt[:num_masked]}
        try:
            found.append(_made_whole(situation, masked(situation, configured, computing)))
        except NoLayout as error:
            refused.append(error)
    if not found:
        # With the others back it can go on again, whatever memory says.
        raise next((error for error in refused if isinstance(error, WipeOut)), refused[0])
    least_seconds = min(step_seconds(layout, costs) for layout in found)
    as_fast = [layout for layout in found if step_seconds(layout, costs) <= least_seconds * (1 + TOLERANCE_RATIO)]
    return min(as_fast, key=_num_degraded)


def _made_whole(situation: Situation, layout: Layout) -> Layout:
    """`layout`, with what those of its replicas that lost ranks had over their survivors."""
    shares = {replica.replica: replica.num_microbatches for replica in layout.replicas}
    return replace(layout, replicas=plan_shares(situation, shares).replicas)


def _num_degraded(layout: Layout) -> int:
    """Degraded layers, each times the microbatches that go through it."""
    return sum(replica.num_microbatches * len(span.degraded) for replica in layout.replicas for span in replica.spans)
