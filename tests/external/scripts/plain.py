"""A training loop as one writes it: plain.py [STEPS] [ACCUMULATION] [WORKERS]; says what it does."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, ACCUMULATION, WORKERS = map(int, [*sys.argv[1:], *(6, 1, 0)[len(sys.argv) - 1 :]])


def say(*words):
    print(*words, flush=True)


def main():
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, num_workers=WORKERS)
    held_out = DataLoader(TensorDataset(inputs, inputs), batch_size=16)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    step = microbatch = 0
    while step < STEPS:
        for x, y in loader:
            say("data", step + 1)
            loss = nn.functional.mse_loss(model(x), y) / ACCUMULATION
            say("forward", step + 1)
            loss.backward()
            say("backward", step + 1)
            microbatch += 1
            if microbatch % ACCUMULATION:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            say("step", step, loss.item() * ACCUMULATION)
            if step == 2:
                with torch.no_grad():
                    for held_out_x, _ in held_out:
                        model(held_out_x)
                torch.save(model.state_dict(), "model.pt")
                say("saved")
            if step == STEPS:
                break


if __name__ == "__main__":
    main()
