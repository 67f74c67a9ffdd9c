"""FSDP2 with distributed checkpoints: torchrun --nproc-per-node 2 --max-restarts 1 train_fsdp.py FOLDER."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from step_log import StepLog
from tiny_gpt import SAVE_EVERY, STEPS, TinyGPT, batch_of, loss_of
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class TrainState:
    """What is saved, as in PyTorch's recipe for distributed checkpoints (a Stateful)."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict:
        """The rank's own shards."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict) -> None:
        """Takes up what was loaded."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end: its metadata is written last."""
    complete = [path.parent for path in folder.glob("step-*/.metadata")]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def train(folder: Path) -> None:
    """From the newest checkpoint to the last step."""
    rank, log = dist.get_rank(), StepLog(folder, dist.get_rank())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = TinyGPT()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = TrainState(model, optimizer)
    if (checkpoint := newest(folder)) is not None:
        dcp.load({"train": state}, checkpoint_id=checkpoint)
        log.resumed(state.step)
    for step in range(state.step + 1, STEPS + 1):
        log.began(step)
        ids = batch_of(step, rank)
        loss = loss_of(model(ids[:, :-1]), ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state.step = step
        log.done(step, loss.item())
        if step % SAVE_EVERY == 0:
            dcp.save({"train": state}, checkpoint_id=folder / f"step-{step}")


dist.init_process_group("gloo")
train(Path(sys.argv[1]))
dist.destroy_process_group()
