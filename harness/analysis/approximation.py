"""How much of a job's compute was approximated, and which steps were not fit to be committed as they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.analysis.steps import CommittedStep
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.system.events import MAIN_JOB, Event


def degraded_share_ratio(events: Iterable[Event], steps: Sequence[CommittedStep]) -> float | None:
    """The share of the job's samples x layers that went through degraded layers, over all committed steps.

    None when no step was committed in an epoch whose layout is known.
    """
    shares: Mapping[int, float] = {
        int(event.fields["epoch"]): _share(Layout.from_dict(event.fields["layout"]))
        for event in events
        if event.job == MAIN_JOB and event.kind == "layout"
    }
    known = [shares[step.epoch] for step in steps if step.epoch in shares]
    return sum(known) / len(known) if known else None


def count_unfit_steps(events: Iterable[Event]) -> int:
    """How often a step of the job was computed again, left out, or held against a rank because of its numbers."""
    return sum(event.job == MAIN_JOB and event.kind == "step_unfit" for event in events)


def _share(layout: Layout) -> float:
    degraded = sum(
        replica.num_microbatches * len(span.degraded) for replica in layout.replicas for span in replica.spans
    )
    return degraded / (layout.num_microbatches * layout.num_layers)
