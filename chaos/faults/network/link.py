"""Links between ranks' hosts: cut, reset or slowed. The backend decides how rules are implemented.

A link is seen from the network itself: that it carried traffic before, and what traffic on it does after. The rules
are planned before they are added, and each is in the undo record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chaos.errors import EffectNotSeen, EnvironmentFailure, InjectionError, TargetNotFound, UsageError
from chaos.faults.base import (
    Act,
    ConnectionHost,
    EndHost,
    Fault,
    FaultContext,
    Fidelity,
    LinkHost,
    NoParameters,
    RunContext,
)
from chaos.faults.network.look import Look, is_loss, look, probes_for_loss
from chaos.faults.network.presence import Presence, Side, absent
from chaos.host.links import remove_rules
from chaos.host.links.check import Link, check_link, name_of
from chaos.host.links.nccl_transport import read_routes, refuse_what_no_rule_touches
from chaos.host.run_files import LOGS_FOLDER
from chaos.host.undo_record import UndoRecord
from chaos.language.quantities import RateText, SecondsFromZeroText, rate_text
from chaos.language.target import ResolvedTarget, Scope
from chaos.language.trigger import Duration
from chaos.refusals import refusal_text
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.reason import Reason

NUM_PROBES = 5
PROBE_TIMEOUT_SECONDS = 0.5
DEFAULT_DELAY_SECONDS = 0.05
MIN_DELAY_SECONDS = 0.001
MIN_LOSS_RATIO = 0.01
# How much of a delay, and how much more than a rate, is taken for it.
SEEN_DELAY_RATIO = 0.9
SEEN_RATE_RATIO = 1.25
# How much more than a rate a link must carry without it, for the two to be told apart.
LIMITED_RATE_RATIO = 1.5
RATE_SECONDS = 1.0
TOLD_SECONDS = 2.0

ParametersT = TypeVar("ParametersT", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRecord(UndoRecord):
    """The links, and the rules on them, each as `chaos.host.links.RuleKind` of its sort knows it."""

    rules: tuple[Mapping[str, Any], ...] = ()
    links: tuple[tuple[int | str, int | str], ...] = ()

    def changed_paths(self) -> tuple[str, ...] | None:
        """Rules are no files."""
        return ()


class LinkFault(Fault[ParametersT]):
    """Rules on links; each link is looked at before and after."""

    scope: ClassVar[Scope] = "link"
    fidelity: ClassVar[Fidelity] = "real"
    needs: ClassVar[tuple[str, ...]] = ("links",)
    undo_summary: ClassVar[str] = "the rules are removed from the links, as recorded in the ledger"
    has_lifetime: ClassVar[bool] = True
    default_lifetime: ClassVar[Duration | None] = Duration(seconds=20.0)
    verify_timeout_seconds: ClassVar[float] = 60.0
    Record: ClassVar[type[UndoRecord]] = LinkRecord
    # Whether it is seen by what the job sends, where nothing else is sent over a link (see `EndHost`).
    shows_in_traffic: ClassVar[bool] = True

    def __init__(self, parameters: ParametersT) -> None:
        super().__init__(parameters)
        self._before: dict[Link, Look] = {}
        self._presence: Presence | None = None
        self._listening: asyncio.Task[Any] | None = None

    def check(self, target: ResolvedTarget, run: RunContext) -> None:
        """Refuse links without two ends, or with both ends on one host."""
        for link in target.links:
            check_link(link, run.cluster, ranks_are_hosts=run.ranks_are_hosts)

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Plan the rules."""
        links, sides = self._links(target), self._sides(target)
        if context.links is None:
            raise InjectionError(Reason("no_links_in_backend", fault=self.kind))
        if not links:
            raise TargetNotFound(Reason("no_link", target=target))
        if isinstance(context.links, EndHost):
            # Who is at the other ends, the hosts there know.
            here = set(context.links.ranks_here())
            sides = tuple(side for side in sides if here.issuperset(side))
            self.shows_when_released = self.shows_when_released or self.shows_in_traffic  # type: ignore[misc]
        if (missing := absent(sides, context.processes)) is not None:
            raise TargetNotFound(Reason("link_end_missing", missing=missing))
        self._presence = Presence(sides, context)
        rules = context.links.plan_rules(links, self._rule())
        if isinstance(context.links, EndHost):
            links = context.links.links_here(links)
        return self._act(target, context, LinkRecord(rules=tuple(rules), links=links).to_json())

    def _act(self, target: ResolvedTarget, context: FaultContext, record: Mapping[str, Any]) -> Act:
        shared = link_host(context).sharing_network
        pairs = {
            (min(pair), max(pair))
            for near, far in self._links(target)
            if isinstance(near, int) and isinstance(far, int)
            for pair in product(shared(near), shared(far))
        }
        return Act(undo_record=record, links=tuple(sorted(pairs)))

    async def apply(self, act: Act, context: FaultContext) -> float | None:
        """Check that the links carry traffic, NCCL's included, then add the rules; returns when they took effect."""
        links = _links_of(act)
        refuse_what_no_rule_touches(links, read_routes(context.run_folder / LOGS_FOLDER))
        host = link_host(context)
        looks = [look(host, link, num_probes(host), PROBE_TIMEOUT_SECONDS, num_at_once=1) for link in links]
        self._before = dict(zip(links, await asyncio.gather(*looks), strict=True))
        for link, before in self._before.items():
            if before.is_cut:
                raise InjectionError(Reason("link_dead_before", link=name_of(link)))
        if self._presence is not None:
            self._listening = asyncio.create_task(context.watch.wait_for(self._presence.note, None))
        return await link_host(context).apply_rules(rules_of(act))

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Look at each link until all of them are as they should be, or the time is over, and at who is still there."""
        try:
            return await self._look_at_all(act, context, timeout_seconds)
        finally:
            if self._listening is not None:
                self._listening.cancel()

    async def _look_at_all(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_seconds):
                told = await asyncio.gather(*(self._see(link, link_host(context)) for link in _links_of(act)))
        except TimeoutError:
            raise EffectNotSeen(Reason("links_not_probed", seconds=timeout_seconds)) from None
        if (presence := self._presence) is not None and presence.lost() is not None:
            # How a process ended is told a moment after its end.
            with suppress(TimeoutError):
                await context.watch.wait_for(lambda _: presence.lost() is None, TOLD_SECONDS)
        if presence is not None and (missing := presence.lost()) is not None:
            raise EffectNotSeen(Reason("link_end_gone", missing=missing))
        seen = dict(zip(_links_of(act), told, strict=True))
        return {
            "summary": self._summarize({link: str(one["summary"]) for link, one in seen.items()}),
            "links": [{"link": list(link), "before": to_json(self._before[link]), **one} for link, one in seen.items()],
            **(context.links.describe(rules_of(act)) if isinstance(context.links, EndHost) else {}),
        }

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Remove every rule of the record."""
        evidence = remove_rules(list(LinkRecord.from_json(record).rules))
        return {"undone": f"rules removed: {len(evidence)}", "rules": evidence}

    def _summarize(self, said: Mapping[Link, str]) -> str:
        """One sentence of what was seen on each link; what was the same on many is said once."""
        if len(said) > 1 and len(set(said.values())) == 1:
            return f"{len(said)} links, {name_of(min(said, key=str))} and others: on each {next(iter(said.values()))}"
        return "; ".join(f"link {name_of(link)}: {words}" for link, words in said.items())

    def _links(self, target: ResolvedTarget) -> tuple[Link, ...]:
        """The links that it touches, which are all known from the target."""
        return target.links

    def _sides(self, target: ResolvedTarget) -> tuple[Side, ...]:
        """Who must be in the job, one rank of each: by default, whoever is at either end of its links."""
        return tuple((end,) for link in self._links(target) for end in link if isinstance(end, int))

    def _rule(self) -> dict[str, Any]:
        """What is done to each link, both ways."""
        return {"action": "drop"}

    async def _see(self, link: Link, host: LinkHost) -> dict[str, Any]:
        """What one link does now, with a `summary`.

        Raises:
            EffectNotSeen: it is not what it should be.
        """
        seen = await look(host, link, num_probes(host), PROBE_TIMEOUT_SECONDS)
        if not seen.is_cut:
            came = seen.num_sent - seen.num_lost
            raise EffectNotSeen(
                Reason("link_carries_traffic", link=name_of(link), came_back=came, probes=seen.num_sent)
            )
        before = self._before[link]
        return {
            "summary": (
                f"0 of {seen.num_sent} probes come back, {before.num_sent - before.num_lost} of {before.num_sent} did "
                "before"
            ),
            "after": to_json(seen),
        }


class DropParameters(BaseModel):
    """Which `way` packets vanish: both, or only `out` (from the lower rank to the higher), or only `in`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    way: Literal["both", "out", "in"] = "both"


class DropLink(LinkFault[DropParameters]):
    """Cuts the link between two ranks' hosts, both ways or one: packets vanish, nobody is told."""

    kind: ClassVar[str] = "drop-link"
    brief: ClassVar[str] = "cut the link of two hosts"
    Parameters: ClassVar[type[BaseModel]] = DropParameters

    def _rule(self) -> dict[str, Any]:
        return {"action": "drop", "way": self.parameters.way}


class ResetLink(LinkFault[NoParameters]):
    """Breaks the link between two ranks' hosts, loudly: its connections are reset, and so is each that is tried."""

    kind: ClassVar[str] = "reset-link"
    brief: ClassVar[str] = "reset a link's connections"
    # Ranks that continue end of it, and their connections with them.
    shows_in_traffic: ClassVar[bool] = False

    def __init__(self, parameters: NoParameters) -> None:
        super().__init__(parameters)
        self._ended: dict[Link, list[str]] = {}
        self._why_not: str | None = None

    async def apply(self, act: Act, context: FaultContext) -> float | None:
        """After the rules, end the connections that there are: an idle one would not notice them before it is used."""
        took_effect = await super().apply(act, context)
        if not isinstance(context.links, ConnectionHost):
            self._why_not = "connections cannot be listed here: an idle one fails when it is next used"
            return took_effect
        try:
            for link in _links_of(act):
                self._ended[link] = await context.links.end_connections(link, PROBE_TIMEOUT_SECONDS)
        except EnvironmentFailure as error:
            self._why_not = f"an idle connection fails when it is next used: {error}"
        return took_effect

    def _rule(self) -> dict[str, Any]:
        return {"action": "reset"}

    async def _see(self, link: Link, host: LinkHost) -> dict[str, Any]:
        """No probe comes back, and no connection is left."""
        told = await super()._see(link, host)
        if self._why_not is not None or not isinstance(host, ConnectionHost):
            return {**told, "summary": f"{told['summary']}; {self._why_not}"}
        if left := await host.connections(link, PROBE_TIMEOUT_SECONDS):
            raise EffectNotSeen(Reason("link_has_connections", link=name_of(link), connections=", ".join(left)))
        ended = self._ended[link]
        words = f"its connections were reset ({len(ended)} ends), none is left"
        return {**told, "summary": f"{told['summary']}; {words}", "connections_reset": ended}


class SlowLinkParameters(BaseModel):
    """What is done to each packet, each way; a `delay` of 50 ms where nothing is said."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delay: SecondsFromZeroText | None = Field(
        default=None, description="delay of every packet, each way; default: 50ms if loss and bandwidth are not given"
    )
    jitter: SecondsFromZeroText = Field(default=0.0, description="maximum variation of each delay")
    # More cannot be told from a cut link by counting packets.
    loss: float = Field(default=0.0, ge=0, le=0.9, description="share of packets that are dropped")
    bandwidth: RateText | None = Field(default=None, description="maximum bandwidth of the link, each way")

    @model_validator(mode="after")
    def _does_something(self) -> SlowLinkParameters:
        if not (self.delay_seconds or self.loss or self.bandwidth):
            raise UsageError(
                "slow-link has no effect as written: give it delay, such as 50ms, loss, such as 0.05, or bandwidth"
            )
        if 0 < self.delay_seconds < MIN_DELAY_SECONDS:
            raise UsageError(
                "less than 1ms cannot be told from the noise of a link: choose a longer delay", key="delay"
            )
        if 0 < self.loss < MIN_LOSS_RATIO:
            raise UsageError(
                f"less than {MIN_LOSS_RATIO:g} cannot be seen by counting packets: choose more", key="loss"
            )
        if self.jitter > self.delay_seconds:
            message = f"{self.jitter:g}s is more than the delay: choose at most {self.delay_seconds:g}s"
            raise UsageError(message, key="jitter")
        return self

    @property
    def delay_seconds(self) -> float:
        """What each packet is late."""
        if self.delay is not None:
            return self.delay
        return 0.0 if self.loss or self.bandwidth else DEFAULT_DELAY_SECONDS


class SlowLink(LinkFault[SlowLinkParameters]):
    """Slows the link between two ranks' hosts: delay with jitter, loss, less bandwidth, or several of them."""

    kind: ClassVar[str] = "slow-link"
    brief: ClassVar[str] = "delay, loss, less bandwidth"
    exclusive: ClassVar[str | None] = "the delay, loss and bandwidth of a link"
    fidelity: ClassVar[Fidelity] = "shaped"
    Parameters: ClassVar[type[BaseModel]] = SlowLinkParameters

    def __init__(self, parameters: SlowLinkParameters) -> None:
        super().__init__(parameters)
        self._rate_before: dict[Link, float] = {}

    def check(self, target: ResolvedTarget, run: RunContext) -> None:
        """Refuse also what connections cannot do."""
        super().check(target, run)
        if run.links_are_connections and (self.parameters.delay_seconds or self.parameters.loss):
            key = "delay" if self.parameters.delay_seconds else "loss"
            raise UsageError(refusal_text(Reason("delay_needs_net_admin")), key=key)

    async def apply(self, act: Act, context: FaultContext) -> float | None:
        """See what the links carry, then add the rules."""
        rate = self.parameters.bandwidth
        if rate is not None:
            for link in _links_of(act):
                carried = await self._carried(link, link_host(context))
                if 8 * carried <= LIMITED_RATE_RATIO * rate:
                    found = f"{8 * carried:.3g} bit/s before the fault"
                    raise InjectionError(
                        Reason("limit_too_high", link=name_of(link), carried=found, limit=rate_text(rate))
                    )
                self._rate_before[link] = carried
        return await super().apply(act, context)

    def _rule(self) -> dict[str, Any]:
        said = self.parameters
        return {
            "action": "shape",
            "delay_seconds": said.delay_seconds,
            "jitter_seconds": said.jitter,
            "loss_ratio": said.loss,
            "rate_bytes_per_second": None if said.bandwidth is None else said.bandwidth / 8,
        }

    async def _see(self, link: Link, host: LinkHost) -> dict[str, Any]:
        said, before = self.parameters, self._before[link]
        round_trip = 2 * (said.delay_seconds + said.jitter)
        num_sent = max(num_probes(host), probes_for_loss(said.loss) if said.loss else 0)
        seen = await look(host, link, num_sent, PROBE_TIMEOUT_SECONDS + round_trip)
        told: dict[str, Any] = {"after": to_json(seen)}
        words = []
        if said.delay_seconds:
            longer = (seen.least_round_trip_seconds or 0.0) - (before.least_round_trip_seconds or 0.0)
            # With jitter none is late by less.
            wanted = SEEN_DELAY_RATIO * 2 * (said.delay_seconds - said.jitter)
            if seen.round_trip_seconds is None or longer < wanted:
                raise EffectNotSeen(
                    Reason(
                        "delay_too_short",
                        link=name_of(link),
                        longer_seconds=longer,
                        delay_seconds=2 * said.delay_seconds,
                    )
                )
            noise = (before.round_trip_seconds or 0.0) - (before.least_round_trip_seconds or 0.0)
            if seen.round_trip_seconds - (before.round_trip_seconds or 0.0) <= noise:
                raise EffectNotSeen(
                    Reason(
                        "delay_within_noise",
                        link=name_of(link),
                        round_trip_seconds=seen.round_trip_seconds,
                        noise_seconds=noise,
                        before_seconds=before.round_trip_seconds or 0.0,
                    )
                )
            took = f"a round trip takes {seen.round_trip_seconds:.4f} s"
            words.append(f"{took}, the quickest {longer:.4f} s longer than before")
        if said.loss:
            if not is_loss(seen, said.loss):
                lost = f"{seen.num_lost} of {seen.num_sent} probes were lost"
                raise EffectNotSeen(Reason("loss_rate_differs", link=name_of(link), lost=lost, loss=said.loss))
            words.append(f"{seen.num_lost} of {seen.num_sent} probes are lost ({said.loss:g} each way)")
        if said.bandwidth is not None:
            carried = await self._carried(link, host)
            if not 0 < 8 * carried <= SEEN_RATE_RATIO * said.bandwidth:
                raise EffectNotSeen(
                    Reason(
                        "bandwidth_differs",
                        link=name_of(link),
                        bits_per_second=8 * carried,
                        limit=rate_text(said.bandwidth),
                    )
                )
            told["bytes_per_second"] = {"before": self._rate_before[link], "after": carried}
            carries, before_it = 8 * carried / 1e6, 8 * self._rate_before[link] / 1e6
            words.append(f"it carries {carries:.3g} Mbit/s instead of {before_it:.3g}")
        return {"summary": ", ".join(words), **told}

    async def _carried(self, link: Link, host: LinkHost) -> float:
        assert self.parameters.bandwidth is not None
        # As much as it would carry in that time: enough to fill buffers, and never long.
        num_bytes = max(1, int(self.parameters.bandwidth / 8 * RATE_SECONDS))
        return await host.measure_rate(link, num_bytes, 10 * RATE_SECONDS)


def act_on_ranks(ranks: Iterable[int], context: FaultContext, record: Mapping[str, Any]) -> Act:
    """An act that affects `ranks`, not whoever is at the other ends: with all that share a network with one of them."""
    host = link_host(context)
    affected = {sharing for rank in ranks for sharing in host.sharing_network(rank)}
    if isinstance(host, EndHost):
        affected &= set(host.ranks_here())
    processes = context.processes.rank_processes(tuple(sorted(affected)))
    return Act(processes=tuple(one for one in processes if one.process.is_running()), undo_record=record)


def num_probes(host: LinkHost) -> int:
    """How many probes of a link are sent; where several would see the same, one."""
    return 1 if isinstance(host, EndHost) else NUM_PROBES


def _links_of(act: Act) -> list[Link]:
    return list(LinkRecord.from_json(act.undo_record).links)


def rules_of(act: Act) -> list[dict[str, Any]]:
    """The rules of its record, as `LinkHost.apply_rules` takes them."""
    return [dict(rule) for rule in LinkRecord.from_json(act.undo_record).rules]


def link_host(context: FaultContext) -> LinkHost:
    """The ability to change links, without which `prepare` refuses."""
    assert context.links is not None
    return context.links
