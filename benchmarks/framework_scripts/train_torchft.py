"""torchft over gloo, one rank to a replica group; `torchft.sh FOLDER` starts two groups and their lighthouse.

`torchft.sh FOLDER allreduce` reduces gradients by the Manager itself, not by torchft's DistributedDataParallel, which
(torchft 0.2.0, ddp.py, `assert fut._fut`) raises in the survivors when another group dies.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from step_log import StepLog
from tiny_gpt import SAVE_EVERY, STEPS, TinyGPT, batch_of, loss_of
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def train(folder: Path, group: int, is_reduced_by_manager: bool) -> None:
    """From the other group's state, else from the newest checkpoint, to the last step."""
    checkpoint, log = folder / "checkpoint.pt", StepLog(folder, group)
    torch.manual_seed(0)
    model = TinyGPT()
    plain_optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def state_dict() -> dict:
        return {"model": model.state_dict(), "optimizer": plain_optimizer.state_dict()}

    def load_state_dict(state: dict) -> None:
        model.load_state_dict(state["model"])
        plain_optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_{group}",
        timeout=timedelta(seconds=30),
    )
    parallel = model if is_reduced_by_manager else DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, plain_optimizer)
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        load_state_dict(saved)
        manager.load_state_dict(saved["manager"])
        log.resumed(manager.current_step())
    while manager.current_step() < STEPS:
        step = manager.current_step() + 1
        log.began(step)
        ids = batch_of(step, group)
        optimizer.zero_grad()  # begins the quorum of this step; a group that is behind takes the others' state in it
        loss = loss_of(parallel(ids[:, :-1]), ids[:, 1:])
        loss.backward()
        if is_reduced_by_manager:
            for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
                work.wait()
        optimizer.step()  # only where all groups of the quorum came through
        if manager.current_step() < step:
            continue
        log.done(manager.current_step(), loss.item())
        if group == 0 and manager.current_step() % SAVE_EVERY == 0:
            torch.save({**state_dict(), "manager": manager.state_dict()}, folder / "new.pt")
            (folder / "new.pt").replace(checkpoint)
    log.ended(STEPS, model.parameters())
    manager.shutdown()


train(Path(sys.argv[1]), int(os.environ["REPLICA_GROUP_ID"]), "allreduce" in sys.argv)
