"""Caps on the blast radius: how much of the job may be affected at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field, PlainValidator, WithJsonSchema

from chaos.errors import UsageError, shown
from chaos.experiment.fields import Said
from chaos.language.validation_errors import said
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.reason import Reason


def _ratio(value: object) -> float:
    text = value.strip() if isinstance(value, str) else ""
    try:
        if text.endswith("%") and text.isascii():
            ratio = float(text[:-1]) / 100
        else:
            ratio = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise UsageError(f"must be 0% to 100%, or 0 to 1, not {shown(value)}")
    return ratio


_RATIO_SCHEMA = {
    "anyOf": [{"type": "string", "examples": ["50%"]}, {"type": "number", "minimum": 0, "maximum": 1}],
}

RatioText = Annotated[float, PlainValidator(said(_ratio)), WithJsonSchema(_RATIO_SCHEMA)]


class Limits(Said):
    """How much may be affected at once: nodes and ranks at most, and the share of ranks that is left alone at least.

    A rank counts while a fault is active on it: until it is repaired, or for the fault's lifetime. Its node counts
    with it, and a link with the ranks at both of its ends.
    """

    max_nodes: int | None = Field(default=None, ge=1, description="maximum number of nodes affected at once")
    max_ranks: int | None = Field(default=None, ge=1, description="maximum number of ranks affected at once")
    min_healthy: RatioText | None = Field(default=None, description="minimum share of ranks left unaffected")

    def violation(self, affected: Collection[int], cluster: Cluster) -> Reason | None:
        """Which limit the ranks `affected` at once are beyond, and by how much; None when they are within all."""
        ranks = set(affected)
        nodes = {cluster.node_of(rank) for rank in ranks}
        if self.max_nodes is not None and len(nodes) > self.max_nodes:
            return Reason("max_nodes", nodes=len(nodes), limit=self.max_nodes)
        if self.max_ranks is not None and len(ranks) > self.max_ranks:
            return Reason("max_ranks", ranks=len(ranks), limit=self.max_ranks)
        healthy = cluster.num_ranks - len(ranks)
        if self.min_healthy is not None and healthy < self.min_healthy * cluster.num_ranks:
            return Reason("min_healthy", healthy=healthy, ranks=cluster.num_ranks, limit=self.min_healthy)
        return None
