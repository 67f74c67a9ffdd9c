"""Digests of the state that a training continues from, without its parameters, at a save and after a load."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from chaos.external.observation.step_watch import settings_of
from chaos.external.optimizers import steps_of
from chaos.external.subject import ExternalSubject

Digest = Callable[[Iterable[Tensor]], str | None]


class Scalers:
    """The GradScalers of this process."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []
        self._has_looked = False

    def add(self, scaler: object) -> None:
        """The script made one."""
        self._made.append(weakref.ref(scaler))

    def state(self) -> str:
        """Scale and growth tracker of each that is enabled, as JSON; empty where there is none."""
        if not self._has_looked:
            # Scalers from before the first optimizer. By the real type: an object may pretend to have another one.
            self._has_looked = True
            kind, known = torch.amp.GradScaler, {id(one()) for one in self._made}
            every = (one for one in gc.get_objects() if issubclass(type(one), kind))
            self._made += [weakref.ref(one) for one in every if id(one) not in known]
        living = (scaler for one in self._made if (scaler := one()) is not None and scaler.is_enabled())
        told = [
            {"scale": state["scale"], "growth": state["_growth_tracker"]}
            for one in living
            if (state := one.state_dict())
        ]
        return json.dumps(told) if told else ""


class WholeState:
    """Looks when it is asked; see `mecefo_runtime.system.command_records.TrainingEntered` for the fields."""

    def __init__(
        self,
        optimizers: Callable[[], list[Optimizer]],
        subject: ExternalSubject,
        digest_of: Digest,
        scalers: Scalers,
    ) -> None:
        self._scalers = scalers
        self._optimizers = optimizers
        self._subject = subject
        self._digest_of = digest_of

    def fields(self) -> dict[str, Any]:
        """All but the parameters; `is_whole` with them."""
        made = self._optimizers()
        settings = [settings_of(one) for one in made]
        known = [one for one in settings if one is not None]
        counts = [count for one in made if (count := steps_of(one))]
        return {
            "buffers": self._digest_of(self._buffers()) or "",
            "optimizer": self._digest_of(_moments(made)) or "",
            "optimizer_steps": max(counts) if counts else None,
            "scaler": self._scalers.state(),
            "rates": tuple(rate for rates, _ in known for rate in rates) if len(known) == len(settings) else (),
            "groups": "[" + ",".join(others for _, others in known) + "]" if len(known) == len(settings) else "",
            "is_whole": True,
        }

    def _buffers(self) -> Iterator[Tensor]:
        for module in self._subject.modules().values():
            # What is not saved need not be there again.
            left_out = getattr(module, "_non_persistent_buffers_set", ())
            for name, buffer in module.named_buffers(recurse=False):
                if name not in left_out:
                    yield buffer


def _moments(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    """The tensors of the optimizers' states, without their counts of steps."""
    for one in optimizers:
        for state in one.state.values():
            if isinstance(state, Mapping):
                for name, value in state.items():
                    if isinstance(value, Tensor) and name != "step":
                        yield value
