"""No module, no loader, no call of backward: bare.py; all that shows is the optimizer."""

import torch

weight = torch.zeros(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(1, 6):
    weight.grad = torch.ones(3)
    print("ready", step, flush=True)
    optimizer.step()
    print("step", step, flush=True)
