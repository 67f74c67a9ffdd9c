"""A compiled model, whole or as a function, with warnings as errors: compiled.py module|function|method."""

import sys
import warnings

import torch
from torch import nn

HOW = sys.argv[1]

torch._dynamo.config.error_on_recompile = True
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if HOW == "module":
    compute = torch.compile(model, backend="eager", fullgraph=True)
elif HOW == "method":
    model.compile(backend="eager", fullgraph=True)
    compute = model
else:
    compute = torch.compile(lambda x: model(x), backend="eager", fullgraph=True)
warnings.simplefilter("error")
for step in range(1, 6):
    print("begin", step, flush=True)
    loss = compute(torch.randn(4, 4)).mean()
    print("forward", step, flush=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
