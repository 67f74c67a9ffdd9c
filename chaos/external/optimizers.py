"""The optimizers of one process: which of them train, which of their steps count, and how many steps were made."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping

import torch
from torch.optim import Optimizer

from chaos.external.steps import Nesting
from chaos.external.torchft import Managers


class Optimizers:
    """Told of all that happens to them, in its order; see `chaos.external.step_machine` for when a step is over.

    A step of an optimizer belongs to the training if a forward or backward pass went before it. One without only makes
    the optimizer's state: `get_state_dict` of torch.distributed.checkpoint takes one with a learning rate of 0 where
    there is none yet (torch 2.11-2.13). A script whose passes cannot be seen, which steps again without one, trains
    all the same.
    """

    def __init__(self, managers: Managers, forgotten: Callable[[int, bool], None]) -> None:
        """`forgotten` is called with the id of one that has stepped and no longer exists, and whether it was the first.

        Its parameters may still be there then.
        """
        self._managers = managers
        self._forgotten = forgotten
        # By id, in the order in which they were made, and in that in which they first stepped.
        self._made: dict[int, weakref.ref[Optimizer]] = {}
        self._stepped: dict[int, weakref.ref[Optimizer]] = {}
        self._nesting = Nesting()
        self._num_passes = 0
        # Of each: at which pass it stepped last, whether it did since then without one, and how often in all.
        self._stepped_at: dict[int, int] = {}
        self._skipped: set[int] = set()
        self._num_skipped: dict[int, int] = {}
        self._is_skipping = False
        # Whether their own count of steps may be another than what was counted.
        self._is_count_due = True

    def add(self, optimizer: Optimizer) -> None:
        """The script made one, or steps one that is not known yet."""
        key = id(optimizer)
        if key not in self._made:
            # A later optimizer may have the same id.
            self._made[key] = weakref.ref(optimizer, lambda _: self._forget(key))

    def passed(self) -> None:
        """A forward or backward pass has begun."""
        self._num_passes += 1

    def loaded(self) -> None:
        """The state of one was loaded, its count of steps with it."""
        self._is_count_due = True
        self._num_skipped.clear()

    def enter(self, optimizer: Optimizer) -> bool:
        """It begins to step; returns whether no other one does, which wraps it."""
        if not self._nesting.enter(id(optimizer)):
            return False
        self.add(optimizer)
        return True

    def is_late(self, optimizer: Optimizer) -> bool | None:
        """Whether its step, which begins now and has no closure, shows that the one before it was of the training, too.

        None: this one is none itself, as far as is known.
        """
        key = id(optimizer)
        if self._stepped_at.get(key, 0) < self._num_passes:
            self._skipped.discard(key)
            return False
        if all(_is_zero(group.get("lr")) for group in optimizer.param_groups) or (
            key not in self._skipped and key not in self._stepped
        ):
            self._skipped.add(key)
            self._is_skipping = True
            return None
        if key in self._skipped:
            self._skipped.discard(key)
            self._num_skipped.pop(key, None)
            # One without a count of its own says nothing of where the training is.
            self._is_count_due &= steps_of(optimizer) > 0
            return True
        return False

    def leave(self, optimizer: Optimizer) -> Collection[int] | None:
        """It has stepped; returns None where that does not belong to the training.

        Otherwise the ids of those that may follow the very first step: optimizers that share no parameter with it.
        """
        if not self._nesting.leave(id(optimizer)):
            return None
        key = id(optimizer)
        if self._is_skipping:
            self._is_skipping = False
            self._num_skipped[key] = self._num_skipped.get(key, 0) + 1
            return None
        is_first = not self._stepped
        self._stepped_at[key] = self._num_passes
        self._is_count_due = False
        self._stepped.setdefault(key, self._made[key])
        return [id(other) for other in _living(self._made) if _is_apart(other, optimizer)] if is_first else ()

    def made(self) -> list[Optimizer]:
        """All that there are, in the order in which they were made, whether they have stepped or not."""
        return _living(self._made)

    def own_steps(self) -> int:
        """How many steps they have made by their own count, over all starts; 0 where they keep none."""
        return max((steps_of(one) - self._num_skipped.get(id(one), 0) for one in self.made()), default=0)

    def has_state(self) -> bool:
        """Whether any of them has a state: moments, momentum."""
        return any(
            isinstance(value, torch.Tensor)
            for one in self.made()
            for state in one.state.values()
            for value in (state.values() if isinstance(state, Mapping) else ())
        )

    def count_is_known(self) -> None:
        """Where the training continues is known better than by their own count, until a state is loaded again."""
        self._is_count_due = False

    def training(self) -> list[Optimizer]:
        """Those that have stepped, in the order of their first steps; all, before the first step."""
        return _living(self._stepped) or _living(self._made)

    @property
    def num_training(self) -> int:
        """How many have stepped."""
        return len(self._stepped)

    def next_step(self, leading: Hashable | None, num_unseen: int, *, is_stepping: bool = False) -> int | None:
        """The step under way, from 1, by the count that a restored training brings along; None: as it was counted.

        `leading` is the id of the optimizer each of whose steps is one of the training, if there is one. `num_unseen`
        steps are over and not counted yet; `is_stepping`: an optimizer is about to make the step.
        """
        done = self._managers.num_steps()
        if done is not None:
            # It counts the step before the optimizer makes it.
            return max(1, done if is_stepping else done + 1)
        if not self._is_count_due:
            return None
        counted = max((steps_of(one) - self._num_skipped.get(id(one), 0) for one in self._counting(leading)), default=0)
        if not counted and self._stepped:
            return None
        return 1 + max(0, counted - num_unseen)

    @property
    def may_count(self) -> bool:
        """Whether `next_step` may know more than what was counted."""
        return self._is_count_due or self._managers.are_any

    @property
    def are_counted_by_managers(self) -> bool:
        """Whether torchft counts the steps of the training over all starts."""
        return self._managers.num_steps() is not None

    def _counting(self, leading: Hashable | None) -> list[Optimizer]:
        found = [one for one in _living(self._stepped) if id(one) == leading]
        return found or _living(self._made)

    def _forget(self, key: int) -> None:
        if key in self._stepped:
            self._forgotten(key, next(iter(self._stepped)) == key)
            del self._stepped[key]
        self._nesting.forget(key)
        self._stepped_at.pop(key, None)
        self._num_skipped.pop(key, None)
        self._skipped.discard(key)
        self._made.pop(key, None)


def parameters_of(optimizers: list[Optimizer]) -> Iterator[torch.Tensor]:
    """The parameters that they train, in their order."""
    return (parameter for one in optimizers for group in one.param_groups for parameter in group["params"])


def steps_of(optimizer: Optimizer) -> int:
    """How many steps it has made by its own count, over all runs (Adam's `step`); 0 where it keeps none."""
    most = 0
    for state in optimizer.state.values():
        steps = state.get("step") if isinstance(state, Mapping) else None
        if isinstance(steps, int | float) or (isinstance(steps, torch.Tensor) and steps.numel() == 1):
            most = max(most, int(steps))
    return most


def _living(optimizers: Mapping[int, weakref.ref[Optimizer]]) -> list[Optimizer]:
    # The garbage collector may remove one during the loop.
    return [optimizer for found in list(optimizers.values()) if (optimizer := found()) is not None]


def _is_apart(one: Optimizer, other: Optimizer) -> bool:
    """Whether they have no parameter in common: one that wraps or replaces the other has."""
    mine = {id(parameter) for parameter in parameters_of([one])}
    return not any(id(parameter) in mine for parameter in parameters_of([other]))


def _is_zero(learning_rate: object) -> bool:
    return isinstance(learning_rate, int | float | torch.Tensor) and float(learning_rate) == 0.0
