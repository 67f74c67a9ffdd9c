"""What a rank has computed of the step in flight, and how it survives the end of its epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mecefo_runtime.job.contribution import ComputedPart, Contribution
from mecefo_runtime.job.layout import Span
from mecefo_runtime.job.step_report import StepStats
from mecefo_runtime.model.data import checksum
from mecefo_runtime.state.model_state import ModelState


class OwnContribution:
    """The sum of the gradients of the microbatches that `said` names, in the `state` that they were computed in.

    `stats` are those of the same microbatches, but for the loss, where this rank holds the head; `loss_sum` is theirs.
    `is_origin` says whether something that is not finite came out of this rank though all that went in was. Both are
    scalars on the device, so that nobody waits for them. `said` may be read by any thread.
    """

    def __init__(self, step: int, num_verdicts: int, state: ModelState) -> None:
        # Replaced, never changed: another thread looks at it.
        self.said = Contribution(step, num_verdicts)
        self.stats = StepStats()
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=state.device)
        self.is_origin = torch.zeros((), dtype=torch.bool, device=state.device)
        self._state: ModelState | None = state
        self._carried: Mapping[str, Tensor] = {}
        state.begin_gradients({})

    def count(self, microbatch: int, span: Span) -> None:
        """The gradients of `microbatch` have been added to the sum."""
        *parts, last = self.said.parts or (ComputedPart((), span),)
        if last.span != span:
            parts, last = [*parts, last], ComputedPart((), span)
        last = replace(last, microbatches=(*last.microbatches, microbatch))
        self.said = replace(self.said, parts=(*parts, last))

    def count_loss(self, loss: Tensor, samples: Sequence[int], num_tokens: int) -> None:
        """The head has the summed `loss` of a microbatch that is counted."""
        self.loss_sum += loss
        known = self.stats
        self.stats = StepStats(
            0.0, known.tokens + num_tokens, known.samples + len(samples), known.checksum + checksum(samples)
        )

    def carry(self) -> None:
        """Keep the gradients while the state that they were computed in is taken down and another one is built."""
        if self._state is not None:
            self._carried, self._state = self._state.own_gradients(), None

    def resume(self, state: ModelState) -> None:
        """Continue adding to them in `state`, which has the same units."""
        state.begin_gradients(self._carried)
        self._carried, self._state = {}, state
