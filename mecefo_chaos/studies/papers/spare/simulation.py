"""A job of many groups under failures, step by step: the paper's simulation, under assumptions that have names.

A step: every group computes its layers, all wait for the slowest, and reduce. Who has failed is seen when a step
begins, when the all-reduce begins, in the all-reduce, and when the leader begins to save. What is missing then is
computed by others (patch compute), the communicator shrinks, and the all-reduce is done (again; a failure is found in
the middle of it). When a shard is lost for good (a wipe-out) all groups are recovered, and go on at the checkpointed
step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from mecefo_chaos.studies.papers.spare.assumptions import Assumptions
from mecefo_chaos.studies.papers.spare.claims import Scheme
from mecefo_chaos.studies.papers.spare.closed_forms import best_period_seconds
from mecefo_chaos.studies.papers.spare.schemes import Ints, Masking, masking, num_draws_of

NUM_STEPS = 10_000
# A job that takes more than so many times the time without failures makes no progress worth waiting for.
_HOPELESS_RATIO = 100.0
# What a computation has drawn at least, however lucky.
_SMALLEST = 1e-300


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated job; ratios are of 1, times of the time without failures and jitter.

    `is_over`: it reached its last step; else it was given up, and `time_ratio` is when. `period_steps` is from one
    checkpoint to the next, `mean_depth` in layers, over all steps begun. `num_patches` counts how often survivors
    computed shards that were lost in a step, once for all shards that are missing when failures are seen. That is not
    the authors' number of recomputations.
    """

    time_ratio: float
    availability_ratio: float
    is_over: bool
    period_steps: int
    num_failures: int
    num_wipe_outs: int
    num_patches: int
    steps_begun: int
    mean_depth: float


def simulate(
    scheme: Scheme,
    num_groups: int,
    redundancy: int,
    seed: int,
    assumptions: Assumptions | None = None,
    num_steps: int = NUM_STEPS,
) -> Outcome:
    """Train so many steps; the same seed, the same outcome.

    Raises:
        ValueError: so many copies do not fit among so few groups.
    """
    used = assumptions or Assumptions()
    return _Job(scheme, num_groups, masking(scheme, num_groups, redundancy, used), seed, used, num_steps).run()


def period_steps(masked: Masking, num_groups: int, assumptions: Assumptions) -> int:
    """Steps from one checkpoint to the next, by the closed forms."""
    uptime_seconds = masked.num_endured * assumptions.system_mtbf_seconds
    best = best_period_seconds(assumptions.save_seconds, uptime_seconds, assumptions.restart_seconds)
    all_reduce_seconds = assumptions.all_reduce_seconds_per_group * num_groups
    step_seconds = masked.mean_depth * assumptions.layer_seconds + all_reduce_seconds
    return max(1, round(assumptions.period_factor * best / step_seconds))


class _Clocks:
    """When each group fails next: Weibull lifetimes, fresh at the start."""

    def __init__(self, num_groups: int, assumptions: Assumptions, generator: np.random.Generator) -> None:
        mean_seconds = assumptions.system_mtbf_seconds * num_groups
        self._shape = assumptions.weibull_shape
        self._scale_seconds = mean_seconds / math.gamma(1 + 1 / self._shape)
        self._generator = generator
        self.at_seconds = self._lifetimes(num_groups)

    def _lifetimes(self, num: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self._scale_seconds * self._generator.weibull(self._shape, num)

    def run_on(self, groups: Ints, now_seconds: float) -> None:
        """The first failure of each after now, where each follows the last by a lifetime."""
        behind = groups[self.at_seconds[groups] <= now_seconds]
        while behind.size:
            self.at_seconds[behind] += self._lifetimes(behind.size)
            behind = behind[self.at_seconds[behind] <= now_seconds]

    def begin_anew(self, groups: Ints, now_seconds: float) -> None:
        """Lifetimes that begin now."""
        self.at_seconds[groups] = now_seconds + self._lifetimes(groups.size)


class _Job:
    def __init__(
        self, scheme: Scheme, num_groups: int, masked: Masking, seed: int, assumptions: Assumptions, num_steps: int
    ) -> None:
        self._assumptions, self._scheme, self._num_groups = assumptions, scheme, num_groups
        self._masked = masked
        self._num_steps = num_steps
        self._all_reduce_seconds = assumptions.all_reduce_seconds_per_group * num_groups
        self._free_seconds = num_steps * (assumptions.layer_seconds + self._all_reduce_seconds)
        self._generator = np.random.default_rng(seed)
        self._clocks = _Clocks(num_groups, assumptions, self._generator)
        self._now = self._down_seconds = 0.0
        self._num_failures = self._num_wipe_outs = self._num_patches = self._steps_begun = self._sum_depth = 0
        self._all_are_there()

    def run(self) -> Outcome:
        """To the last step, or until it is hopeless."""
        period = period_steps(self._masked, self._num_groups, self._assumptions)
        step = saved = 0
        while step < self._num_steps and self._now <= _HOPELESS_RATIO * self._free_seconds:
            if not self._train_step():
                self._recover()
                step = saved
                continue
            step += 1
            if step % period == 0 and step < self._num_steps:
                # Whoever has failed is not the leader; what that means for the next step is seen there.
                self._look()
                self._now += self._assumptions.save_seconds
                saved = step
        return Outcome(
            time_ratio=self._now / self._free_seconds,
            availability_ratio=1 - self._down_seconds / self._now,
            is_over=step >= self._num_steps,
            period_steps=period,
            num_failures=self._num_failures,
            num_wipe_outs=self._num_wipe_outs,
            num_patches=self._num_patches,
            steps_begun=self._steps_begun,
            mean_depth=self._sum_depth / self._steps_begun,
        )

    def _all_are_there(self) -> None:
        self._masked.reset()
        self._alive = np.ones(self._num_groups, dtype=np.bool_)
        self._num_alive = self._num_groups
        self._next_seconds = float(self._clocks.at_seconds.min())
        # Whether a failure was seen that the controller has not dealt with.
        self._is_open = False

    def _look(self) -> None:
        """See who has failed until now."""
        if self._next_seconds > self._now:
            return
        lost = np.flatnonzero(self._alive & (self._clocks.at_seconds <= self._now))
        self._alive[lost] = False
        self._num_alive -= lost.size
        self._num_failures += lost.size
        self._masked.lose(lost)
        self._next_seconds = float(self._clocks.at_seconds[self._alive].min(initial=math.inf))
        self._is_open = True

    def _train_step(self) -> bool:
        """Whether the step was done; else a shard was lost for good."""
        masked = self._masked
        self._steps_begun += 1
        self._sum_depth += masked.depth
        self._look()
        self._compute(masked.depth)
        self._look()
        while True:
            if self._is_open:
                if not self._repair():
                    return False
                continue
            if self._next_seconds >= self._now + self._all_reduce_seconds:
                self._now += self._all_reduce_seconds
                return True
            # It hangs, for half of its time in the mean.
            self._now = max(self._now + self._all_reduce_seconds / 2, self._next_seconds)
            self._look()
            assert self._is_open

    def _compute(self, depth: int) -> None:
        assumptions = self._assumptions
        self._now += depth * assumptions.layer_seconds
        num_draws, spread_seconds = num_draws_of(self._scheme, depth, assumptions)
        if assumptions.barrier == "layer":
            each = spread_seconds / math.sqrt(num_draws)
            self._now += sum(self._slowest(self._num_alive) * each for _ in range(num_draws))
        else:
            self._now += self._slowest(self._num_alive) * spread_seconds

    def _slowest(self, num: int) -> float:
        """The largest of so many draws from a standard normal distribution; with nobody left, as of one."""
        return float(ndtri(max(_SMALLEST, self._generator.random()) ** (1 / max(1, num))))

    def _repair(self) -> bool:
        """Deal with the failures that were seen; False: a shard is lost for good."""
        assumptions, masked = self._assumptions, self._masked
        self._is_open = False
        if masked.is_wiped_out():
            return False
        self._now += assumptions.shrink_seconds
        if self._scheme == "spare":
            self._now += assumptions.controller_seconds
        num_missing = masked.repair(self._alive)
        if num_missing:
            self._num_patches += 1
            num_computing = num_missing if assumptions.patch == "missing" else self._num_alive
            spread_seconds = assumptions.layer_seconds * assumptions.jitter_ratio
            self._now += assumptions.layer_seconds + self._slowest(num_computing) * spread_seconds
        self._look()
        return True

    def _recover(self) -> None:
        """After a wipe-out: until all are there again."""
        assumptions, clocks = self._assumptions, self._clocks
        self._num_wipe_outs += 1
        begun = self._now
        lost = np.flatnonzero(~self._alive)
        renew = clocks.run_on if assumptions.clocks == "run_on" else clocks.begin_anew
        renew(lost, begun)
        restarting = lost if assumptions.restarting == "failed" else np.arange(self._num_groups)
        if assumptions.recovery == "absorb":
            self._now += assumptions.restart_seconds
            clocks.run_on(np.arange(self._num_groups), self._now)
        elif assumptions.recovery == "global_restart":
            self._restart_all(restarting)
        else:
            self._restart_each(restarting)
        self._down_seconds += self._now - begun
        self._all_are_there()

    def _restart_each(self, restarting: Ints) -> None:
        """Each by itself: who fails meanwhile begins again, and the others wait."""
        clocks, restart_seconds = self._clocks, self._assumptions.restart_seconds
        limit_seconds = _HOPELESS_RATIO * self._free_seconds
        ready = np.full(self._num_groups, self._now)
        ready[restarting] += restart_seconds
        while (again := restarting[clocks.at_seconds[restarting] < ready[restarting]]).size:
            failed_seconds = clocks.at_seconds[again]
            ready[again] = failed_seconds + restart_seconds
            if failed_seconds.min() > limit_seconds:
                break
            for group, at_seconds in zip(again, failed_seconds, strict=True):
                clocks.run_on(np.array([group]), float(at_seconds))
            restarting = again
        self._now = float(ready.max())

    def _restart_all(self, restarting: Ints) -> None:
        """All at once, and again when any fails; given up when the job is hopeless."""
        clocks, restart_seconds = self._clocks, self._assumptions.restart_seconds
        limit_seconds = _HOPELESS_RATIO * self._free_seconds
        while self._now <= limit_seconds:
            group = restarting[int(np.argmin(clocks.at_seconds[restarting]))]
            failed_seconds = float(clocks.at_seconds[group])
            if failed_seconds >= self._now + restart_seconds:
                break
            self._now = max(self._now, failed_seconds)
            clocks.run_on(np.array([group]), self._now)
        self._now += restart_seconds
