"""The base of effects on tensors: their place is drawn once, and they report once what happened."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from random import Random
from typing import TYPE_CHECKING, Any

from torch import Tensor

from chaos.in_process.base import InProcessFault, InProcessFaultRefused, Subject, TensorKind
from chaos.in_process.shadow import ReplayedOptimizer
from chaos.in_process.tensor_selector import TensorSelector
from chaos.in_process.values import Corruption, Settled, describe, is_equal, is_same_bits, most_different, read, write

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class Mark:
    """Elements of one tensor that are affected: `before` and `after` the first time."""

    def __init__(self, name: str, tensor: Tensor, indices: Tensor, settled: Settled) -> None:
        self.name = name
        self.indices = indices
        self.before = read(tensor, indices)
        self._settled = settled
        write(tensor, indices, settled.wrong)
        # What is in memory now, not what should be.
        self.after = read(tensor, indices)
        self.description: Any = describe(name, tensor, indices, self.before, self.after, settled.bits)

    @property
    def is_changed(self) -> bool:
        """Whether anything is other than before: of flipped bits any bit, of numbers any number."""
        if self._settled.corruption.how == "flip":
            return not is_same_bits(self.before, self.after)
        return not bool(is_equal(self.before, self.after).all())

    def inject_again(self, tensor: Tensor) -> bool:
        """Corrupt the elements again; False when they still were."""
        values = read(tensor, self.indices)
        wrong = self._settled.again(values)
        if is_same_bits(values, wrong):
            return False
        write(tensor, self.indices, wrong)
        return True

    def most_changed(self) -> Tensor:
        """The places within `indices` that changed most, at most as many as evidence shows."""
        return most_different(self.before, self.after)


class Watcher:
    """A hook on a module or a tensor, of which the script notices nothing: what it raises goes to `fail`.

    It stays behind when the script copies or pickles the module, as for a moving average: a copy has a function in its
    place that does nothing, one of the standard library, as a model that was saved whole is loaded where nothing of
    ours need be.
    """

    def __init__(self, call: Callable[..., None], fail: Callable[[Exception], None]) -> None:
        self._call = call
        self._fail = fail

    def __call__(self, *arguments: Any) -> None:
        """See `torch.nn.Module.register_forward_hook`, `torch.Tensor.register_hook`."""
        try:
            self._call(*arguments)
        except Exception as error:
            self._fail(error)

    def __reduce__(self) -> tuple[Any, ...]:
        """What `copy` and `pickle` put in its place."""
        return getattr, (nullcontext(), "__exit__")


class TensorInjection(InProcessFault):
    """Base of the effects on tensors.

    Arguments: those of `TensorSelector` and (of what corrupts) `Corruption`, `seed`, and `sticky`: again before every
    use, until it is lifted. It reports once: `outcome` in a word, and what else there is to know.
    """

    def __init__(
        self, arguments: Mapping[str, Any], subject: Subject | None, report: Callable[[Mapping[str, Any]], None]
    ) -> None:
        super().__init__(arguments, subject, report)
        self._selector = TensorSelector.of(arguments)
        self._rng = Random(str(arguments.get("seed", 0)))
        self._is_sticky = bool(arguments.get("sticky", False))
        self._hooks: list[RemovableHandle] = []
        self._owner_hooks: list[RemovableHandle] = []
        self._num_injections = 0
        self._is_told = False
        # What was affected, once it is.
        self._told: dict[str, Any] = {}

    def announced(self, step: int, phase: str) -> None:
        """Corrupt the tensor when it is time, and observe it."""
        if self._is_told and not self._is_sticky:
            self._leave_owner()
            return
        try:
            self._announced(step, phase)
        except Exception as error:
            # The rank must not die of the one who watches.
            self._fail(error)

    @abstractmethod
    def _announced(self, step: int, phase: str) -> None: ...

    def lift(self) -> dict[str, Any]:
        """Take the hooks away; what was changed stays changed."""
        self._is_told, self._is_sticky = True, False
        self._unhook()
        self._leave_owner()
        return {"num_strikes": self._num_injections}

    # ---- for the kinds of affects ----

    @property
    def _trained(self) -> Subject:
        if self.subject is None:
            raise InProcessFaultRefused("this rank does not train yet")
        return self.subject

    def _tensors(self, kind: TensorKind) -> Mapping[str, Tensor]:
        """The tensors of what the rank computes with, frozen parameters and what has no gradient yet left out."""
        modules = self._trained.modules()
        found = self._trained.tensors(kind)
        parameters = {name: name.rpartition(".")[0] if kind == "optimizer" else name for name in found}
        return {
            name: tensor
            for name, tensor in found.items()
            # One without a dot is no part of anything that could be held here and not be computed with.
            if "." not in parameters[name] or parameters[name].rpartition(".")[0] in modules
        }

    def _mark(self, name: str, tensor: Tensor) -> Mark:
        """Strike `tensor`: the elements and bits are drawn now."""
        indices = self._selector.indices(tensor, self._rng)
        settled = Corruption.of(self.arguments).settle(read(tensor, indices), self._rng)
        mark = Mark(name, tensor, indices, settled)
        self._num_injections += 1
        return mark

    def _shadow(self, name: str, indices: Tensor) -> ReplayedOptimizer | None:
        """The parameter's elements before the optimizer's step; None where no optimizer is known."""
        updater = getattr(self._trained, "updater", None)
        try:
            optimizer, tensor, first = updater(name) if updater is not None else (None, None, 0)
        except LookupError:
            return None
        return None if optimizer is None or tensor is None else ReplayedOptimizer(optimizer, tensor, indices + first)

    def _is_told_by_owners(self) -> bool:
        """Whether each optimizer tells by its hooks when it steps, which is exact where there are several."""
        is_within_step = getattr(self._trained, "is_within_step", None)
        return is_within_step is not None and not is_within_step()

    def _follow_owner(self, name: str, before: Callable[[], None], after: Callable[[], None]) -> bool:
        """Have these called around each step of the optimizer that updates `name`; False: none is known."""
        self._leave_owner()
        try:
            optimizer = self._trained.updater(name)[0]
        except LookupError:
            return False
        self._owner_hooks = [
            optimizer.register_step_pre_hook(self._watcher(lambda *_: before())),
            optimizer.register_step_post_hook(self._watcher(lambda *_: after())),
        ]
        return True

    def _leave_owner(self) -> None:
        """Never within those hooks: somebody goes through them."""
        for handle in self._owner_hooks:
            handle.remove()
        self._owner_hooks.clear()

    def _tell(self, outcome: str, **told: Any) -> None:
        if not self._is_told:
            self._is_told = True
            # With what was affected, and whether that changed anything: a use of what is as it was is no effect.
            self.report({"outcome": outcome, **self._told, **told})
        if not self._is_sticky:
            self._unhook()

    def _fail(self, error: Exception) -> None:
        self._is_sticky = False
        reason = str(error) if isinstance(error, InProcessFaultRefused) else f"{type(error).__name__}: {error}"
        self._tell("failed", reason=reason)

    def _watcher(self, call: Callable[..., None]) -> Watcher:
        return Watcher(call, self._fail)

    def _hook(self, handle: RemovableHandle) -> None:
        self._hooks.append(handle)

    def _unhook(self) -> None:
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()
