"""What a step of an external job is: which of its optimizers' steps belong together."""

from __future__ import annotations

from collections.abc import Collection, Hashable

# An optimizer that has stepped so often since the leading one last did takes the lead: another part of the training.
TAKEOVER_STEPS = 10


class Rounds:
    """Groups the steps of one or more optimizers into steps of the training.

    The optimizer that steps first leads: each of its steps is one of the training. Those that stepped after its last
    step are waited for (at first, all that there are): the step is over when they have followed. One that did not, when
    the next batch was fetched or the leading one stepped again, is never waited for any more: a generator that is
    trained every fifth time, say, whose steps belong to the step that comes next.
    """

    def __init__(self) -> None:
        self._leading: Hashable | None = None
        self._awaited: set[Hashable] = set()
        self._followed: set[Hashable] = set()
        self._irregular: set[Hashable] = set()
        self._others_steps = 0
        # The leading one has stepped, and others are waited for.
        self.is_open = False

    @property
    def leading(self) -> Hashable | None:
        """The optimizer whose steps are those of the training; None before the first step."""
        return self._leading

    def stepping(self, optimizer: Hashable) -> bool:
        """It is about to step; returns whether that ends the step before."""
        return optimizer == self._leading and self.new_batch()

    def stepped(self, optimizer: Hashable, others: Collection[Hashable] = ()) -> bool:
        """It has stepped; returns whether a step of the training is over.

        `others` are those that may follow the very first step: optimizers of parameters of their own.
        """
        if self._leading is None:
            self._leading, self._followed = optimizer, set(others)
        if optimizer == self._leading:
            return not self._lead()
        self._followed.add(optimizer)
        self._others_steps += 1
        if self._others_steps >= TAKEOVER_STEPS * len(self._followed):
            self._leading, self._followed, self._awaited, self.is_open = optimizer, set(), set(), False
            self._others_steps = 0
            return True
        if self.is_open and self._awaited <= self._followed:
            self.is_open = False
            return True
        return False

    def _lead(self) -> bool:
        """The leading one has stepped; returns whether others are waited for."""
        if not self._followed and not self._awaited:
            # A single optimizer.
            self.is_open = False
            return False
        self._awaited, self._followed = self._followed - self._irregular, set()
        self._others_steps = 0
        self.is_open = bool(self._awaited)
        return self.is_open

    def new_batch(self) -> bool:
        """The next batch is fetched; returns whether that ends a step in which others were waited for."""
        if not self.is_open:
            return False
        self._irregular |= self._awaited - self._followed
        self.is_open = False
        return True

    def forget(self, optimizer: Hashable) -> None:
        """It is no more; if it led, the next one that steps does."""
        self._awaited.discard(optimizer)
        self._irregular.discard(optimizer)
        if optimizer == self._leading:
            self._leading = None


class Nesting:
    """Which optimizer steps outermost: wrappers (ZeRO, Accelerate) are optimizers that step others."""

    def __init__(self) -> None:
        self._stack: list[Hashable] = []

    def enter(self, optimizer: Hashable) -> bool:
        """It begins to step; returns whether no other one does."""
        # It broke off the last time.
        self.forget(optimizer)
        self._stack.append(optimizer)
        return len(self._stack) == 1

    def leave(self, optimizer: Hashable) -> bool:
        """It has stepped; returns whether it was the outermost one."""
        if optimizer not in self._stack:
            return False
        self.forget(optimizer)
        return not self._stack

    def forget(self, optimizer: Hashable) -> None:
        """It no longer steps: neither do those that it wraps."""
        if optimizer in self._stack:
            del self._stack[self._stack.index(optimizer) :]
