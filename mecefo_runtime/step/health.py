"""Numerical health: whether a step may be committed, and if not, what happens to it and which rank is to blame.

The leader judges every step in the commit exchange, from what each member says of its own part, and all members
follow. If the leader is lost before it could, the coordinator judges by the same function. A step that is not finite,
or whose gradient is far larger than usual, is repeated or skipped, or the rank that corrupted it is evicted. Where
parameters of two holders differ, the one that differs gets its peers'; so does one whose parameters are not finite,
or would not be after the optimizer's next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import median

from mecefo_runtime.job.config import HealthConfig
from mecefo_runtime.job.step_report import HealthHistory, PartHealth, StepTotals, StepVerdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """`verdict` on a step; `suspects` are the ranks to blame, where they are known, and `reason` says it in words."""

    verdict: StepVerdict
    suspects: tuple[int, ...] = ()
    reason: str = ""


def judge(
    config: HealthConfig,
    history: HealthHistory,
    step: int,
    loss_sum: float,
    squared_norm: float,
    parts: Mapping[int, PartHealth],
) -> Judgement:
    """The verdict on `step`, whose gradients have been summed; `parts` by rank, `history` from before it."""
    corrupted = tuple(rank for rank, part in sorted(parts.items()) if part.is_corrupted)
    if corrupted:
        reason = f"{_name(corrupted)}: parameters or optimizer state are corrupted"
        num_heals = history.heals_of(step)
        if num_heals <= config.max_repeats:
            return Judgement(StepVerdict.HEAL, corrupted, reason)
        # Something corrupts them again and again: the job must not stand still over it.
        return _given_up(config.nonfinite, corrupted, f"{reason}, {num_heals + 1} times")
    differing = tuple(rank for rank, part in sorted(parts.items()) if part.differs)
    if differing:
        return Judgement(StepVerdict.HEAL, differing, f"{_name(differing)}: parameters differ from the peers'")
    num_repeats = history.repeats_of(step)
    if not (isfinite(loss_sum) and isfinite(squared_norm)):
        if config.nonfinite == "commit":
            return Judgement(StepVerdict.COMMIT)
        suspects = origins_of(parts)
        return _rejected(config, config.nonfinite, num_repeats, suspects, "the gradient or the loss is not finite")
    norm = squared_norm**0.5
    usual = median(history.norms) if len(history.norms) >= config.window_steps else inf
    if config.outlier != "commit" and norm > config.outlier_ratio * usual:
        suspects = outliers_among(parts)
        reason = f"the gradient's norm is {norm:.3g}, usual is {usual:.3g}"
        # With nobody to evict, and computed again, it is what the data says: else all that follow were skipped too.
        is_final = config.outlier == "skip" or (config.outlier == "evict" and bool(suspects))
        if is_final or num_repeats < config.max_repeats:
            return _rejected(config, config.outlier, num_repeats, suspects, reason)
    return Judgement(StepVerdict.COMMIT)


def after_commit(config: HealthConfig, history: HealthHistory, totals: StepTotals) -> HealthHistory:
    """`history` with a step that was committed, or skipped."""
    norms = history.norms
    is_finite = isfinite(totals.squared_norm) and isfinite(totals.stats.loss_sum)
    if totals.verdict is StepVerdict.COMMIT and is_finite:
        norms = (*norms, totals.squared_norm**0.5)[-config.window_steps :]
    return replace(history, norms=norms, num_verdicts=history.num_verdicts + 1)


def after_rejection(
    history: HealthHistory, step: int, verdict: StepVerdict, parts: Mapping[int, PartHealth]
) -> HealthHistory:
    """`history` with a verdict by which `step` is not committed."""
    newer = replace(history, num_verdicts=history.num_verdicts + 1)
    if verdict is StepVerdict.REPEAT:
        return replace(newer, repeated_step=step, num_repeats=history.repeats_of(step) + 1)
    if verdict is StepVerdict.HEAL and any(part.is_corrupted for part in parts.values()):
        return replace(newer, healed_step=step, num_heals=history.heals_of(step) + 1)
    return newer


def _rejected(config: HealthConfig, policy: str, num_repeats: int, suspects: tuple[int, ...], reason: str) -> Judgement:
    if suspects:
        reason = f"{reason}; it came from {_name(suspects)}"
    if policy == "skip":
        return Judgement(StepVerdict.SKIP, suspects, reason)
    if num_repeats < config.max_repeats:
        return Judgement(StepVerdict.REPEAT, suspects, reason)
    return _given_up(policy, suspects, f"{reason}, {num_repeats + 1} times")


def _given_up(policy: str, suspects: tuple[int, ...], reason: str) -> Judgement:
    is_known = policy == "evict" and len(suspects) == 1
    return Judgement(StepVerdict.EVICT if is_known else StepVerdict.SKIP, suspects, reason)


def origins_of(parts: Mapping[int, PartHealth]) -> tuple[int, ...]:
    """The ranks whose compute produced non-finite numbers; if that is unknown, those that had such gradients."""
    origins = tuple(rank for rank, part in sorted(parts.items()) if part.is_origin)
    return origins or tuple(rank for rank, part in sorted(parts.items()) if not isfinite(part.gradient_norm))


def outliers_among(parts: Mapping[int, PartHealth], ratio: float = 10.0) -> tuple[int, ...]:
    """The ranks whose own gradients are more than `ratio` times the median rank's."""
    norms = {rank: part.gradient_norm for rank, part in sorted(parts.items()) if part.gradient_norm > 0}
    if len(norms) < 2:
        return tuple(norms)
    usual = median(norms.values())
    return tuple(rank for rank, norm in norms.items() if norm > ratio * usual)


def odd_ones_out(checksums: Mapping[int, int]) -> tuple[int, ...]:
    """The holders of a unit that differ: all but the largest group that agrees.

    Of two groups of the same size it is unknown which is right: then the group without the lowest rank.
    """
    if not checksums:
        return ()
    votes = Counter(checksums.values())
    most = max(votes.values())
    right = checksums[min(rank for rank, checksum in checksums.items() if votes[checksum] == most)]
    return tuple(rank for rank, checksum in sorted(checksums.items()) if checksum != right)


def _name(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
