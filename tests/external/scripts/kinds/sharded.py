"""FSDP2 that continues a checkpoint of torch.distributed.checkpoint (KIND=async: written in the background).

BUG=shard: files of each rank's shards, and every rank loads its neighbour's optimizer.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from parts import BUG, EVERY, KIND, RANK, STEPS, WORLD, log, net
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FOLDER = Path("checkpoints")


def moments(optimizer):
    for state in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            yield state[name].to_local()


def newest():
    whole = [folder for folder in FOLDER.glob("*") if (folder / ".metadata").exists()]
    return max(whole, key=lambda folder: int(folder.name), default=None)


def load(model, optimizer):
    folder = newest()
    if folder is None:
        return 0
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": state, "optimizer": optimizer_state}, checkpoint_id=str(folder))
    set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=optimizer_state)
    if BUG == "shard":
        for own, other in zip(moments(optimizer), torch.load(f"shard_{(RANK + 1) % WORLD}.pt"), strict=True):
            if own.shape == other.shape:
                own.copy_(other)
    log("resumed", int(folder.name))
    return int(folder.name)


def train():
    torch.manual_seed(0)
    model = net(dropout=0.0)
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done, saving = load(model, optimizer), None
    # What is written in the background has a group of its own.
    beside = dist.new_group(backend="gloo")
    for step in range(done + 1, STEPS + 1):
        log("begin", step)
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * WORLD + RANK))
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log("done", step, loss=loss.item())
        if step % EVERY == 0:
            if saving is not None:
                saving.result()
            state, optimizer_state = get_state_dict(model, optimizer)
            state = {"model": state, "optimizer": optimizer_state}
            if BUG == "shard":
                torch.save([one.clone() for one in moments(optimizer)], f"shard_{RANK}.pt")
            if KIND == "async":
                saving = dcp.async_save(state, checkpoint_id=str(FOLDER / str(step)), process_group=beside)
            else:
                dcp.save(state, checkpoint_id=str(FOLDER / str(step)))
    if saving is not None:
        saving.result()


torch.set_num_threads(1)
dist.init_process_group("gloo")
train()
log("finished")
# Its group's end makes PyTorch's gloo (2.13) abort, now and then.
os._exit(0)
