"""A training script as somebody else wrote it, which also measures its own steps: prints one JSON document.

When it is followed, every other block of steps is not: so the two are compared in one process, in turns. At the end it
times what the agent does in a step by itself.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_WARMUP_STEPS = 10
NUM_ALONE_REPEATS, NUM_ALONE_STEPS = 9, 500
BATCH_SIZE, LENGTH, WIDTH = 8, 64, 128


def train(num_blocks: int, steps_per_block: int) -> dict[str, Any]:
    """CPU and wall seconds of a step, the mean of each block; odd blocks are followed, if any are."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    num_steps = NUM_WARMUP_STEPS + num_blocks * steps_per_block
    inputs = torch.randn(num_steps * BATCH_SIZE, LENGTH, WIDTH)
    batches = iter(DataLoader(TensorDataset(inputs, inputs.roll(1, dims=1)), batch_size=BATCH_SIZE))
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True), num_layers=2)
    optimizer = torch.optim.AdamW(model.parameters())

    def steps(number: int) -> None:
        for x, y in islice(batches, number):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    steps(NUM_WARMUP_STEPS)
    following = _tracker()
    blocks = []
    for block in range(num_blocks):
        is_followed = block % 2 == 1
        if following is not None and not is_followed:
            following.hooks.detach()
        cpu, wall = time.process_time(), time.monotonic()
        steps(steps_per_block)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        if following is not None and not is_followed:
            following.hooks.attach()
        blocks.append(
            {"is_followed": is_followed, "cpu_seconds": cpu / steps_per_block, "wall_seconds": wall / steps_per_block}
        )
    alone = [] if following is None else list(_alone(following, model, optimizer, inputs))
    return {"is_followed": following is not None, "blocks": blocks, "agent_seconds": alone}


def _tracker() -> Any:
    start = sys.modules.get("chaos.external.start")
    return None if start is None else start.tracker()


def _alone(following: Any, model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> Iterator[float]:
    """CPU seconds, of all threads, of what the agent is called for in a step: all of it, and nothing else."""
    loader = iter(DataLoader(TensorDataset(inputs, inputs), batch_size=BATCH_SIZE))
    source, batch, loss = object(), [inputs[:BATCH_SIZE], inputs[:BATCH_SIZE]], torch.ones(())
    # Steps that do nothing else are not to be left out.
    sys.modules["chaos.external.observation.step_watch"].COST_RATIO = inf  # type: ignore[attr-defined]
    for _ in range(NUM_ALONE_REPEATS):
        began = time.process_time()
        for _ in range(NUM_ALONE_STEPS):
            following.on_data(source)
            following.on_asked(loader, list(range(BATCH_SIZE)))
            following.on_batch(source, batch, loader, is_first=False)
            following.hooks.on_module(model, (batch[0],), {})
            following.on_backward(loss, None)
            following.on_stepping(optimizer, (optimizer,), {})
            following.on_stepped(optimizer)
        yield (time.process_time() - began) / NUM_ALONE_STEPS


if __name__ == "__main__":
    print(json.dumps(train(*map(int, sys.argv[1:]))))
