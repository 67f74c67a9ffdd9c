"""Numerical health: is a step fit to be committed, and if not, what becomes of it and who is to blame.

The leader judges every step in the commit exchange, from what each member says of its own part, and everybody obeys.
A step that is not finite, or whose gradient is far larger than usual, is computed again, skipped, or costs the rank
that corrupted it its place. Where parameters of two holders differ, the one that differs gets its peers'; so does one
whose parameters are not finite, or would not be after the optimizer's next step.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf, isfinite
from statistics import median

from mecefo_runtime.job.config import HealthConfig


class StepVerdict(IntEnum):
    """What becomes of a step."""

    COMMIT = 0
    REPEAT = 1  # compute it again from unchanged parameters
    SKIP = 2  # commit it without touching parameters and optimizer
    EVICT = 3  # compute it again without the rank that corrupted it
    HEAL = 4  # compute it again once every holder of a unit holds the same


@dataclass(frozen=True, slots=True)
class PartHealth:
    """What one member says of its own part of a step, before anything was summed.

    `gradient_norm` is of its own gradients, weighted by samples. `is_origin`: something not finite came out of its
    compute though all that went in was finite. `differs`: its parameters are not those of its peers. `is_corrupted`:
    its parameters are not finite, or its optimizer state would make such in this step.
    """

    gradient_norm: float = 0.0
    is_origin: bool = False
    differs: bool = False
    is_corrupted: bool = False

    def encode(self) -> list[float]:
        """As the numbers that the commit exchange carries."""
        return [self.gradient_norm, float(self.is_origin) + 2.0 * self.differs + 4.0 * self.is_corrupted]

    @classmethod
    def decode(cls, numbers: Sequence[float]) -> PartHealth:
        """Read what `encode` wrote."""
        flags = int(numbers[1])
        return cls(numbers[0], bool(flags & 1), bool(flags & 2), bool(flags & 4))


PART_SIZE = 2


@dataclass(frozen=True, slots=True)
class Judgement:
    """`verdict` on a step; `suspects` are the ranks to blame, where they are known, and `reason` says it in words."""

    verdict: StepVerdict
    suspects: tuple[int, ...] = ()
    reason: str = ""


class Judge:
    """Judges one step after the other. Only the leader's counts, so it need not know what others knew before it."""

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self._norms: deque[float] = deque(maxlen=config.window_steps)
        self._repeated_step = 0
        self._num_repeats = 0
        self._healed_step = 0
        self._num_heals = 0

    def judge(self, step: int, loss_sum: float, squared_norm: float, parts: Mapping[int, PartHealth]) -> Judgement:
        """The verdict on `step`, whose gradients have been summed; `parts` by rank."""
        corrupted = tuple(rank for rank, part in sorted(parts.items()) if part.is_corrupted)
        if corrupted:
            return self._corrupted(step, corrupted)
        differing = tuple(rank for rank, part in sorted(parts.items()) if part.differs)
        if differing:
            return Judgement(StepVerdict.HEAL, differing, f"{_name(differing)}: parameters differ from the peers'")
        config = self._config
        if not (isfinite(loss_sum) and isfinite(squared_norm)):
            if config.nonfinite == "commit":
                return Judgement(StepVerdict.COMMIT)
            suspects = origins_of(parts)
            return self._rejected(step, config.nonfinite, suspects, "the gradient or the loss is not finite")
        norm = squared_norm**0.5
        usual = median(self._norms) if len(self._norms) == self._norms.maxlen else inf
        if config.outlier != "commit" and norm > config.outlier_ratio * usual:
            suspects = outliers_among(parts)
            reason = f"the gradient's norm is {norm:.3g}, usual is {usual:.3g}"
            # With nobody to evict, and computed again, it is what the data says: else all that follow were skipped too.
            is_final = config.outlier == "skip" or (config.outlier == "evict" and bool(suspects))
            if is_final or self._repeats_of(step) < config.max_repeats:
                return self._rejected(step, config.outlier, suspects, reason)
        self._norms.append(norm)
        return Judgement(StepVerdict.COMMIT)

    def _corrupted(self, step: int, suspects: tuple[int, ...]) -> Judgement:
        reason = f"{_name(suspects)}: parameters or optimizer state are spoilt"
        num_heals = self._num_heals if self._healed_step == step else 0
        if num_heals <= self._config.max_repeats:
            self._healed_step, self._num_heals = step, num_heals + 1
            return Judgement(StepVerdict.HEAL, suspects, reason)
        # Something corrupts them again and again: the job must not stand still over it.
        return self._given_up(self._config.nonfinite, suspects, f"{reason}, {num_heals + 1} times")

    def _rejected(self, step: int, policy: str, suspects: tuple[int, ...], reason: str) -> Judgement:
        if suspects:
            reason = f"{reason}; it came from {_name(suspects)}"
        if policy == "skip":
            return Judgement(StepVerdict.SKIP, suspects, reason)
        num_repeats = self._repeats_of(step)
        if num_repeats < self._config.max_repeats:
            self._repeated_step, self._num_repeats = step, num_repeats + 1
            return Judgement(StepVerdict.REPEAT, suspects, reason)
        return self._given_up(policy, suspects, f"{reason}, {num_repeats + 1} times")

    def _given_up(self, policy: str, suspects: tuple[int, ...], reason: str) -> Judgement:
        is_known = policy == "evict" and len(suspects) == 1
        return Judgement(StepVerdict.EVICT if is_known else StepVerdict.SKIP, suspects, reason)

    def _repeats_of(self, step: int) -> int:
        return self._num_repeats if self._repeated_step == step else 0


def origins_of(parts: Mapping[int, PartHealth]) -> tuple[int, ...]:
    """Whose compute made numbers that are not finite; if that cannot be told, who had such gradients."""
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
    """Who of a unit's holders differs: all but the largest group that agrees.

    Of two holders, or two groups of the same size, nobody can say which is right: then those without the lowest rank.
    """
    if not checksums:
        return ()
    votes = Counter(checksums.values())
    most = max(votes.values())
    right = checksums[min(rank for rank, checksum in checksums.items() if votes[checksum] == most)]
    return tuple(rank for rank, checksum in sorted(checksums.items()) if checksum != right)


def _name(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
