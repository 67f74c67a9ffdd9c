"""A compiled model, whole or as a function, with warnings as errors, or a compiled step of the optimizer.

compiled.py module|function|method|step
"""

import sys
import warnings

import torch
from torch import nn

HOW = sys.argv[1]

torch._dynamo.config.error_on_recompile = HOW != "step"
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = (torch.optim.Adam if HOW == "step" else torch.optim.SGD)(model.parameters(), lr=0.1)
take_step = torch.compile(lambda: optimizer.step(), backend="eager") if HOW == "step" else optimizer.step
compute = model
if HOW == "module":
    compute = torch.compile(model, backend="eager", fullgraph=True)
elif HOW == "method":
    model.compile(backend="eager", fullgraph=True)
elif HOW == "function":
    compute = torch.compile(lambda x: model(x), backend="eager", fullgraph=True)
if HOW != "step":
    # PyTorch itself warns at that.
    warnings.simplefilter("error")
for step in range(1, 6):
    print("begin", step, flush=True)
    loss = compute(torch.randn(4, 4)).mean()
    print("forward", step, flush=True)
    optimizer.zero_grad()
    loss.backward()
    take_step()
