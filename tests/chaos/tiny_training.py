"""A small real training with a peer whose gradients are added, told step by step to one effect as an agent would."""

import torch
from torch import nn

PHASES = ("data", "forward", "backward", "reduce", "optimizer", "commit")


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer = nn.ModuleList([Block(size) for _ in range(2)])
        self.norm = nn.LayerNorm(size)

    def forward(self, x):
        for block in self.layer:
            x = block(x)
        return self.norm(x)


class Training:
    """A rank that trains `model` together with a peer; what an effect sees of it is itself."""

    def __init__(self, create_optimizer=torch.optim.AdamW, *, size=8, seed=0):
        torch.manual_seed(seed)
        self.model = Model(size)
        self.optimizer = create_optimizer(self.model.parameters())
        self.size = size
        self.step = 0
        self.effect = None
        self.reports = []
        self.is_reducing = True
        # Steps whose update is left out, and what is done to the model just before a phase.
        self.skipped = set()
        self.before = {}

    # ---- as a subject ----

    def modules(self):
        return {name: module for name, module in self.model.named_modules() if name}

    def tensors(self, kind):
        found = {}
        for name, parameter in self.model.named_parameters():
            if kind == "parameters":
                found[name] = parameter.data
            elif kind == "gradients" and parameter.grad is not None:
                found[name] = parameter.grad
            elif kind == "optimizer":
                for key, value in self.optimizer.state.get(parameter, {}).items():
                    if value.shape == parameter.shape:
                        found[f"{name}.{key}"] = value
        return found

    def updater(self, name):
        return self.optimizer, self.model.get_parameter(name), 0

    # ---- as a rank ----

    def begin(self, effect, arguments, step, phase):
        """Have `effect` begun when the rank is held at (step, phase)."""
        self._planned = (effect, arguments, step, phase)

    def train(self, steps):
        """So many more steps; the effect's reports are in `reports`."""
        for _ in range(steps):
            self.step += 1
            self._step()
        return self.reports

    def _announce(self, phase):
        self.before.get((self.step, phase), lambda: None)()
        if self.effect is not None:
            self.effect.announced(self.step, phase)
        effect, arguments, step, at = getattr(self, "_planned", (None, None, 0, ""))
        if (self.step, phase) == (step, at):
            self.effect = effect(arguments, self, self.reports.append)
            self.begun = self.effect.begin(step, phase)
            self.effect.released()

    def _step(self):
        generator = torch.Generator().manual_seed(self.step)
        mine, theirs = (torch.randn(4, self.size, generator=generator) for _ in range(2))
        self.optimizer.zero_grad(set_to_none=False)
        self._announce("data")
        self._announce("forward")
        loss = self.model(mine).square().mean()
        self._announce("backward")
        loss.backward()
        self._announce("reduce")
        if self.is_reducing:
            peers = torch.autograd.grad(self._clean_copy()(theirs).square().mean(), self._copied)
            for parameter, gradient in zip(self.model.parameters(), peers, strict=True):
                parameter.grad += gradient
        self._announce("optimizer")
        if self.step not in self.skipped:
            self.optimizer.step()
        self._announce("commit")

    def _clean_copy(self):
        # Without the hooks of this rank, as a peer's process has none of them.
        copy = Model(self.size)
        copy.load_state_dict(self.model.state_dict())
        self._copied = list(copy.parameters())
        return copy
