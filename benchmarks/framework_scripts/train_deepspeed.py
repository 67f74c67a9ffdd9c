"""DeepSpeed with ZeRO-1: torchrun --nproc-per-node 2 --max-restarts 1 train_deepspeed.py FOLDER."""

import sys
from pathlib import Path

import deepspeed
import torch
from step_log import StepLog
from tiny_gpt import BATCH_SIZE, SAVE_EVERY, STEPS, TinyGPT, batch_of, loss_of

CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH_SIZE,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "gradient_clipping": 1.0,
    "steps_per_print": 10,
}


def train(folder: Path) -> None:
    """From the newest checkpoint to the last step."""
    deepspeed.init_distributed("gloo")
    rank = deepspeed.comm.get_rank()
    log = StepLog(folder, rank)
    torch.manual_seed(0)
    engine, *_ = deepspeed.initialize(model=TinyGPT(), config=CONFIG)
    engine.load_checkpoint(str(folder))  # the one that the file `latest` names; none: a warning
    if engine.global_steps:
        log.resumed(engine.global_steps)
    for step in range(engine.global_steps + 1, STEPS + 1):
        log.began(step)
        ids = batch_of(step, rank)
        loss = loss_of(engine(ids[:, :-1]), ids[:, 1:])
        engine.backward(loss)
        engine.step()
        if engine.was_step_applied():  # not, where it skips a step for an overflow
            log.done(step, loss.item())
        if step % SAVE_EVERY == 0:
            engine.save_checkpoint(str(folder))
    log.ended(engine.global_steps, engine.module.parameters())
    deepspeed.comm.destroy_process_group()


train(Path(sys.argv[1]))
