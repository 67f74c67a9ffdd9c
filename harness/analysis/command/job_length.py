"""How far a command's job came, and how far it should have come: what says so, if anything does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis.command.attempts import Attempt
from harness.analysis.steps import CommittedStep

Source = Literal["job.steps", "baseline", "earlier_attempt", "step_under_way"]


@dataclass(frozen=True, slots=True)
class Expected:
    """The job should have come to `step`, as `source` says.

    That is the user, the fault-free baseline, an earlier attempt, which had come further than the last one, or a fault
    that came while that step was under way, and after which the last attempt took none.
    """

    step: int
    source: Source
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class JobLength:
    """`step` is the last one of the last attempt that took one, None before the first, or where nobody counts them.

    `expected` are those that say how far the job should have come, `idle_attempt` is the last attempt where it took no
    step. `is_told` is whether the user or a comparable baseline says how long the job is; `other_world_size` is that of
    a baseline that is none, for it ran with so many ranks.
    """

    step: int | None
    expected: tuple[Expected, ...] = ()
    idle_attempt: int | None = None
    is_told: bool = False
    other_world_size: int | None = None

    @property
    def missed(self) -> Expected | None:
        """The furthest step that it should have come to and did not."""
        step = self.step
        late = [] if step is None else [one for one in self.expected if one.step > step]
        return max(late, key=lambda one: one.step, default=None)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A whole fault-free baseline: its first and last step, and its ranks."""

    first_step: int
    last_step: int
    world_size: int | None


def measure_length(
    attempts: Sequence[Attempt],
    steps: Sequence[CommittedStep],
    steps_planned: int | None,
    baseline: Baseline | None,
    under_way: Iterable[int],
    *,
    are_counted: bool,
) -> JobLength:
    """The length of a job; `steps` are all of it, `under_way` those in which faults came.

    `are_counted` is whether the numbers of steps are those of the training.
    """
    trained = [one for one in attempts if one.first_step is not None]
    idle = attempts[-1].number if len(attempts) > 1 and attempts[-1].first_step is None else None
    last, numbers = max((one.step for one in steps), default=0), [one.number for one in trained]
    own = max((one.step for one in steps if one.epoch == numbers[-1]), default=0) if len(numbers) > 1 else last
    if not own or not are_counted:
        return JobLength(None, idle_attempt=idle, is_told=steps_planned is not None)
    expected: list[Expected] = []
    if steps_planned is not None:
        expected.append(Expected(steps_planned, "job.steps"))
    other_world_size: int | None = None
    if baseline is not None and baseline.first_step == min(one.step for one in steps):
        if trained and baseline.world_size not in (None, trained[-1].world_size):
            other_world_size = baseline.world_size
        else:
            expected.append(Expected(baseline.last_step, "baseline"))
    is_told = bool(expected)
    earlier = [one for one in steps if one.step == last]
    if last > own:
        expected.append(Expected(last, "earlier_attempt", earlier[0].epoch))
    if idle is not None:
        expected += [Expected(step, "step_under_way") for step in under_way]
    return JobLength(own, tuple(expected), idle, is_told, other_world_size)
