"""nanoGPT's training loop, in small: torchrun --nproc-per-node 2 --max-restarts 1 train_nanogpt.py FOLDER.

As there: gradient accumulation with the reduction in the last micro-step only, clipping, a GradScaler (disabled on
CPUs), a learning rate that warms up and decays, iterations from 0, and an evaluation on rank 0 that saves a checkpoint.
Unlike there, where `--init_from=resume` says so, it resumes whenever there is a checkpoint: torchrun restarts it with
the same arguments. https://github.com/karpathy/nanoGPT, MIT.
"""

import math
import os
import sys
from pathlib import Path

import torch
from step_log import StepLog
from tiny_gpt import SAVE_EVERY, STEPS, TinyGPT, batch_of, loss_of
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

out_dir = Path(sys.argv[1])
eval_interval, eval_iters = SAVE_EVERY, 2
gradient_accumulation_steps = 4
learning_rate, min_lr, warmup_iters, max_iters = 1e-3, 1e-4, 5, STEPS
beta1, beta2, weight_decay, grad_clip = 0.9, 0.95, 1e-1, 1.0


def get_lr(it: int) -> float:
    """Linear warm-up, then a cosine."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    decay_ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * decay_ratio)) * (learning_rate - min_lr)


@torch.no_grad()
def estimate_loss(model: TinyGPT) -> float:
    """Of batches that are not trained on."""
    model.eval()
    batches = [batch_of(-1 - k, 0) for k in range(eval_iters)]
    mean = sum(loss_of(model(ids[:, :-1]), ids[:, 1:]).item() for ids in batches) / eval_iters
    model.train()
    return mean


def main() -> None:
    """Train to `max_iters`."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = StepLog(out_dir, rank)
    micro_steps = gradient_accumulation_steps // world_size
    torch.manual_seed(1337 + rank)
    raw_model = TinyGPT()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    decayed = [p for p in raw_model.parameters() if p.dim() >= 2]
    others = [p for p in raw_model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2))
    iter_num, best_val_loss = 0, 1e9
    if (out_dir / "ckpt.pt").exists():
        checkpoint = torch.load(out_dir / "ckpt.pt")
        raw_model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]
        log.resumed(iter_num)
    model = DistributedDataParallel(raw_model)
    while True:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(iter_num)
        if iter_num % eval_interval == 0 and rank == 0:
            val_loss = estimate_loss(raw_model)
            print(f"step {iter_num}: val loss {val_loss:.4f}", flush=True)
            best_val_loss = min(best_val_loss, val_loss)
            if iter_num > 0:
                saved = {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                    "best_val_loss": best_val_loss,
                }
                torch.save(saved, out_dir / "ckpt.pt")
        if iter_num >= max_iters:
            break
        log.began(iter_num + 1)
        for micro_step in range(micro_steps):
            model.require_backward_grad_sync = micro_step == micro_steps - 1
            ids = batch_of(micro_steps * iter_num + micro_step, rank)
            loss = loss_of(model(ids[:, :-1]), ids[:, 1:]) / micro_steps
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
        log.done(iter_num, loss.item() * micro_steps)
    log.ended(iter_num, model.parameters())


init_process_group("gloo")
main()
destroy_process_group()
