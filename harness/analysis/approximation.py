"""How much of a job's compute was approximated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harness.analysis.steps import CommittedStep
from mecefo_runtime.job.layout import Layout, Span
from mecefo_runtime.system.job_records import LayoutTold


def degraded_share_ratio(layouts: Iterable[LayoutTold], steps: Sequence[CommittedStep]) -> float | None:
    """The share of the job's samples x layers that went through degraded layers, over all committed steps.

    None when no step was committed in an epoch whose layout is known.
    """
    return _share_ratio(layouts, steps, lambda span: len(span.degraded))


def projected_share_ratio(layouts: Iterable[LayoutTold], steps: Sequence[CommittedStep]) -> float | None:
    """The share of the job's samples x layers that went through projected layers; None as above."""
    return _share_ratio(layouts, steps, lambda span: len(span.projected))


def _share_ratio(
    layouts: Iterable[LayoutTold], steps: Sequence[CommittedStep], count: Callable[[Span], int]
) -> float | None:
    shares = {one.epoch: _share(Layout.from_dict(one.layout), count) for one in layouts if one.layout}
    known = [shares[step.epoch] for step in steps if step.epoch in shares]
    return sum(known) / len(known) if known else None


def _share(layout: Layout, count: Callable[[Span], int]) -> float:
    counted = sum(replica.num_microbatches * count(span) for replica in layout.replicas for span in replica.spans)
    return counted / (layout.num_microbatches * layout.num_layers)
