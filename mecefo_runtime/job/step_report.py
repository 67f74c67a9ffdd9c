"""A step as values: what it consumed, what each rank says of its own part, what was agreed, what is remembered.

Ranks exchange them to commit a step, and tell them to the coordinator, which may have to finish a commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum


class StepVerdict(IntEnum):
    """The decision on a step."""

    COMMIT = 0
    REPEAT = 1  # compute it again from unchanged parameters
    SKIP = 2  # commit it without touching parameters and optimizer
    EVICT = 3  # compute it again without the rank that corrupted it
    HEAL = 4  # compute it again once every holder of a unit holds the same


@dataclass(frozen=True, slots=True)
class StepStats:
    """What a step consumed and how well it did, summed over samples.

    `loss_sum` is in nats over all tokens, `checksum` is over the samples' numbers.
    """

    loss_sum: float = 0.0
    tokens: int = 0
    samples: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class StepTotals:
    """What the members agreed on for a step: the squared norm of the whole gradient, its stats, and the verdict."""

    squared_norm: float
    stats: StepStats
    verdict: StepVerdict = StepVerdict.COMMIT


PART_SIZE = 2


@dataclass(frozen=True, slots=True)
class PartHealth:
    """What one member says of its own part of a step, before anything was summed.

    `gradient_norm` is of its own gradients, weighted by samples. `is_origin`: its compute turned finite input into a
    non-finite result. `differs`: its parameters differ from its peers'. `is_corrupted`: its parameters are not
    finite, or its optimizer state would make them so in this step.
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


@dataclass(frozen=True, slots=True)
class HealthHistory:
    """What the verdict on a step needs to know of earlier steps; the same for all members of an epoch.

    `norms` are those of the last committed gradients. `num_repeats` counts for `repeated_step` alone, `num_heals` for
    `healed_step`. `num_verdicts` grows with every verdict, so that the newest of several histories can be told.
    """

    norms: tuple[float, ...] = ()
    repeated_step: int = 0
    num_repeats: int = 0
    healed_step: int = 0
    num_heals: int = 0
    num_verdicts: int = 0

    def repeats_of(self, step: int) -> int:
        """How often `step` has been repeated."""
        return self.num_repeats if self.repeated_step == step else 0

    def heals_of(self, step: int) -> int:
        """How often state has been healed because of `step`."""
        return self.num_heals if self.healed_step == step else 0


NO_HISTORY = HealthHistory()


@dataclass(frozen=True, slots=True)
class ReadyStep:
    """A step whose reduced gradients a rank holds and has not applied.

    `norms` are the squared ones of its units, `stats` are known to holders of the head. `part` is what it says of its
    own part; `odd_ranks` are those whose parameters it found to differ from their peers' in this step. `totals` are
    there once the rank knows them.
    """

    step: int
    norms: Mapping[str, float]
    stats: StepStats | None
    part: PartHealth
    odd_ranks: tuple[int, ...] = ()
    totals: StepTotals | None = None


@dataclass(frozen=True, slots=True)
class LateCommit:
    """A step that the survivors of a loss commit: members that have not applied it yet do so with these totals."""

    step: int
    totals: StepTotals
