"""The hosts of a run in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis.hosts import HostFigures
from harness.analysis.words import name_numbers
from harness.judging.summary import Summary


def host_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    """(name, what there is to say) of each host; none of a run on one host."""
    for host in summary.hosts:
        node = "no node of the job" if host.node is None else f"node {host.node}"
        yield host.name, ", ".join([node, *_parts(host)])


def _parts(host: HostFigures) -> Iterator[str]:
    yield name_numbers("rank", host.ranks) if host.ranks else "no ranks"
    if host.is_own:
        yield "chaos ran here"
    if host.offset_seconds is not None and host.uncertainty_seconds is not None:
        yield f"clock {host.offset_seconds:+.6f} s ± {1e6 * host.uncertainty_seconds:.0f} µs"
    if host.lost_times:
        yield "not observed to the end" if host.is_lost else "not observed for a time"
