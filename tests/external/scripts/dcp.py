"""FSDP2 with torch.distributed.checkpoint, which goes on from its newest checkpoint: dcp.py STEPS [STEP_SECONDS]."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, FOLDER = int(sys.argv[1]), Path("checkpoints")
# So that steps take as long as those of a model of some size.
STEP_SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0


def train():
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = 0
    if saved := sorted(FOLDER.glob("*"), key=lambda folder: int(folder.name)):
        state, optimizer_state = get_state_dict(model, optimizer)
        dcp.load({"model": state, "optimizer": optimizer_state}, checkpoint_id=str(saved[-1]))
        set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=optimizer_state)
        done = int(saved[-1].name)
    for step in range(done + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}", flush=True)
        if step % 4 == 0:
            state, optimizer_state = get_state_dict(model, optimizer)
            dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=str(FOLDER / str(step)))


def main():
    dist.init_process_group("gloo")
    train()
    # Its group's end makes PyTorch's gloo (2.13) abort, now and then.
    os._exit(0)


if __name__ == "__main__":
    main()
