"""Changing what goes over the links between containers, from outside: firewall rules in the networks that they are in.

A node's network belongs to a container beside the node's own (`holder`), which alone may change it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from chaos.errors import EnvironmentFailure, InjectionError
from chaos.faults.base import End
from chaos.host.links.check import name_of
from chaos.host.links.firewall import FirewallRecord, read_time, restore_text, run_inside, telling_time
from harness.backends.docker.container import COORDINATOR
from harness.network.link_queries import LinkQueries
from harness.network.links import all_over, places_of, rules_for
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.reason import Reason

# Asks the holder of a part's network something, and waits so long for the answer.
Ask = Callable[[str, Mapping[str, Any], float], Awaitable[Mapping[str, Any]]]


class ContainerLinks(LinkQueries):
    """The links among nodes that are containers; see `chaos.faults.base.LinkHost`. A rank's are those of its node.

    `holders` are the containers that hold the networks, and `addresses` those of the networks, by part (`node-3`,
    `coordinator`); `engine` is where the containers are, and `mark` tells this run's rules from all others.
    """

    def __init__(
        self,
        cluster: Cluster,
        holders: Mapping[str, str],
        addresses: Mapping[str, str],
        engine: str,
        mark: str,
        ask: Ask,
    ) -> None:
        self._cluster = cluster
        self._holders = holders
        self._addresses = addresses
        self._engine = engine
        self._mark = mark
        self._ask_holder = ask
        self._num_planned = 0

    def ends(self) -> tuple[End, ...]:
        """The coordinator and the nodes, by name."""
        return tuple(self._addresses)

    def sharing_network(self, rank: int) -> tuple[int, ...]:
        """The ranks of its node."""
        return tuple(self._cluster.ranks_of(self._cluster.node_of(rank)))

    def plan_rules(self, links: tuple[tuple[End, End], ...], rule: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One record for each network in which something is to be done; `rule` as in `NamespaceLinks`.

        Raises:
            InjectionError: a link has both ends on one node.
        """
        at: dict[str, dict[tuple[str, str], None]] = {}
        for link in links:
            near, far = map(self._part, link)
            if near == far:
                raise InjectionError(Reason("no_link_between", link=name_of(link), near=near))
            for end, chain, peer in places_of(near, far, str(rule["action"]), str(rule.get("way", "both"))):
                # Many links between ranks can be one between their nodes.
                at.setdefault(str(end), {})[chain, str(peer)] = None
        return [self._plan(part, list(places), rule) for part, places in at.items()]

    def _plan(self, part: str, places: list[tuple[str, str]], rule: Mapping[str, Any]) -> dict[str, Any]:
        self._num_planned += 1
        number, action = self._num_planned, str(rule["action"])
        comment = f"chaos:{self._mark}:{number}"
        is_shaped = action == "shape"
        return FirewallRecord(
            at=part,
            engine=self._engine,
            container=self._holders[part],
            comment=comment,
            rules=tuple(
                tuple(words)
                for chain, peer in places
                for words in rules_for(chain, self._addresses[peer], action, number, comment)
            ),
            queue=number if is_shaped else None,
            shape={key: rule[key] for key in rule if key not in ("action", "way")} if is_shaped else None,
        ).to_json()

    async def apply_rules(self, records: list[dict[str, Any]]) -> float:
        """Add the planned rules, those of one network all at once; returns when the first of them took effect."""
        return min(await all_over(*(self._apply(FirewallRecord.from_json(record)) for record in records)))

    async def _apply(self, record: FirewallRecord) -> float:
        if record.queue is not None:
            question = {"do": "shape", "queue": record.queue, "shape": record.shape}
            await self._ask_at(record.at, question, 0.0)
        text = restore_text("-I", record.rules)
        began, command = time.monotonic(), telling_time(["iptables-restore", "--noflush"])
        adding = asyncio.create_task(asyncio.to_thread(run_inside, record, command, text))
        try:
            return read_time(await asyncio.shield(adding), began)
        except OSError as error:
            raise EnvironmentFailure(f"rules cannot be added at {record.at}: {error}") from error
        finally:
            # A thread continues, and whoever gives up undoes: no rule may come after that.
            with suppress(OSError):
                await adding

    async def close(self) -> None:
        """Nothing of it outlives the networks."""

    async def _ask(self, link: tuple[End, End], timeout_seconds: float, question: Mapping[str, Any]) -> dict[str, Any]:
        near, far = map(self._part, link)
        whole = {**question, "to": self._addresses[far], "timeout_seconds": timeout_seconds}
        return await self._ask_at(near, whole, timeout_seconds)

    async def _ask_at(self, part: str, question: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
        answer = await self._ask_holder(part, question, timeout_seconds)
        if "error" in answer:
            raise EnvironmentFailure(f"at {part}: {answer['error']}")
        return {key: value for key, value in answer.items() if key not in ("reply", "id")}

    def _part(self, end: End) -> str:
        """Where an end is; a link to the coordinator goes to its own container."""
        if isinstance(end, int):
            return f"node-{self._cluster.node_of(end)}"
        if end in self._addresses:
            return end
        # A command has none: there, its ranks meet at node 0.
        return COORDINATOR if COORDINATOR in self._addresses else "node-0"
