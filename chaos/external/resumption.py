"""After which step of the run a start of the training continues: by the parameters with which it begins.

Every save, and the beginning of the first start, is reported with a digest of the rank's parameters. A rank that starts
again receives them all, and looks up the parameters with which it begins: equal bits after one step of the run, and no
other, show where the training is, whatever count a script or its optimizer keeps.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from chaos.external.optimizers import Optimizers, parameters_of
from chaos.external.replica_state import is_summable, sums_of_words
from chaos.in_process.protocol import Start
from chaos.in_process.values import local_part

# Digests take at most these shares of the time since the first one, and of what saving itself takes, in the long run.
COST_RATIO, COST_OF_SAVING_RATIO = 0.01, 0.25
# This long (seconds) they may take before that.
CREDIT_SECONDS = 1.0
# With one of these a state may be loaded that no function of torch's sees.
_LOADERS = ("safetensors", "tensorstore")


def digest_of(parameters: Iterable[Tensor]) -> str | None:
    """A digest of the bits of `parameters`, as far as this rank holds them; in whatever order they come.

    Of each tensor its shape, type and the sum of its bits count, as words. None: there is nothing to look at.
    """
    distinct = {id(one): one for one in parameters}
    there = (one for one in distinct.values() if not is_lazy(one))
    known = [part for one in there if is_summable(part := local_part(one.data))]
    if not known:
        return None
    sums = sums_of_words(known)
    told = sorted(f"{tuple(one.shape)} {one.dtype} {total}" for one, total in zip(known, sums, strict=True))
    return hashlib.blake2b("\n".join(told).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Counted:
    """How the number of a start's first step is known; see `mecefo_runtime.system.command_records.StepsCounted`."""

    count_kept_by: str
    resumed_after: int | None
    optimizer_steps: int | None
    is_optimizer_fresh: bool


class Resumption:
    """One start of a rank's training, from its first pass to its first step."""

    def __init__(
        self,
        start: Start | None,
        optimizers: Optimizers,
        loads: Sequence[object] | None,
        rest: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """`loads` grows with each state that this process loads; None: loads are not observed.

        `rest` returns the other fields of `TrainingEntered`.
        """
        self._rest = rest
        self._start = start or Start()
        self._optimizers = optimizers
        self._loads = loads
        # Until the first pass has begun: what it computes with is what the training continues from.
        self.is_due = True
        self.digest: str | None = None
        # Fields of `TrainingEntered`: the whole state with which it begins.
        self.state: Mapping[str, Any] = {}
        self._matched: tuple[int, ...] = ()
        self._own_steps = 0
        self._had_state = False
        self._cost_seconds = self._rest_seconds = self._spent_seconds = self._saving_seconds = 0.0
        self._since_seconds: float | None = None

    def look(self, *, is_first_pass: bool) -> int | None:
        """Look at the parameters; returns the step after which the training continues, where they alone say it.

        Before the first pass a state may still be loaded: then those of the beginning say nothing.
        """
        self.is_due = not is_first_pass
        self.digest = self._digest()
        if is_first_pass and self.digest is not None:
            # Once, and belongs to the start: to find the model and its buffers takes longer than ever after.
            self.state = {"parameters": self.digest, **self._rest()}
        self._own_steps, self._had_state = self._optimizers.own_steps(), self._optimizers.has_state()
        matched = self._start.states.get(self.digest or "", ())
        self._matched = matched if is_first_pass else tuple(step for step in matched if step > 0)
        return self.matched_step

    @property
    def matched_step(self) -> int | None:
        """The only step after which the parameters were seen in this run."""
        return self._matched[0] if len(self._matched) == 1 else None

    @property
    def is_first(self) -> bool:
        """Whether no earlier attempt of the run has committed a step."""
        return not self._start.is_later

    def counted(self, step: int, *, told_by: str | None, is_explicit: bool) -> Counted:
        """How it is known that the first step was `step`; `told_by` names what gives the number of each: `script` ...

        `is_explicit`: the script reports when a step ends, which need not be one of an optimizer.
        """
        has_count, has_state = self._optimizers.own_steps() > 0, self._optimizers.has_state()
        is_fresh = has_state and (not self._had_state or (has_count and not self._own_steps))
        by, resumed_after = self._known_by(step, told_by, has_count=has_count and not is_explicit)
        return Counted(by, resumed_after, self._own_steps if has_count else None, is_fresh)

    def _known_by(self, step: int, told_by: str | None, *, has_count: bool) -> tuple[str, int | None]:
        if told_by is not None:
            return told_by, step - 1
        if self.matched_step is not None:
            return "parameters", self.matched_step
        if has_count and (self.is_first or self._own_steps or not self._may_have_loaded()):
            return "optimizer", step - 1
        if not self.is_first and not self._own_steps and not self._may_have_loaded():
            return "nothing_loaded", 0
        return "nobody", None

    def _may_have_loaded(self) -> bool:
        return self._loads is None or bool(self._loads) or any(name in sys.modules for name in _LOADERS)

    # ---- saves ----

    def state_to_save(self) -> Mapping[str, Any]:
        """The fields of `CheckpointBegun` of what is about to be saved; as many as the training's time allows."""
        if not self._is_allowed(self._cost_seconds):
            return {}
        digest = self._digest()
        if digest is None:
            return {}
        return {"parameters": digest, **(self._look_at_rest() if self._is_allowed(self._rest_seconds) else {})}

    def _is_allowed(self, cost_seconds: float) -> bool:
        now = time.monotonic()
        allowed = COST_OF_SAVING_RATIO * self._saving_seconds + CREDIT_SECONDS
        allowed += COST_RATIO * (now - (now if self._since_seconds is None else self._since_seconds))
        return self._spent_seconds + cost_seconds <= allowed

    def saved(self, seconds: float) -> None:
        """Saving has taken so long."""
        self._saving_seconds += seconds

    def _look_at_rest(self) -> Mapping[str, Any]:
        began = time.thread_time()
        found = self._rest()
        self._rest_seconds = time.thread_time() - began
        self._spent_seconds += self._rest_seconds
        return found

    def _digest(self) -> str | None:
        if self._since_seconds is None:
            self._since_seconds = time.monotonic()
        # Of this thread: on a busy machine the clock shows what others take.
        began = time.thread_time()
        found = digest_of(parameters_of(self._optimizers.made()))
        self._cost_seconds = time.thread_time() - began
        self._spent_seconds += self._cost_seconds
        return found
