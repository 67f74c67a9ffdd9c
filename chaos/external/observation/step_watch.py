"""What each step of a rank was made of, at a cost of at most 1% of the steps' time.

Everything is read when the script's own code has it ready: batches and random states when the model is called, learning
rates when the optimizer steps. Digests on a device are copied without waiting, and put into the event by the thread
that sends it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from chaos.external.observation.fetched import Batch, FetchedBatches
from chaos.external.observation.random_states import random_states
from chaos.external.observation.rows import Later, in_base64, rows_of, tensors_in
from mecefo_runtime.system.command_records import SamplerSeen, StepSeen
from mecefo_runtime.system.record import Record

COST_RATIO = 0.01
# This long (seconds) it may take before that.
CREDIT_SECONDS = 0.2
# Bytes of events of one rank after which half as many steps are reported.
BYTES_PER_INTERVAL = 16 << 20
MAX_INTERVAL = 1 << 16
_BYTES_PER_ROW = 22
_LATEST_SECONDS = 2.0
_PLAIN = (bool, int, float, str, type(None))


@dataclass(slots=True)
class _Pass:
    """One forward pass: digests of the rows of all tensors together, of each of the first ones, and their batch."""

    rows: Later | None
    each: tuple[Later, ...]
    batch: Batch | None
    candidates: tuple[Batch, ...]


@dataclass(slots=True)
class _Step:
    """What was seen of the step under way."""

    passes: list[_Pass] = field(default_factory=list)
    num_backwards: int = 0
    # Passes before the newest backward pass.
    num_used: int = 0
    random: dict[str, str] = field(default_factory=dict)
    draws: tuple[str, ...] | None = None
    # By id of the optimizer: learning rates, and the other settings.
    rates: dict[int, tuple[tuple[float, ...], str]] = field(default_factory=dict)


class StepWatch:
    """Told of everything that a step does, in its order."""

    def __init__(self, emit_later: Callable[[Callable[[], Record], int, float], None]) -> None:
        """`emit_later` gets what makes the event, its step, and the time at which it happened."""
        self._emit_later = emit_later
        self.batches = FetchedBatches()
        self._step = _Step()
        self._is_due = True
        self._interval = 1
        self._cost = _Cost()
        self._sampler: SamplerSeen | None = None
        self._groups = ""
        self._num_bytes = 0

    def forward(self, step: int, arguments: tuple[object, ...], keywords: Mapping[str, object] | None) -> None:
        """The model is about to be called in `step`, for the first time since the last backward pass.

        `keywords` is None where they are not known: what it is called with may then be something else.
        """
        if not self._step.passes and not self._step.rates:
            self._is_due = step % self._interval == 0
        if not self._is_due:
            return
        began = time.perf_counter()
        if not self._step.passes:
            self._step.random = random_states()
        tensors = [] if keywords is None else [*tensors_in(arguments), *tensors_in(keywords)]
        self._step.passes.append(self._pass(tensors))
        self._cost.add(time.perf_counter() - began)

    def _pass(self, tensors: list[Tensor]) -> _Pass:
        rows = rows_of(tensors)
        if rows is None:
            return _Pass(None, (), None, ())
        batch = self.batches.of(tensors)
        if batch is not None or not self.batches.may_be_copied:
            return _Pass(Later(rows), (), batch, ())
        self.batches.are_copied()
        each = (rows_of([one]) for one in tensors)
        candidates = tuple(self.batches.candidates())
        return _Pass(Later(rows), tuple(Later(one) for one in each if one is not None), None, candidates)

    def backward(self) -> None:
        """A backward pass begins."""
        self._step.num_backwards += 1
        self._step.num_used = len(self._step.passes)

    def passes_were_of_no_step(self) -> None:
        """Those since the last backward pass: they are not differentiated."""
        del self._step.passes[self._step.num_used :]

    def updating(self, *, is_late: bool = False) -> None:
        """The gradients are complete, and an optimizer is about to use them; `is_late`: it has done so before this."""
        if is_late:
            # Whether the step drew from the generators, or something after it did, is not known.
            self._step.random = {}
        elif self._step.draws is None and self._step.random:
            began = time.perf_counter()
            now = random_states()
            self._step.draws = tuple(name for name, state in now.items() if self._step.random.get(name) != state)
            self._cost.add(time.perf_counter() - began)

    def stepping(self, step: int, optimizer: Optimizer) -> None:
        """An optimizer is about to step, with the rates and settings that it has now."""
        if not self._step.passes and not self._step.rates:
            self._is_due = step % self._interval == 0
        if not self._is_due:
            return
        began = time.perf_counter()
        known = settings_of(optimizer)
        if known is not None:
            self._step.rates[id(optimizer)] = known
        self._cost.add(time.perf_counter() - began)

    def committed(self, step: int, optimizers: Iterable[Optimizer], loss: float | Tensor | None) -> None:
        """`step` is over. `loss` is this rank's, a tensor where it is on a device."""
        seen, self._step = self._step, _Step()
        if not seen.passes and not seen.rates:
            self._cost.step_is_over()
            return
        began = time.perf_counter()
        own = [seen.rates[id(one)] for one in optimizers if id(one) in seen.rates]
        rates = tuple(rate for some, _ in own for rate in some)
        groups = "[" + ",".join(settings for _, settings in own) + "]" if own else ""
        given: dict[str, Any] = {"rates": rates, "random": seen.random, "draws": seen.draws}
        if groups != self._groups:
            given["groups"] = self._groups = groups
        later = Later(loss.detach().reshape(1)) if isinstance(loss, Tensor) else loss
        missing = max(0, seen.num_backwards - len(seen.passes))
        now = time.monotonic()
        self._report_sampler(seen, step, now)
        self._emit_later(lambda: _record(seen.passes, missing, later, given, self.batches.found), step, now)
        self._num_bytes += 256 + _BYTES_PER_ROW * sum(0 if one.rows is None else one.rows.size for one in seen.passes)
        self._cost.add(time.perf_counter() - began)
        self._cost.observed()
        self._cost.step_is_over()
        self._interval = min(MAX_INTERVAL, max(self._interval, self._cost.interval()))
        if self._num_bytes > BYTES_PER_INTERVAL:
            self._num_bytes, self._interval = 0, min(MAX_INTERVAL, 2 * self._interval)

    def discarded(self) -> None:
        """What was computed for the step under way is of no step."""
        self._step = _Step()

    def _report_sampler(self, seen: _Step, step: int, now: float) -> None:
        samplers = [one.batch.sampler for one in seen.passes if one.batch is not None]
        samplers += [candidate.sampler for one in seen.passes for candidate in one.candidates[-1:]]
        sampler = next((one for one in samplers if one is not None), None)
        if sampler is not None and sampler != self._sampler:
            self._sampler = sampler
            self._emit_later(lambda: sampler, step, now)


def _record(
    passes: list[_Pass],
    missing: int,
    loss: Later | float | None,
    given: dict[str, Any],
    found: Callable[[Batch | None], None],
) -> StepSeen:
    deadline = time.monotonic() + _LATEST_SECONDS
    digests = [None if one.rows is None else one.rows.values(deadline) for one in passes]
    batches = [one.batch or _found(one, deadline) for one in passes]
    for own, one in zip(batches, passes, strict=True):
        if one.candidates:
            found(own)
    told = dict(given)
    told["batches"] = (*("" if one is None else in_base64(one) for one in digests), *[""] * missing)
    indices = [None if one is None else one.indices for one in batches]
    if (
        indices
        and not missing
        and all(
            own is not None and rows is not None and len(own) == len(rows)
            for own, rows in zip(indices, digests, strict=True)
        )
    ):
        told["indices"] = tuple(indices)
    first = batches[0] if batches else None
    if first is not None and first.is_first:
        told["begins_epoch"], first.is_first = True, False
    if isinstance(loss, Later):
        values = loss.values(deadline)
        told["loss"] = None if values is None else float(values[0])
    else:
        told["loss"] = loss
    return StepSeen(**told)


def _found(seen: _Pass, deadline: float) -> Batch | None:
    """The batch of which the model was called with a copy: one of its tensors has the same rows."""
    own = [values for one in seen.each if (values := one.values(deadline)) is not None]
    for batch in seen.candidates:
        if any(one.values(deadline) in own for one in batch.rows):
            return batch
    return None


def settings_of(optimizer: Optimizer) -> tuple[tuple[float, ...], str] | None:
    """The learning rate of each group, and the other settings as JSON.

    None where a learning rate is not to be had without waiting for a device.
    """
    rates: list[float] = []
    others: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if isinstance(rate, Tensor) and rate.device.type != "cpu":
            return None
        if rate is not None:
            rates.append(float(rate))
        others.append({key: value for key, value in group.items() if key not in _NOT_SET and _is_plain(value)})
    return tuple(rates), json.dumps(others, separators=(",", ":"), sort_keys=True)


# The parameters, and what schedulers keep there (`initial_lr`).
_NOT_SET = frozenset({"params", "lr", "initial_lr", "param_names"})


def _is_plain(value: object) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, _PLAIN) or (isinstance(value, list | tuple) and all(map(_is_plain, value)))


class _Cost:
    """What observing has cost, and of every how many steps it can be done."""

    def __init__(self) -> None:
        self._began_seconds: float | None = None
        self._spent_seconds = 0.0
        self._num_steps = self._num_observed = 0

    def add(self, seconds: float) -> None:
        self._spent_seconds += seconds

    def observed(self) -> None:
        self._num_observed += 1

    def step_is_over(self) -> None:
        if self._began_seconds is None:
            # What the first step loads and compiles is of no other.
            self._began_seconds = time.perf_counter()
            self._spent_seconds, self._num_observed = 0.0, 0
            return
        self._num_steps += 1

    def interval(self) -> int:
        """A power of two; 1 until the credit is used up."""
        if self._began_seconds is None or not self._num_observed:
            return 1
        elapsed = time.perf_counter() - self._began_seconds
        if self._spent_seconds <= CREDIT_SECONDS + COST_RATIO * elapsed:
            return 1
        allowed = COST_RATIO * elapsed / max(1, self._num_steps)
        cost, interval = self._spent_seconds / self._num_observed, 1
        while cost > allowed * interval and interval < MAX_INTERVAL:
            interval *= 2
        return interval
