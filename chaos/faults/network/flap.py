"""A link that goes down and comes up repeatedly, as with a loose plug."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from chaos.errors import ChaosError, EffectNotSeen, UsageError
from chaos.faults.base import Act, FaultContext, LinkHost
from chaos.faults.network.link import PROBE_TIMEOUT_SECONDS, LinkFault, link_host, rules_of
from chaos.faults.network.look import look
from chaos.host.links import remove_rules
from chaos.host.links.check import Link, name_of
from chaos.language.quantities import SecondsText
from mecefo_runtime.system.reason import Reason

MAX_PERIOD_SECONDS = 60.0
# Several round trips of a busy machine: a probe that is late must not be taken for one that was dropped.
MIN_PERIOD_SECONDS = 0.02
# How much later than its time a turn may come: programs have to start for it, on a machine that may be busy.
TURN_SLACK_SECONDS = 10.0


class FlapParameters(BaseModel):
    """How long the link is down and then up, again and again; it begins with down."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    down: SecondsText = Field(default=1.0, description="duration of each down time; the first starts at once")
    up: SecondsText = Field(default=2.0, description="duration of each up time")

    @field_validator("down", "up")
    @classmethod
    def _is_short(cls, period: float, field: ValidationInfo) -> float:
        if period < MIN_PERIOD_SECONDS:
            message = f"{period:g}s is too short to be seen: choose at least {1000 * MIN_PERIOD_SECONDS:g}ms"
            raise UsageError(message, key=field.field_name)
        if period > MAX_PERIOD_SECONDS:
            message = f"{period:g}s is no flapping: choose at most {MAX_PERIOD_SECONDS:g}s, or use drop-link"
            raise UsageError(message, key=field.field_name)
        return period


class FlapLink(LinkFault[FlapParameters]):
    """Makes the link between two ranks' hosts come and go: down, up, down, as a loose plug does."""

    kind: ClassVar[str] = "flap-link"
    brief: ClassVar[str] = "link down, up, down, ..."
    family: ClassVar[str | None] = "link"
    # A whole turn of it is waited for, and held ranks would send nothing over it.
    shows_when_released: ClassVar[bool] = True
    verify_timeout_seconds: ClassVar[float] = 3 * MAX_PERIOD_SECONDS
    Parameters: ClassVar[type[BaseModel]] = FlapParameters

    def __init__(self, parameters: FlapParameters) -> None:
        super().__init__(parameters)
        self._turns: asyncio.Task[None] | None = None
        self._is_lifted = asyncio.Event()

    async def apply(self, act: Act, context: FaultContext) -> float | None:
        """Cut the link, and start the cycle."""
        took_effect = await super().apply(act, context)
        self._turns = asyncio.create_task(self._turn(rules_of(act), link_host(context)))
        return took_effect

    async def lift(self, act: Act, context: FaultContext) -> None:
        """Stop the cycle, and wait for rules that are being added, so that `undo` comes after them."""
        self._is_lifted.set()
        if self._turns is not None:
            with suppress(ChaosError):
                await self._turns

    async def _turn(self, rules: list[dict[str, Any]], host: LinkHost) -> None:
        while not await self._is_lifted_within(self.parameters.down):
            # Programs are waited for; meanwhile others continue, who want to see it.
            await asyncio.to_thread(remove_rules, [*rules])
            if await self._is_lifted_within(self.parameters.up):
                return
            await host.apply_rules(rules)

    async def _is_lifted_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_lifted.wait(), seconds)
        return self._is_lifted.is_set()

    async def _see(self, link: Link, host: LinkHost) -> dict[str, Any]:
        """Down, up, and down again, each not much later than it should come."""
        seen: list[dict[str, Any]] = []
        began = asyncio.get_running_loop().time()
        slack_seconds = TURN_SLACK_SECONDS + self.parameters.down + self.parameters.up
        for wants_cut in (True, False, True):
            word = "down" if wants_cut else "up"
            try:
                async with asyncio.timeout(slack_seconds):
                    while (await look(host, link, 1, self._probe_seconds)).is_cut != wants_cut:
                        await asyncio.sleep(self._probe_seconds / 10)
            except TimeoutError:
                raise EffectNotSeen(
                    Reason("link_not_switched", link=name_of(link), state=word, seconds=slack_seconds)
                ) from None
            seen.append({"state": word, "seconds": round(asyncio.get_running_loop().time() - began, 4)})
        times = ", ".join(f"{turn['state']} after {turn['seconds']:.2f} s" for turn in seen)
        return {"summary": times, "turns": seen}

    @property
    def _probe_seconds(self) -> float:
        """Short against a period, so that no turn goes by unseen."""
        return min(PROBE_TIMEOUT_SECONDS, self.parameters.down / 4, self.parameters.up / 4)
