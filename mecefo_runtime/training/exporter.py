"""A rank's Prometheus metrics: set by plain assignments on the training thread, read by another one.

Off unless MECEFO_METRICS says where to serve it: `auto` (the rank's own address and a free port), `HOST` (a free port
there) or `HOST:PORT`, to which LOCAL_RANK is added. The event `rank_started` tells the address.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mecefo_runtime.job.layout import Layout
from mecefo_runtime.system.dilation import Pacer
from mecefo_runtime.system.job_records import StepCommitted
from mecefo_runtime.system.metric_family import Family, by_name

if TYPE_CHECKING:
    from prometheus_client import Metric

AUTO = "auto"
STEP_SECONDS_BUCKETS = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0),
)
"""Upper bounds in seconds: narrow where steps of small models lie, wide enough for large ones."""
FAMILIES = by_name(
    Family("training_rank_info", "info", "always 1", ("device",)),
    Family("training_rank_start_timestamp_seconds", "gauge", "Unix time at which this process of the rank began"),
    Family("training_rank_step", "gauge", "the newest step that this rank committed"),
    Family("training_rank_epoch", "gauge", "the membership that the rank is in"),
    Family("training_rank_loss", "gauge", "loss of the newest step that this rank committed; the same on all ranks"),
    Family("training_rank_steps_total", "counter", "steps that this process committed"),
    Family(
        "training_rank_tokens_total",
        "counter",
        "tokens of the steps that this process committed, over all ranks: take one rank's, never the sum",
    ),
    Family("training_rank_step_seconds", "histogram", "from the beginning of the attempt to its commit, on this rank"),
    Family(
        "training_rank_compute_seconds_total",
        "counter",
        "compute segments of this process: `cpu`, and `wall` with the padding of time dilation",
        ("clock",),
    ),
    Family("training_rank_layers", "gauge", "layers that the rank holds: `exact`, `degraded`", ("kind",)),
    Family("training_rank_resident_memory_bytes", "gauge", "resident memory of the process"),
    Family("training_rank_device_memory_bytes", "gauge", "memory that tensors take on its GPU; absent on the CPU"),
)
"""All have the labels of the rank, too; `docs/reference/metrics.md` is made of them."""
_BOUNDS = (*(repr(bound) for bound in STEP_SECONDS_BUCKETS), "+Inf")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RankFigures:
    """One rank's metrics; setting one costs about a microsecond, scraped or not."""

    def __init__(self, rank: int, node: int, device: str, pacer: Pacer) -> None:
        self._labels = {"rank": str(rank), "node": str(node)}
        self._device = device
        self._pacer = pacer
        self._started_seconds = time.time()
        self._step: int | None = None
        self._loss: float | None = None
        self._epoch: int | None = None
        self._layers = (0, 0)
        self._num_steps = 0
        self._tokens = 0
        self._counts = [0] * len(_BOUNDS)
        self._seconds_sum = 0.0

    def commit(self, step: int, record: StepCommitted) -> None:
        """The rank has committed a step; `record` is what the leader's `step_committed` says of it."""
        seconds = (record.committed_monotonic or 0.0) - (record.began_monotonic or 0.0)
        self._counts[bisect_left(STEP_SECONDS_BUCKETS, seconds)] += 1
        self._seconds_sum += seconds
        self._num_steps += 1
        self._tokens += record.tokens or 0
        self._step, self._loss = step, record.loss

    def enter(self, epoch: int, layout: Layout, rank: int) -> None:
        """The rank is a member of `epoch`."""
        place = layout.find(rank)
        span = None if place is None else place[0].spans[place[1]]
        num_degraded = 0 if span is None else len(span.degraded)
        self._layers = (0, 0) if span is None else (len(span.layers) - num_degraded, num_degraded)
        self._epoch = epoch

    def collect(self) -> Iterable[Metric]:
        """The metrics in Prometheus' types; called by the server, on its own thread."""

        def of(name: str, value: float | None) -> Iterable[Metric]:
            return FAMILIES[f"training_rank_{name}"].of({(): value}, **self._labels)

        yield FAMILIES["training_rank_info"].of_labels({"device": self._device}, **self._labels)
        yield from of("start_timestamp_seconds", self._started_seconds)
        yield from of("step", self._step)
        yield from of("epoch", self._epoch)
        yield from of("loss", self._loss)
        yield from of("steps_total", self._num_steps)
        yield from of("tokens_total", self._tokens)
        counts, total = [], 0
        for bound, count in zip(_BOUNDS, tuple(self._counts), strict=True):
            total += count
            counts.append((bound, float(total)))
        yield FAMILIES["training_rank_step_seconds"].of_buckets(counts, self._seconds_sum, **self._labels)
        compute = {("cpu",): self._pacer.compute_seconds, ("wall",): self._pacer.wall_seconds}
        yield from FAMILIES["training_rank_compute_seconds_total"].of(compute, **self._labels)
        exact, degraded = self._layers
        layers = {("exact",): exact, ("degraded",): degraded}
        yield from FAMILIES["training_rank_layers"].of(layers, **self._labels)
        yield from of("resident_memory_bytes", _resident_bytes())
        yield from of("device_memory_bytes", _device_bytes(self._device))

    def serve(self, where: str, host: str, local_rank: int) -> str | None:
        """Serve the metrics until this process ends; returns `host:port`, or None when they are not served.

        Args:
            where: what MECEFO_METRICS says, see this module; empty: nowhere.
            host: the rank's own address.
            local_rank: added to a port that `where` names.
        """
        if not where:
            return None
        from mecefo_runtime.system.metrics_server import MetricsServer, split_address

        try:
            named, port = ("", 0) if where == AUTO else split_address(where)
            port = port + local_rank if port else 0
            if port >= 1 << 16:
                raise ValueError(f"there is no port {port}")
            server = MetricsServer(self, named or host, port)
        except (OSError, ValueError) as error:
            # Training is worth more than who watches it.
            print(f"no metrics of this rank: MECEFO_METRICS={where}: {error}", file=sys.stderr)
            return None
        server.start()
        return server.address


def _resident_bytes() -> float | None:
    try:
        return float(int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * _PAGE_BYTES)
    except (OSError, IndexError, ValueError):
        return None


def _device_bytes(device: str) -> float | None:
    if not device.startswith("cuda"):
        return None
    import torch

    return float(torch.cuda.memory_allocated(device))
