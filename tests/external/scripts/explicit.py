"""Three optimizer steps make one step of this training, as only the script knows."""

import torch
from torch import nn

import chaos.agent

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 5):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).mean().backward()
        optimizer.step()
    print("step", step, flush=True)
    chaos.agent.step(loss=torch.tensor(step / 2, requires_grad=True), samples=12, tokens=None)
