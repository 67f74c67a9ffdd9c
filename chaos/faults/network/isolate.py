"""Hosts that are cut off: a whole node from everything, or a rank from the coordinator alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, ClassVar

from chaos.errors import InjectionError
from chaos.faults.base import Act, End, FaultContext, NoParameters, RunContext
from chaos.faults.network.link import LinkFault, act_on_ranks
from chaos.faults.network.presence import Side
from chaos.host.links.check import COORDINATOR, Link
from chaos.language.target import ResolvedTarget, Scope
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.reason import Reason


class _Isolation(LinkFault[NoParameters]):
    """Cuts links whose other ends are not in the target."""

    def check(self, target: ResolvedTarget, run: RunContext) -> None:
        """Any target will do."""

    def _act(self, target: ResolvedTarget, context: FaultContext, record: Mapping[str, Any]) -> Act:
        return act_on_ranks(target.ranks, context, record)


class IsolateNode(_Isolation):
    """Cuts every link of a node: no packet comes or goes, its processes continue."""

    kind: ClassVar[str] = "isolate-node"
    brief: ClassVar[str] = "cut all links of a node"
    scope: ClassVar[Scope] = "node"

    def __init__(self, parameters: NoParameters) -> None:
        super().__init__(parameters)
        self._ends: tuple[End, ...] = ()
        self._cluster: Cluster | None = None

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Plan the rules, at the node's own ends of all its links."""
        if context.links is not None:
            self._ends, self._cluster = context.links.ends(), context.cluster
        return super().prepare(target, context)

    def _links(self, target: ResolvedTarget) -> tuple[Link, ...]:
        here = [end for end in self._ends if end in target.ranks or end in {f"node-{node}" for node in target.nodes}]
        return tuple(product(here, (end for end in self._ends if end not in here)))

    def _sides(self, target: ResolvedTarget) -> tuple[Side, ...]:
        """Each node needs one rank; outside there is always the coordinator."""
        if self._cluster is None:
            return (target.ranks,)
        return tuple(tuple(self._cluster.ranks_of(node)) for node in target.nodes)


class DropCoordinatorLink(_Isolation):
    """Cuts the link between a rank and the coordinator, no other: packets vanish, nobody is told."""

    kind: ClassVar[str] = "drop-coordinator-link"
    brief: ClassVar[str] = "cut rank from coordinator"
    scope: ClassVar[Scope] = "rank"

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Plan the rules, at the rank's end."""
        if not target.ranks:
            raise InjectionError(Reason("no_rank", target=target))
        return super().prepare(target, context)

    def _links(self, target: ResolvedTarget) -> tuple[Link, ...]:
        return tuple((rank, COORDINATOR) for rank in target.ranks)
