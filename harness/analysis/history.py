"""The history that a job kept: of each step the pass that its final state contains."""

from __future__ import annotations

from bisect import bisect_left

from harness.analysis.steps import CommittedStep, Steps


def kept_steps(steps: Steps) -> tuple[CommittedStep, ...]:
    """One pass of each step, in the order of their numbers; work that was thrown away is left out.

    An epoch (of a command: an attempt) continues after the step before its lowest one: what earlier epochs did from
    there on was thrown away, whether it was done again or not. So was what an epoch itself did beyond the step with
    which it ended, where it loaded an older state without being started again. Costs n log n.
    """
    if not steps.redone:
        return tuple(sorted(steps.first, key=_number))
    by_epoch: dict[int, list[CommittedStep]] = {}
    for step in steps.every:
        by_epoch.setdefault(step.epoch, []).append(step)
    kept: list[CommittedStep] = []
    for _, own in sorted(by_epoch.items()):
        last_pass = {step.step: step for step in own}
        del kept[bisect_left(kept, min(last_pass), key=_number) :]
        kept += (last_pass[number] for number in sorted(last_pass) if number <= own[-1].step)
    return tuple(kept)


def _number(step: CommittedStep) -> int:
    return step.step
