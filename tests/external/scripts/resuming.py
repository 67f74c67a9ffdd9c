"""Resumes without its optimizer's state: resuming.py HOW STEPS.

HOW: sgd; rounded (saves in bfloat16); unseeded; explicit (says itself when a step is over, after it has saved).
"""

import sys
from pathlib import Path

import torch
from torch import nn

HOW, STEPS, FILE = sys.argv[1], int(sys.argv[2]), Path("state.pt")
if HOW == "explicit":
    import chaos.agent

if HOW != "unseeded":
    torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(4, 2)
done = 0
if FILE.exists():
    saved = torch.load(FILE, weights_only=True)
    model.load_state_dict(saved["model"])
    done = saved["step"]
kind = torch.optim.SGD if HOW == "sgd" else torch.optim.AdamW
optimizer = kind(model.parameters(), lr=0.1, **({"momentum": 0.9} if HOW == "sgd" else {}))
for step in range(done + 1, STEPS + 1):
    loss = model(torch.randn(8, 4, generator=torch.Generator().manual_seed(step))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}", flush=True)
    if step % 2 == 0:
        state = {name: one.bfloat16() if HOW == "rounded" else one for name, one in model.state_dict().items()}
        torch.save({"model": state, "step": step}, FILE)
    if HOW == "explicit":
        chaos.agent.step(loss=loss.item())
