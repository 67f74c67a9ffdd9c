"""Ranks that torch.multiprocessing starts, known to nobody but their process group."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).mean().backward()
        optimizer.step()


def main(rank, port_file):
    store = dist.FileStore(port_file, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    # The model goes before its group: see ddp.py.
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=("store",), nprocs=2)
