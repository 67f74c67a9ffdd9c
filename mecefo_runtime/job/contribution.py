"""A step in flight as values: which parts of it ranks have computed, and how the members of a new epoch complete it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mecefo_runtime.job.layout import Span


@dataclass(frozen=True, slots=True)
class ComputedPart:
    """`microbatches` whose gradients a rank has in the layers of `span`, approximated as that says."""

    microbatches: tuple[int, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a rank has computed of `step`: the sum of the gradients of all microbatches of `parts`.

    `num_verdicts` is how many the rank had heard when it began. What was computed before a newer one does not count.
    """

    step: int
    num_verdicts: int
    parts: tuple[ComputedPart, ...] = ()

    @property
    def microbatches(self) -> tuple[int, ...]:
        """All of them, ascending, as indices into the step's microbatches."""
        return tuple(sorted(index for part in self.parts for index in part.microbatches))


@dataclass(frozen=True, slots=True)
class Work:
    """`microbatches` that `replica` has computed, or is to compute, in the stages `spans`."""

    replica: int
    microbatches: tuple[int, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """How an interrupted `step` is completed: each of its microbatches is in `kept` or in `assigned`.

    `kept` has been computed, `assigned` is still to be computed by its replicas. `lost_work_ratio` is the
    share of the step that replicas were computing of which nothing is kept.
    """

    step: int
    kept: tuple[Work, ...]
    assigned: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    lost_work_ratio: float = 0.0

    @property
    def num_kept(self) -> int:
        """The number of microbatches that need not be computed again."""
        return sum(len(work.microbatches) for work in self.kept)

    def kept_by(self, replica: int) -> tuple[int, ...]:
        """The microbatches that `replica` has computed, ascending; empty when its contributions do not count."""
        return tuple(sorted(index for work in self.kept if work.replica == replica for index in work.microbatches))
