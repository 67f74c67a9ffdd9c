"""Why state came from its source: the reasons against all better sources, for the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from mecefo_runtime.comm.messages import Received
from mecefo_runtime.job.state_source import SOURCE_KINDS, Source, Version, kind_of

Rung = Literal["peer", "snapshot", "parity", "checkpoint", "start"]
# The best first: what a lower one costs is more steps, or more time.
RUNGS: tuple[Rung, ...] = (*SOURCE_KINDS, "start")


def lowest_rung(sources: Iterable[Source]) -> Rung:
    """The lowest of those that `sources` are on; a peer where nothing has to come from anywhere."""
    return max((kind_of(source) for source in sources), key=RUNGS.index, default="peer")


def passed_over(
    rung: Rung | None,
    no_peer: str,
    no_snapshot: str | None,
    no_parity: str | None,
    refused: Mapping[tuple[Version, Source], str],
    no_checkpoint: Collection[str],
) -> dict[str, str]:
    """Why none of the rungs above `rung` served, by rung; None: none did. One that the job does not have is left out.

    `refused` are sources that were found to be damaged or gone, and how.
    """
    said: dict[str, list[str]] = {"peer": [no_peer]}
    said["snapshot"] = [no_snapshot] if no_snapshot else []
    said["parity"] = [no_parity] if no_parity else []
    said["checkpoint"] = list(no_checkpoint)
    for (_, source), error in refused.items():
        if error not in said[kind_of(source)]:
            said[kind_of(source)].append(error)
    above = SOURCE_KINDS if rung is None else RUNGS[: RUNGS.index(rung)]
    return {kind: "; ".join(said[kind]) for kind in above if said[kind]}


def totals(reports: Iterable[Iterable[Received]]) -> dict[str, dict[str, float]]:
    """By kind of source: the pieces and bytes of all ranks, and how long the slowest one's took."""
    found: dict[str, dict[str, float]] = {}
    for one in (received for report in reports for received in report):
        known = found.setdefault(one.kind, {"pieces": 0, "num_bytes": 0, "seconds": 0.0})
        known["pieces"] += one.num_pieces
        known["num_bytes"] += one.num_bytes
        known["seconds"] = max(known["seconds"], one.seconds)
    return {kind: found[kind] for kind in SOURCE_KINDS if kind in found}
