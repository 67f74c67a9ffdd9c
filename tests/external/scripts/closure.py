"""An optimizer that evaluates the model itself, several times a step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
inputs = torch.randn(16, 3)
for step in range(1, 5):

    def evaluate():
        print("evaluate", step, flush=True)  # noqa: B023 - called within the step
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        print("evaluated", step, flush=True)  # noqa: B023
        return loss

    optimizer.step(evaluate)
    print("step", step, flush=True)
