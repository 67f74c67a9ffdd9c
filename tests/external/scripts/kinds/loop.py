"""Loops of one's own that continue a checkpoint: KIND names what they do, BUG what they do not restore."""

import copy
import itertools
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from parts import BATCH, BUG, EVERY, KIND, RANK, STEPS, WORLD, Numbers, checksum, log, net, put
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Sampler, Subset

SIZE = {"epochs": 320, "padding": 321, "persistent": 320, "no_set_epoch": 320}.get(KIND, 960)
ACCUMULATION = 2 if KIND in {"accumulation", "microbatches", "summed"} or BUG == "remainder" else 1
WORKERS = 2 if KIND in {"workers", "persistent", "augmented_workers"} else 0
HAS_NORM = BUG == "buffers" or KIND == "norm"
if ACCUMULATION > 1:
    SIZE *= ACCUMULATION
PER_EPOCH = -(-SIZE // WORLD) // BATCH // ACCUMULATION + (KIND == "padding" and -(-SIZE // WORLD) % BATCH > 0)


class Mean(nn.Module):
    """A metric is a module, too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()), persistent=False)

    def forward(self, value, weights):
        self.total += value * weights.mean()
        return self.total


METRIC = Mean()


class FromStart(Sampler):
    """Goes on within the epoch, as samplers that keep a place do."""

    def __init__(self, size, seed, start):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
        self.rest = order[RANK::WORLD][start:]

    def __iter__(self):
        return iter(self.rest)

    def __len__(self):
        return len(self.rest)


def skipped(done):
    """How many steps of the epoch are left out at a resume."""
    return {"too_far": done + 3, "too_little": max(0, done - 3)}.get(BUG, done) if done else 0


class Data:
    """The batches of each epoch, from a step of it on."""

    def __init__(self):
        self.samples = Numbers(SIZE, is_augmented=KIND.startswith("augmented"))
        self.sampler, self.loader, self.first = None, None, None
        if KIND in {"distributed", "padding", "epochs", "persistent", "no_set_epoch"}:
            self.sampler = DistributedSampler(self.samples, WORLD, RANK, shuffle=True, seed=7)
            self.loader = DataLoader(
                self.samples, BATCH, sampler=self.sampler, num_workers=WORKERS, persistent_workers=KIND == "persistent"
            )

    def epoch(self, number, done):
        """An iterator; the first `done` steps were made."""
        left_out = skipped(done) * ACCUMULATION + (BUG == "remainder" and done > 0)
        if self.sampler is not None:
            if KIND != "no_set_epoch":
                # BUG=set_epoch: the resumed job counts its epochs from 0.
                self.first = number if self.first is None else self.first
                self.sampler.set_epoch(number - self.first if BUG == "set_epoch" else number)
            return itertools.islice(self.loader, left_out, None)
        if KIND == "start_index":
            return iter(DataLoader(self.samples, BATCH, sampler=FromStart(SIZE, number, left_out * BATCH)))
        size = SIZE - 40 if BUG == "length" and done else SIZE
        mine = Subset(self.samples, range(RANK, size, WORLD))
        generator = None if BUG == "order" else torch.Generator().manual_seed(1000 + number)
        found = iter(DataLoader(mine, BATCH, shuffle=True, generator=generator, num_workers=WORKERS))
        for _ in range(left_out):
            next(found)
        return found


class Saved:
    """What a checkpoint consists of, and its files."""

    def __init__(self, model, optimizer, scheduler, scaler, average):
        self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        self.average, self.thread = average, None

    def newest(self):
        found = sorted(Path().glob("checkpoint_*.pt"), key=lambda path: int(path.stem.split("_")[1]))
        return found[-1] if found else None

    def save(self, step):
        put({"torch": torch.get_rng_state()}, f"rng_{RANK}.pt")
        if dist.is_initialized():
            dist.barrier()
        if RANK:
            return
        state = {name: one.state_dict() for name, one in self.parts.items()}
        state |= {"step": step, "average": self.average and self.average.state_dict()}
        path = f"checkpoint_{step}.pt"
        if KIND == "thread":
            state = copy.deepcopy(state)
            if self.thread:
                self.thread.join()
            self.thread = threading.Thread(target=put, args=(state, path))
            self.thread.start()
        else:
            put(state, path)
        log("saved", step)
        for old in sorted(Path().glob("checkpoint_*.pt"), key=os.path.getmtime)[: -2 if KIND == "rotation" else -1]:
            if KIND != "thread":
                old.unlink()

    def load(self):
        path = self.newest()
        if path is None:
            return 0
        saved = torch.load(path, weights_only=True)
        log("resumed", saved["step"])
        self._load_model(saved)
        is_lost = BUG == "optimizer" or (BUG == "optimizer_of_rank_1" and RANK == 1)
        if BUG == "moments":
            for state in saved["optimizer"]["state"].values():
                for name in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
                    if name in state:
                        state[name].zero_()
        if not is_lost:
            self.parts["optimizer"].load_state_dict(saved["optimizer"])
        if BUG == "command_line_rate":
            for group in self.parts["optimizer"].param_groups:
                group["lr"] = group["initial_lr"] = 0.01
        if BUG != "scheduler":
            self.parts["scheduler"].load_state_dict(saved["scheduler"])
        if BUG != "scaler":
            self.parts["scaler"].load_state_dict(saved["scaler"])
        if self.average:
            self.average.load_state_dict(saved["average"])
        return saved["step"] - (BUG == "step_twice")

    def _load_model(self, saved):
        state = saved["model"]
        if BUG == "buffers":
            state = {name: value for name, value in state.items() if "running" not in name}
        if BUG == "layer":
            state = {name.replace("3.", "head."): value for name, value in state.items()}
        self.parts["model"].load_state_dict(state, strict=not BUG)

    def random_states(self):
        if Path(f"rng_{RANK}.pt").exists() and BUG != "random" and not (BUG == "random_of_rank_1" and RANK == 1):
            torch.set_rng_state(torch.load(f"rng_{RANK}.pt", weights_only=True)["torch"])


def evaluate(model):
    """On a loader of its own; KIND says how carefully."""
    held_out = DataLoader(Numbers(24), BATCH)
    model.eval()
    if KIND == "evaluated_in_training_mode":
        model.train()
    with torch.no_grad() if KIND in {"evaluated", "evaluated_at_start"} else torch.enable_grad():
        total = sum(nn.functional.mse_loss(model(x), y).item() for _, x, y in held_out)
    model.train()
    return total


def losses_of(model, batches, num_passes):
    """The loss of each microbatch of a step, and the samples."""
    taken = itertools.islice(batches, num_passes)
    # As transformers' Trainer does, which counts the labels of a step first.
    taken = list(taken) if KIND == "microbatches" else taken
    for ids, x, y in taken:
        with torch.autocast("cpu", torch.bfloat16, enabled=KIND == "scaler" or BUG == "scaler"):
            yield ids.tolist(), nn.functional.mse_loss(model(x).float(), y) / ACCUMULATION


def made():
    torch.manual_seed(0)
    has_scaler = KIND == "scaler" or BUG == "scaler"
    inner = net(norm=HAS_NORM)
    if KIND == "compiled":
        inner = torch.compile(inner, backend="eager")
    model = DistributedDataParallel(inner) if WORLD > 1 else inner
    if KIND == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 20) * (1 - n / 120))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4, enabled=has_scaler)
    average = torch.optim.swa_utils.AveragedModel(model) if KIND == "ema" else None
    torch.manual_seed(RANK)
    return model, optimizer, scheduler, scaler, average


def train():
    model, optimizer, scheduler, scaler, average = made()
    saved, data = Saved(model, optimizer, scheduler, scaler, average), Data()
    step = saved.load()
    is_resumed = step > 0
    if KIND.startswith("evaluated_"):
        evaluate(model)
    if BUG == "order":
        # The order is drawn from the state of the middle of an epoch.
        saved.random_states()
    while step < STEPS:
        batches = data.epoch(step // PER_EPOCH, step % PER_EPOCH)
        if KIND != "augmented_workers" and SIZE and KIND in {"distributed", "padding", "epochs", "persistent"}:
            # Those leave out lazily: what a batch draws is drawn before the state is restored.
            batches = itertools.chain([next(batches)], batches)
        if is_resumed:
            saved.random_states()
        for _ in range(PER_EPOCH - step % PER_EPOCH):
            if step == STEPS or not one_step(step + 1, saved, batches, is_resumed):
                break
            step, is_resumed = step + 1, False
            if step % EVERY == 0 and KIND != "unsaved" and BUG != "remainder":
                saved.save(step)
            if step % 7 == 0 and KIND.startswith("evaluated"):
                evaluate(model)
    if saved.thread:
        saved.thread.join()


def one_step(step, saved, batches, is_resumed):
    model, optimizer, scheduler, scaler = saved.parts.values()
    average = saved.average
    log("begin", step)
    rate, total, samples, summed = optimizer.param_groups[0]["lr"], 0.0, [], 0.0
    num_passes = ACCUMULATION - (BUG == "remainder" and is_resumed)
    for number, (ids, loss) in enumerate(losses_of(model, batches, num_passes), 1):
        if BUG == "remainder" and number < num_passes and step % EVERY == 1 and step > 1:
            # By count of microbatches: what is accumulated by then is not saved.
            saved.save(step - 1)
        if KIND == "scaler" and step % 12 == 5:
            loss = loss * float("inf")  # the scaler leaves this one out
        total, samples = total + loss.item(), samples + ids
        if KIND == "summed":
            summed = summed + loss
        else:
            scaler.scale(loss).backward()
    if not samples:
        return False
    if KIND == "summed":
        summed.backward()
    if KIND == "clipped":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    scheduler.step()
    if KIND == "metric":
        METRIC(torch.tensor(total), torch.ones(8))
    if average is not None:
        average.update_parameters(model)
    log("done", step, loss=total, lr=rate, samples=samples, checksum=checksum(model))
    return True


torch.set_num_threads(1)
if WORLD > 1:
    dist.init_process_group("gloo")
train()
log("finished")
if WORLD > 1:
    dist.destroy_process_group()
