"""The paper's closed forms: failures endured, depth of a step, the best redundancy, and how often to save."""

from __future__ import annotations

import math

from mecefo_runtime.stacks.rectlr import least_depth


def endured(num_groups: int, redundancy: int) -> float:
    """Failures before a wipe-out in the mean, mu = Gamma(1/r) / r * N^(1 - 1/r)."""
    return math.gamma(1 / redundancy) / redundancy * math.pow(num_groups, 1 - 1 / redundancy)


def endured_by_sets(num_groups: int, redundancy: int) -> float:
    """The same for sets of r groups that compute the same shards: r^(1/r) mu, for there are only N/r sets to lose."""
    return math.pow(redundancy, 1 / redundancy) * endured(num_groups, redundancy)


def mean_depth(num_groups: int, num_failures: float) -> float:
    """S: the mean of ceil(N / (N - k)) over k failures, k below `num_failures`; every k counts alike."""
    counted = range(min(max(1, math.floor(num_failures)), num_groups))
    return sum(least_depth(num_groups, num_groups - k) for k in counted) / len(counted)


def best_redundancy(num_groups: int) -> int:
    """r* = floor(log2 N + 0.833); 0.833 is Euler's constant over ln 2."""
    return math.floor(math.log2(num_groups) + 0.833)


def best_period_seconds(save_seconds: float, uptime_seconds: float, restart_seconds: float) -> float:
    """Tc* = Ts + sqrt(Ts^2 + 2 Ts (Tf + Tr)), the time from one checkpoint to the next."""
    return save_seconds + math.sqrt(save_seconds**2 + 2 * save_seconds * (uptime_seconds + restart_seconds))


def availability(period_seconds: float, save_seconds: float, uptime_seconds: float, restart_seconds: float) -> float:
    """What Tc* makes largest: (1 - Ts/Tc) Tf / (Tf + Tr + Tc/2)."""
    lost_seconds = restart_seconds + period_seconds / 2
    return (1 - save_seconds / period_seconds) * uptime_seconds / (uptime_seconds + lost_seconds)
