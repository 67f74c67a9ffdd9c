"""Probes of a link, by processes at its ends."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from chaos.faults.base import End


class LinkQueries(ABC):
    """The half of a `chaos.faults.base.LinkHost` that looks, and of a `ConnectionHost` all."""

    @abstractmethod
    async def _ask(self, link: tuple[End, End], timeout_seconds: float, question: Mapping[str, Any]) -> dict[str, Any]:
        """Ask at the link's first end something of the second.

        Raises:
            EnvironmentFailure: it cannot be answered.
        """

    async def probe(self, link: tuple[End, End], timeout_seconds: float) -> dict[str, Any]:
        """One packet from the first end's network to the second's and back."""
        return await self._ask(link, timeout_seconds, {"do": "probe"})

    async def measure_rate(self, link: tuple[End, End], num_bytes: int, timeout_seconds: float) -> float:
        """Bytes per second from the first end's network to the second's, over one connection."""
        told = await self._ask(link, timeout_seconds, {"do": "measure", "num_bytes": num_bytes})
        return float(told["bytes_per_second"])

    async def connections(self, link: tuple[End, End], timeout_seconds: float) -> list[str]:
        """See `chaos.faults.base.ConnectionHost`."""
        return await self._ask_both(link, timeout_seconds, "connections")

    async def end_connections(self, link: tuple[End, End], timeout_seconds: float) -> list[str]:
        """See `chaos.faults.base.ConnectionHost`."""
        # The reset of the one end would be the end of the other before it is listed.
        known = await self.connections(link, timeout_seconds)
        await self._ask_both(link, timeout_seconds, "end")
        return known

    async def _ask_both(self, link: tuple[End, End], timeout_seconds: float, do: str) -> list[str]:
        """Each end for itself: on a link that carries nothing neither hears of what the other does."""
        told = await asyncio.gather(
            *(self._ask(one, timeout_seconds, {"do": do}) for one in (link, (link[1], link[0])))
        )
        return [str(connection) for one in told for connection in one["connections"]]
