"""Accelerate: torchrun --nproc-per-node 2 --max-restarts 1 train_accelerate.py FOLDER."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from step_log import StepLog
from tiny_gpt import SAVE_EVERY, STEPS, TinyGPT, batch_of, loss_of


def train(folder: Path) -> None:
    """From the newest checkpoint to the last step."""
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    log = StepLog(folder, rank)
    torch.manual_seed(0)
    model = TinyGPT()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    saved = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
    done = max(saved, default=0)
    if done:
        accelerator.load_state(str(folder / f"step-{done}"))
        log.resumed(done)
    for step in range(done + 1, STEPS + 1):
        log.began(step)
        ids = batch_of(step, rank)
        loss = loss_of(model(ids[:, :-1]), ids[:, 1:])
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        log.done(step, loss.item())
        if step % SAVE_EVERY == 0:
            accelerator.save_state(str(folder / "new"))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (folder / "new").rename(folder / f"step-{step}")
            accelerator.wait_for_everyone()
    log.ended(STEPS, model.parameters())
    accelerator.end_training()


train(Path(sys.argv[1]))
