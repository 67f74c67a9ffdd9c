"""Accelerate: save_state, load_state and skip_first_batches, over epochs. BUG=skip: the batches are not skipped."""

from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from parts import BUG, EVERY, STEPS, Numbers, log, net
from torch import nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)
set_seed(3)
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3))
# What Accelerate draws at a resume changes the masks of dropout.
model = net(dropout=0.1 if BUG == "random" else 0.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / 120)
loader = DataLoader(Numbers(200), batch_size=8, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
step, found = 0, sorted(Path().glob("state_*"), key=lambda path: int(path.name.split("_")[1]))
if found:
    accelerator.load_state(str(found[-1]))
    step = int(found[-1].name.split("_")[1])
    log("resumed", step)
per_epoch, is_resumed = len(loader), step > 0
while step < STEPS:
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(step // per_epoch)
    rest = loader
    if is_resumed and step % per_epoch and BUG != "skip":
        rest = accelerator.skip_first_batches(loader, step % per_epoch)
    is_resumed = False
    for ids, x, y in rest:
        step += 1
        log("begin", step)
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        log("done", step, loss=loss.item(), samples=ids.tolist())
        if step % EVERY == 0:
            accelerator.save_state(f"state_{step}")
        if step == STEPS:
            break
log("finished")
