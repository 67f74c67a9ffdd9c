"""The data of a replica that holds some shards of every step, and no others."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import shards_of
from mecefo_runtime.model.data import Corpus
from mecefo_runtime.stacks.placement import Placement


class ShardNotHeld(RuntimeError):
    """A replica was asked to compute a sample that it does not hold: a bug that must not be hidden."""


class HeldData:
    """Of `corpus`, what `replica` holds by the `placement` of a job's shards."""

    def __init__(self, corpus: Corpus, job: JobConfig, placement: Placement, replica: int) -> None:
        self._corpus = corpus
        self._replica = replica
        self._samples_per_step = job.samples_per_step
        self._microbatch_size = job.microbatch_size
        shards = shards_of(placement.num_groups, job.cluster().num_microbatches)
        self._held = frozenset(index for held in placement.held_by(replica) for index in shards[held])

    @property
    def sequence_length(self) -> int:
        """Tokens of a sample."""
        return self._corpus.sequence_length

    def batch(self, samples: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(inputs_BT, targets_BT) of the samples.

        Raises:
            ShardNotHeld: one of them is not here.
        """
        for sample in samples:
            microbatch = sample % self._samples_per_step // self._microbatch_size
            if microbatch not in self._held:
                raise ShardNotHeld(f"replica {self._replica} holds no sample {sample}, of microbatch {microbatch}")
        return self._corpus.batch(samples)
