"""A partitioned network: groups of ranks that reach only each other, and the coordinator's group."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from chaos.faults.base import Act, FaultContext, RunContext
from chaos.faults.network.link import LinkFault, act_on_ranks
from chaos.faults.network.presence import Side
from chaos.host.links.check import COORDINATOR, Link, check_groups, parse_groups
from chaos.language.target import ResolvedTarget, Scope


class PartitionParameters(BaseModel):
    """Who can still reach whom."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    groups: str = Field(
        examples=["0,1|2,3", "0,1,coordinator|2,3"],
        description="groups of ranks; every rank is in one, and all reach a coordinator that is in none",
    )

    @field_validator("groups")
    @classmethod
    def _are_groups(cls, text: str) -> str:
        parse_groups(text)
        return text


class Partition(LinkFault[PartitionParameters]):
    """Splits the job's network into groups of ranks: no packet goes from one group to another.

    All still reach the coordinator, unless it is named as a member of one group: then the others have none.
    """

    kind: ClassVar[str] = "partition"
    brief: ClassVar[str] = "split ranks into groups"
    scope: ClassVar[Scope] = "job"
    Parameters: ClassVar[type[BaseModel]] = PartitionParameters

    def __init__(self, parameters: PartitionParameters) -> None:
        super().__init__(parameters)
        self._groups = parse_groups(parameters.groups)
        self._supervisors: tuple[str, ...] = ()

    def check(self, target: ResolvedTarget, run: RunContext) -> None:
        """Refuse groups that are not a partition of the job's ranks, or that split a host."""
        check_groups(self._groups, run.cluster, ranks_are_hosts=run.ranks_are_hosts)

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Plan the rules, those of the hosts that are to have no coordinator with them."""
        if context.links is not None and context.cluster is not None:
            names = {f"node-{context.cluster.node_of(rank)}" for rank in self._without_coordinator()}
            self._supervisors = tuple(end for end in context.links.ends() if isinstance(end, str) and end in names)
        return super().prepare(target, context)

    def _act(self, target: ResolvedTarget, context: FaultContext, record: Mapping[str, Any]) -> Act:
        if not (alone := self._without_coordinator()):
            return super()._act(target, context, record)
        return act_on_ranks(alone, context, record)

    def _links(self, target: ResolvedTarget) -> tuple[Link, ...]:
        pairs = (pair for one, other in combinations(self._groups, 2) for pair in product(one.ranks, other.ranks))
        among_ranks: list[Link] = sorted((min(pair), max(pair)) for pair in pairs)
        alone: tuple[int | str, ...] = (*self._without_coordinator(), *self._supervisors)
        return (*among_ranks, *((end, COORDINATOR) for end in alone))

    def _sides(self, target: ResolvedTarget) -> tuple[Side, ...]:
        """Each group needs a member; the coordinator is always one."""
        return tuple(group.ranks for group in self._groups if not group.has_coordinator)

    def _without_coordinator(self) -> tuple[int, ...]:
        """The ranks that no longer reach it; none where it is in no group."""
        if not any(group.has_coordinator for group in self._groups):
            return ()
        return tuple(sorted(rank for group in self._groups if not group.has_coordinator for rank in group.ranks))
