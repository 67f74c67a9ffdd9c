"""Trainings of other forms that continue a checkpoint; see the functions, of which KIND names one."""

from pathlib import Path

import torch
from parts import BATCH, BUG, EVERY, KIND, STEPS, Numbers, log, net, put
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


def save(step, **parts):
    """Them, and the state of the random generator."""
    state = {name: one.state_dict() if hasattr(one, "state_dict") else one for name, one in parts.items()}
    put({**state, "step": step, "random": torch.get_rng_state()}, "checkpoint.pt")


def load(**parts):
    """Them; what was saved beside them is returned."""
    if not Path("checkpoint.pt").exists():
        return {"step": 0}
    saved = torch.load("checkpoint.pt", weights_only=True)
    for name, one in parts.items():
        one.load_state_dict(saved[name])
    if BUG != "random":
        torch.set_rng_state(saved["random"])
    log("resumed", saved["step"])
    return saved


def nanogpt():
    """Random places of a text, and a learning rate that is set at the beginning of each iteration."""
    text = torch.randint(0, 50, (4096,), generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))

    def batch():
        places = torch.randint(len(text) - 9, (BATCH,))
        x = torch.stack([text[i : i + 8] for i in places])
        return places.tolist(), x, torch.stack([text[i + 1 : i + 9] for i in places])

    saved = load(model=model, optimizer=optimizer)
    done = saved["step"]
    # BUG=draws: as nanoGPT itself does.
    places, x, y = batch() if BUG == "draws" or not done else saved["next"]
    for step in range(done + 1, STEPS + 1):
        rate = 0.01 * min(1.0, step / 20) * (1 - step / 120)
        for group in optimizer.param_groups:
            group["lr"] = rate
        log("begin", step)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        used, (places, x, y) = places, batch()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log("done", step, loss=loss.item(), lr=rate, places=used)
        if step % EVERY == 0:
            save(step, model=model, optimizer=optimizer, next=[places, x, y])


def seeded():
    """Places that are a function of the step."""
    model = net(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = load(model=model, optimizer=optimizer)["step"]
    for step in range(done + 1, STEPS + 1):
        log("begin", step)
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        log("done", step, loss=loss.item())
        if step % EVERY == 0:
            save(step, model=model, optimizer=optimizer)


def gan():
    """Two optimizers, each with a loss of its own."""
    generator, critic = nn.Linear(4, 16), nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    for_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    for_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
    parts = {"generator": generator, "critic": critic, "for_critic": for_critic, "for_generator": for_generator}
    done = load(**{name: one for name, one in parts.items() if BUG != "generator" or name != "for_generator"})["step"]
    for step in range(done + 1, STEPS + 1):
        log("begin", step)
        real = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        forged = generator(torch.randn(8, 4))
        for_critic.zero_grad()
        loss = critic(forged.detach()).mean() - critic(real).mean()
        loss.backward()
        for_critic.step()
        for_generator.zero_grad()
        (-critic(forged).mean()).backward()
        for_generator.step()
        log("done", step, loss=loss.item())
        if step % EVERY == 0:
            save(step, **parts)


def lbfgs():
    """An optimizer that calls a closure."""
    model = net(dropout=0.0)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    done = load(model=model, optimizer=optimizer)["step"]
    for step in range(done + 1, STEPS + 1):
        log("begin", step)
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step // 4))

        def evaluate(x=x):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
            loss.backward()
            return loss

        loss = optimizer.step(evaluate)
        log("done", step, loss=loss.item())
        if step % EVERY == 0:
            save(step, model=model, optimizer=optimizer)


def compiled_step():
    """All of a step is one compiled function."""
    model = net(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    @torch.compile(backend="eager")
    def one(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    done = load(model=model, optimizer=optimizer)["step"]
    for step in range(done + 1, STEPS + 1):
        log("begin", step)
        loss = one(torch.randn(8, 16, generator=torch.Generator().manual_seed(step)))
        log("done", step, loss=loss.item())
        if step % EVERY == 0:
            save(step, model=model, optimizer=optimizer)


class Stream(IterableDataset):
    """Counts what it gave, and goes on from there."""

    def __init__(self):
        self.samples, self.given = Numbers(400), 0

    def __iter__(self):
        while True:
            number, self.given = self.given, self.given + 1
            yield self.samples[number]


def stream():
    """A data set without indices, which keeps its place."""
    model, data = net(), Stream()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    saved = load(model=model, optimizer=optimizer)
    data.given = 0 if BUG == "place" else saved.get("given", 0)
    batches = iter(DataLoader(data, BATCH))
    if saved["step"]:
        torch.set_rng_state(saved["random"])
    for step in range(saved["step"] + 1, STEPS + 1):
        log("begin", step)
        ids, x, y = next(batches)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log("done", step, loss=loss.item(), content=ids.tolist())
        if step % EVERY == 0:
            save(step, model=model, optimizer=optimizer, given=data.given)


torch.set_num_threads(1)
torch.manual_seed(0)
globals()[KIND]()
log("finished")
