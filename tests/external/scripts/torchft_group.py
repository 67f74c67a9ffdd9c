"""One replica group of torchft, of one rank: eight steps with SGD, which keeps no count of its own."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, Optimizer, ProcessGroupGloo


def main():
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=True, wait_for_workers=False)
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    manager = Manager(
        pg=ProcessGroupGloo(),
        min_replica_size=2,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        replica_id=f"group_{os.environ['REPLICA_GROUP_ID']}",
    )
    optimizer = Optimizer(manager, inner)
    while manager.current_step() < 8:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()
        optimizer.step()
    manager.shutdown(wait=False)
    del store


if __name__ == "__main__":
    main()
