"""The state of a link, measured by probes: reachability, round-trip time, loss and rate."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaos.faults.base import LinkHost

# Sent at a time: enough to be quick, too few to crowd each other out on a slow link.
_AT_ONCE = 10
_MAX_PROBES = 400
# So many probes at least are expected to be lost, and to come back, so that how many did says something.
_EXPECTED = 20
# Standard deviations of a binomial count within which what was lost is what was asked for.
_LOSS_DEVIATIONS = 4.0


@dataclass(frozen=True, slots=True)
class Look:
    """What so many probes of a link saw."""

    num_sent: int
    num_lost: int
    # Of those that came back, the median; None: none did.
    round_trip_seconds: float | None
    # Of those, the least: a busy machine makes packets late, and none of them early.
    least_round_trip_seconds: float | None = None

    @property
    def is_cut(self) -> bool:
        """Whether nothing came through."""
        return self.num_lost == self.num_sent


async def look(
    host: LinkHost,
    link: tuple[int | str, int | str],
    num_probes: int,
    timeout_seconds: float,
    num_at_once: int = _AT_ONCE,
) -> Look:
    """Send `num_probes` over `link`, `num_at_once`, each of which counts as lost after `timeout_seconds`.

    One by one tells best how quick the link is: those that are sent together all wait for the same busy machine.
    """
    seen: list[Mapping[str, Any]] = []
    while len(seen) < num_probes:
        batch = min(num_at_once, num_probes - len(seen))
        seen += await asyncio.gather(*(host.probe(link, timeout_seconds) for _ in range(batch)))
    times = [float(probe["round_trip_seconds"]) for probe in seen if probe["reached"]]
    return Look(len(seen), len(seen) - len(times), median(times) if times else None, min(times, default=None))


def round_trip_loss_ratio(loss_ratio: float) -> float:
    """The share of probes that do not come back when each way loses `loss_ratio`."""
    return 1 - (1 - loss_ratio) ** 2


def probes_for_loss(loss_ratio: float) -> int:
    """How many probes it takes to tell such a loss on each way."""
    lost_ratio = round_trip_loss_ratio(loss_ratio)
    return min(_MAX_PROBES, ceil(_EXPECTED / min(lost_ratio, 1 - lost_ratio)))


def is_loss(seen: Look, loss_ratio: float) -> bool:
    """Whether what was lost is within chance of `loss_ratio` on each way, and neither none nor all."""
    expected_ratio = round_trip_loss_ratio(loss_ratio)
    expected = seen.num_sent * expected_ratio
    spread = _LOSS_DEVIATIONS * sqrt(expected * (1 - expected_ratio)) + 1
    return 0 < seen.num_lost < seen.num_sent and abs(seen.num_lost - expected) <= spread
