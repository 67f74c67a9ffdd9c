"""A replica reads the shards that it holds, of every step, and no others."""

from __future__ import annotations

import pytest
import torch

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import shards_of
from mecefo_runtime.model.data import Corpus
from mecefo_runtime.model.held_data import HeldData, ShardNotHeld
from mecefo_runtime.stacks.placement import Placement

pytestmark = pytest.mark.unit

JOB = JobConfig(nodes=4, gpus_per_node=1, data_parallel=4, pipeline=1, microbatches_per_replica=3, microbatch_size=2)
CORPUS = Corpus(bytes(range(256)) * 40, 16, seed=1)


@pytest.mark.parametrize("replica", range(4))
def test_the_samples_of_held_shards_are_those_of_the_corpus_and_others_are_not_there(replica):
    placement = Placement.of(4, 2)
    held = HeldData(CORPUS, JOB, placement, replica)
    assert held.sequence_length == 16
    # In the second step as in the first.
    for first in (0, JOB.samples_per_step):
        for shard, microbatches in enumerate(shards_of(4, JOB.cluster().num_microbatches)):
            samples = [first + 2 * index + place for index in microbatches for place in range(2)]
            if shard in placement.held_by(replica):
                assert all(torch.equal(*pair) for pair in zip(held.batch(samples), CORPUS.batch(samples), strict=True))
            else:
                with pytest.raises(ShardNotHeld, match=f"replica {replica} holds no sample"):
                    held.batch(samples)
