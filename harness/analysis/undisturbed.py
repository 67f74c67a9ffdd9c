"""The steps that tell the speed of a job before its first fault: those that no loss disturbed."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.attribution import UnplannedLoss
from harness.analysis.steps import WARM_UP_STEPS, CommittedStep, baseline, num_committed


def undisturbed_baseline(
    steps: Sequence[CommittedStep], until: float, unplanned: Sequence[UnplannedLoss]
) -> tuple[CommittedStep, ...]:
    """The steps that give the speed before `until`: those since the last unplanned loss, if few came before the first.

    Steps with and without the lost rank must not be mixed into one speed.
    """
    earlier = [loss for loss in unplanned if loss.since < until]
    if not earlier:
        return baseline(steps, until)
    resumed = earlier[-1].resumed
    since = steps[num_committed(steps, resumed) :] if resumed is not None else ()
    since = [step for step in since if step.began_seconds > earlier[-1].detected]
    if num_committed(since, until) >= WARM_UP_STEPS:
        return baseline(since, until)
    return baseline(steps, earlier[0].since) or baseline(steps, until)
