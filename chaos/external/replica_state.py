"""What a rank holds: checksums of parameters and optimizer state, and how many parameters' values are not finite.

Ranks that hold the same must have the same bits, so a plain sum of them is enough; which ranks hold the same is found
out by who reads the log. All elements are looked at.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from chaos.external.subject import ExternalSubject
from chaos.in_process.values import local_part
from mecefo_runtime.system.command_records import StateChecksums

# A check takes at most so much of the time between two of them, in the long run.
COST_RATIO = 0.01
# After so many checks their distance doubles: a log must not grow with every step of a long training.
CHECKS_PER_INTERVAL = 64
MAX_TENSORS = 8192
# Of so many tensors with values that are not finite the names are told, of all the number of values.
MAX_NAMED = 16
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Tell = Callable[[int, StateChecksums], None]


class ReplicaState:
    """Looks at the state after a step: after every one at first, then after every 2nd, 4th, 8th ...

    The intervals are powers of two, so that ranks which chose different ones still have steps in common.
    """

    def __init__(self, subject: ExternalSubject, tell: Tell) -> None:
        """`tell` gets the step and its record."""
        self._subject = subject
        self._tell = tell
        self._interval = 1
        self._num_checks = 0
        self._cost_seconds = float("inf")
        self._first_seconds = 0.0
        self._first_step = self._last_checked = self._step = 0
        self._loss: float | None = None
        self._names: tuple[str, ...] = ()
        self._parameters: list[tuple[str, weakref.ref[Tensor]]] = []

    def committed(self, step: int, loss: float | None) -> None:
        """`step` is committed; `loss` is this rank's, where it is known."""
        self._step, self._loss = step, loss

    def settled(self) -> None:
        """The next step begins: what the last one has made of the state is there. ZeRO gathers it after the step."""
        step = self._step
        if step == self._last_checked or step % self._interval:
            return
        now = time.monotonic()
        if not self._num_checks:
            # To find the tensors at first takes longer than ever after.
            self._subject.tensors("parameters")
            self._first_seconds, self._first_step = now, step
        self._check(step)
        began, now = now, time.monotonic()
        self._cost_seconds = min(self._cost_seconds, now - began)
        self._num_checks += 1
        num_steps = max(1, step - self._first_step)
        step_seconds = max(1e-9, (began - self._first_seconds) / num_steps)
        if self._num_checks % CHECKS_PER_INTERVAL == 0:
            self._interval *= 2
        while step > self._first_step and self._cost_seconds > COST_RATIO * self._interval * step_seconds:
            self._interval *= 2

    def finish(self) -> None:
        """The training is over: look once more, unless that was done, as far as the tensors still are."""
        if self._step == self._last_checked:
            return
        living = {name: parameter for name, known in self._parameters if (parameter := known()) is not None}
        found = {name: local_part(parameter.data) for name, parameter in living.items()}
        if len(found) == len(self._parameters) and found:
            self._say(self._step, found, {}, None)

    def _check(self, step: int) -> None:
        self._parameters = [(name, weakref.ref(one)) for name, one in self._subject.parameters().items()]
        self._say(step, self._subject.tensors("parameters"), self._subject.tensors("optimizer"), self._loss)

    def _say(
        self, step: int, parameters: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], loss: float | None
    ) -> None:
        known = {name: tensor for name, tensor in {**parameters, **optimizer}.items() if is_summable(tensor)}
        if not known or len(known) > MAX_TENSORS:
            return
        names = tuple(known)
        sums = "".join(f"{one:08x}" for one in checksums(list(known.values())))
        spoilt = count_not_finite({name: known[name] for name in parameters if name in known})
        told = StateChecksums(
            sums=sums,
            # Once: they are the same for the whole training, or nearly so.
            tensors=() if names == self._names else names,
            loss=loss,
            not_finite_values=sum(spoilt.values()),
            not_finite=dict(list(spoilt.items())[:MAX_NAMED]),
        )
        self._names, self._last_checked = names, step
        self._tell(step, told)


def is_summable(tensor: Tensor) -> bool:
    """Whether it has bits to look at, in places of its own."""
    return tensor.layout == torch.strided and tensor.device.type != "meta" and not tensor.is_quantized


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """Of each the sum of its elements' bits, modulo 2**32."""
    return [total & 0xFFFFFFFF for total in _read(tensors, _sum_of_bits)]


def sums_of_words(tensors: Sequence[Tensor]) -> list[int]:
    """Of each the sum of its words of 64 bits: on a CPU seven times as fast as `checksums`.

    Not to be compared between tensors of different strides: those that are in pieces are summed by element.
    """
    return _read(tensors, _sum_of_words)


def _read(tensors: Sequence[Tensor], sum_of: Callable[[Tensor], Tensor]) -> list[int]:
    """`sum_of` each; of an accelerator's all at once."""
    with torch.no_grad():
        sums = [sum_of(tensor.detach()) for tensor in tensors]
        devices = {one.device for one in sums}
        by_device = {
            device: iter(torch.stack([one for one in sums if one.device == device]).tolist()) for device in devices
        }
        return [next(by_device[one.device]) for one in sums]


def _sum_of_words(tensor: Tensor) -> Tensor:
    size = tensor.element_size()
    if not tensor.is_contiguous() or (tensor.numel() * size) % 8 or (tensor.storage_offset() * size) % 8:
        return _sum_of_bits(tensor)
    return tensor.reshape(-1).view(torch.int64).sum()


def count_not_finite(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Of each tensor that has any: how many of its values are NaN or infinite.

    The sum of a tensor is not finite if one of its values is not: one pass, and one answer of an accelerator for all
    tensors. Only where it is not are the values themselves looked at; the sum of finite ones may overflow.
    """
    floats = {name: one.detach() for name, one in tensors.items() if one.dtype in _FLOATS}
    with torch.no_grad():
        sums = {name: one.sum(dtype=torch.promote_types(one.dtype, torch.float32)) for name, one in floats.items()}
        devices = {one.device for one in sums.values()}
        suspects: list[str] = []
        for device in devices:
            own = {name: one for name, one in sums.items() if one.device == device}
            found = torch.stack([one.float() for one in own.values()]).isfinite().tolist()
            suspects += [name for name, is_finite in zip(own, found, strict=True) if not is_finite]
        counts = {name: int(floats[name].isfinite().logical_not().sum()) for name in suspects}
    return {name: counts[name] for name in floats if counts.get(name)}


def _sum_of_bits(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)
