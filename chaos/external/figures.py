"""The figures of an external step: loss, samples, tokens, as far as they can be seen. Unknown ones are left out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor

# To read a loss from an accelerator waits for all that the step has queued there: not at every step.
LOSS_EVERY_STEPS_ON_ACCELERATORS = 50
# What a batch may be nested in before its tensors come.
_MAX_BATCH_DEPTH = 4
# Batches that were fetched ahead of their use; a loader that is not trained from fills no memory.
_MAX_WAITING_BATCHES = 64
_MAX_LOADERS = 16
# Losses of a step that a GradScaler scaled, and that no backward pass has begun from.
_MAX_SCALED = 8
_TOKEN_KEYS = ("input_ids", "decoder_input_ids")
# Tuples, made once: `list | tuple` is made at each use.
_SEQUENCES = (list, tuple)
_WITHOUT_KEYS = (list, tuple, Tensor)


class Figures:
    """Gathers the figures of the step under way.

    Batches count when they are used (a loss's `backward`), in the order in which they were fetched. Of several ranks,
    all are assumed to use as many samples as this one where the model says that it is replicated (DDP, FSDP).
    """

    def __init__(self) -> None:
        self._world_size = 1
        # How many ranks use samples of their own; None: not known.
        self._num_replicas: int | None = 1
        # Of each loader: (samples, tokens) of the batches that wait to be used.
        self._waiting: dict[int, list[tuple[int | None, int | None]]] = {}
        self._last_read: int | None = None
        # The loader that is trained from, once that is known.
        self.trained_from: int | None = None
        self._seen_tokens: int | None = None
        # Losses that a GradScaler has scaled, as (scaled, unscaled), until they are used; they are held no longer.
        self._scaled: list[tuple[Tensor, Tensor]] = []
        self._is_scaled = self._is_unknown = False
        self._losses: list[Tensor] = []
        self._used: list[tuple[int | None, int | None]] = []
        self._num_backwards = 0

    def set_world_size(self, world_size: int) -> None:
        """It is known now of how many ranks this is one."""
        self._world_size = world_size
        self._num_replicas = 1 if world_size == 1 else None

    def fetched(self, loader: int, batch: object) -> None:
        """A batch came from `loader`, told apart by a number."""
        if loader not in self._waiting and len(self._waiting) >= _MAX_LOADERS:
            self._waiting.clear()
        waiting = self._waiting.setdefault(loader, [])
        waiting.append((num_samples(batch), num_tokens(batch)))
        if len(waiting) > _MAX_WAITING_BATCHES:
            del waiting[0]
        self._last_read = loader

    def forward(self, module: object, arguments: tuple[object, ...]) -> None:
        """The step's first forward begins."""
        if self._num_replicas is None:
            self._num_replicas = num_replicas(module, self._world_size)
        # Token ids [batch, time], or the other way round: their number is the same.
        first = arguments[0] if arguments else None
        is_ids = isinstance(first, Tensor) and first.dim() == 2 and not first.is_floating_point()
        self._seen_tokens = first.numel() if is_ids and isinstance(first, Tensor) else None

    def scaled(self, outputs: object, scaled: object) -> None:
        """A GradScaler has made `scaled` of `outputs`: the loss is what it was before that."""
        self._is_scaled = True
        if isinstance(outputs, Tensor) and isinstance(scaled, Tensor):
            self._scaled.append((scaled, outputs.detach()))
            del self._scaled[:-_MAX_SCALED]

    def backward(self, tensors: object, gradients: object) -> None:
        """A backward pass begins: of a loss, where a scalar is given without a gradient."""
        loss = tensors if isinstance(tensors, Tensor) else None
        if loss is None or gradients is not None or loss.numel() != 1:
            return
        self._num_backwards += 1
        unscaled = self._unscaled(loss) if self._scaled else None
        # Something that was computed from a scaled loss: its unscaled value is not known.
        self._is_unknown |= self._is_scaled and unscaled is None
        self._losses.append(loss.detach() if unscaled is None else unscaled)
        if self._last_read is not None and not self._waiting.get(self.trained_from or 0):
            # The first step, or another loader took over.
            self.trained_from = self._last_read
        waiting = self._waiting.get(self.trained_from or 0)
        if waiting:
            self._used.append(waiting.pop(0))

    def _unscaled(self, loss: Tensor) -> Tensor | None:
        found = [index for index, (after, _) in enumerate(self._scaled) if after is loss]
        return self._scaled.pop(found[-1])[1] if found else None

    def left_out(self) -> None:
        """A GradScaler leaves the step out: the losses of its passes are those of no step."""
        self._losses, self._scaled, self._is_unknown = [], [], False

    def take(self, step: int) -> dict[str, float | int]:
        """The figures of the step that ends, those that are known, for all ranks together; the next one begins.

        `loss` is the sum over the step's backward passes: what the optimizer was given the gradient of, before a
        GradScaler scaled it. It may be NaN.
        """
        told: dict[str, float | int] = {}
        loss = self._loss(step)
        if loss is not None:
            told["loss"] = loss
        if self._num_replicas is not None:
            samples, tokens = self._used[0] if len(self._used) == 1 else _sums(self._used)
            if tokens is None and self._seen_tokens is not None and self._num_backwards:
                tokens = self._seen_tokens * self._num_backwards
            if samples is not None:
                told["samples"] = samples * self._num_replicas
            if tokens is not None:
                told["tokens"] = tokens * self._num_replicas
        self._used = []
        self.left_out()
        self._num_backwards, self._seen_tokens = 0, None
        return told

    def loss_on_device(self) -> Tensor | None:
        """The loss of the step that ends, where it is on an accelerator: it is not waited for."""
        if not self._losses or self._is_unknown or self._losses[0].device.type == "cpu":
            return None
        # Each has one element, of whatever shape.
        return sum((loss.reshape(()) for loss in self._losses[1:]), start=self._losses[0].reshape(()))

    def _loss(self, step: int) -> float | None:
        if not self._losses or self._is_unknown:
            return None
        if self._losses[0].device.type != "cpu" and step % LOSS_EVERY_STEPS_ON_ACCELERATORS:
            return None
        # Not math.fsum, which raises where infinities cancel.
        return self._losses[0].item() if len(self._losses) == 1 else sum(loss.item() for loss in self._losses)


def num_samples(batch: object) -> int | None:
    """The first dimension of the first tensor in `batch` that has one."""
    found = _first_tensor(batch, _MAX_BATCH_DEPTH)
    return None if found is None else int(found.shape[0])


def num_tokens(batch: object) -> int | None:
    """How many token ids are in `batch`, of a batch that names them (`input_ids`)."""
    # What most batches are comes first: to ask for a mapping is slow.
    if isinstance(batch, _WITHOUT_KEYS) or not isinstance(batch, Mapping):
        return None
    counts = [ids.numel() for key in _TOKEN_KEYS if isinstance(ids := batch.get(key), Tensor)]
    return sum(counts) if counts else None


def num_replicas(module: object, world_size: int) -> int | None:
    """How many ranks use samples of their own, as the outermost module says; None where it does not say."""
    kind = type(module).__name__
    if kind in ("DistributedDataParallel", "FullyShardedDataParallel"):
        group: Any = getattr(module, "process_group", None)
        return None if group is None else int(group.size())
    fully_sharded = sys.modules.get("torch.distributed.fsdp")
    state = getattr(fully_sharded, "FSDPModule", None)
    return world_size if state is not None and isinstance(module, state) else None


def _first_tensor(batch: object, depth: int) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch if batch.dim() > 0 else None
    if depth == 0:
        return None
    parts: Any = ()
    if isinstance(batch, _SEQUENCES):
        parts = batch
    elif isinstance(batch, Mapping):
        parts = batch.values()
    for part in parts:
        found = _first_tensor(part, depth - 1)
        if found is not None:
            return found
    return None


def _sums(used: list[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    return _sum([samples for samples, _ in used]), _sum([tokens for _, tokens in used])


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
