"""The steps of one training and their phases, as a state machine: the events of a script in, actions out.

It decides without torch, clock, thread or connection; `chaos.external.phase_tracker` connects it to all of these.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from chaos.external.steps import Rounds

# What can be seen of a script without a line changed. `reduce` cannot: it runs within `backward`.
PHASES = ("data", "forward", "backward", "optimizer", "commit", "checkpoint")
DATA, FORWARD, BACKWARD, OPTIMIZER, COMMIT, CHECKPOINT = range(6)

# Actions are values. Not frozen: it takes three times as long to make one that is, and they are made in every step.


@dataclass(slots=True)
class Announce:
    """The training has reached `phase` of `step`: it may be held there, and an exception may be raised there."""

    step: int
    phase: str


@dataclass(slots=True)
class BeginStep:
    """No phase of `step` has been announced yet; the step before it is complete."""

    step: int


@dataclass(slots=True)
class CommitStep:
    """`step` is committed; `figures` are those that the script gave.

    `is_first`: it is the first of this process. `follows_effect`: it began after the newest effect of a fault did.
    """

    step: int
    figures: Mapping[str, float | int]
    is_first: bool
    follows_effect: bool


@dataclass(slots=True)
class RepeatStep:
    """What has been computed for `step` is discarded; the script computes it again."""

    step: int


@dataclass(slots=True)
class BeginCheckpoint:
    """The training's state after `step` is about to be saved."""

    step: int


Action = Announce | BeginStep | CommitStep | RepeatStep | BeginCheckpoint


class StepMachine:
    """The step under way, how far it has come, and when it is committed.

    Each method that returns actions is one event of the script. The caller performs every action before it takes the
    next one. If one raises, the caller takes no more of them, and the machine stays where that action left it. Any
    order of events is accepted. `steps` says which steps of several optimizers make one of the training.

    A phase is announced when it is first seen in a step. A phase that a script does not show is announced with the next
    one that it does, so that there is no step in which a rank could not be held.
    """

    def __init__(self, *, is_explicit: bool = False) -> None:
        """`is_explicit`: the script reports itself when a step ends, and nothing is counted otherwise."""
        self.is_explicit = is_explicit
        # The step under way, from 1.
        self.step = 1
        self.is_over = False
        self.num_committed = 0
        # Since the last commit: steps that a GradScaler left out.
        self.num_left_out = 0
        # Backward passes of the step that took most of them.
        self.most_backwards = 1
        # The script gives the numbers of its steps.
        self.has_numbers = False
        self._rounds = Rounds()
        # Phases of the step under way.
        self._num_announced = 0
        # Since the last commit: backward passes, and whether an optimizer has stepped.
        self._num_backwards = 0
        self._has_stepped = False
        # The step that was under way when the newest effect of a fault began.
        self._affected_step = 0
        self._saved_after: int | None = None

    @property
    def leading_optimizer(self) -> Hashable | None:
        """The optimizer each of whose steps is one of the training; None before the first step."""
        return self._rounds.leading

    @property
    def last_step(self) -> int:
        """The step before the one under way; 0 before the first."""
        return self.step - 1

    @property
    def newest_step(self) -> int:
        """The step under way; between two steps the one that is over, because saving belongs to that."""
        return self.step if self._num_announced else self.step - 1

    # ---- the number of the step under way ----

    def count_is(self, step: int) -> None:
        """By the count of the training's own state `step` is under way."""
        if step != self.step and not self.is_explicit and not self.is_over:
            self.step, self._num_announced = step, 0

    def continues_after(self, step: int) -> None:
        """The training continues after `step`, as its parameters show."""
        if step + 1 != self.step:
            self.step, self._num_announced = step + 1, 0

    # ---- events ----

    def on_data(self) -> Iterable[Action]:
        """The next batch of what is trained from is about to be fetched."""
        if self._rounds.new_batch() and not self.is_explicit:
            return self._commit_and_reach(DATA)
        return self._reach(DATA)

    def on_forward(self) -> Iterable[Action]:
        """The first forward pass of a step is about to begin."""
        return self._reach(FORWARD)

    def on_backward(self) -> Iterable[Action]:
        """A backward pass is about to begin."""
        self._num_backwards += 1
        return self._reach(BACKWARD)

    def on_left_out(self) -> None:
        """A GradScaler has left an optimizer's step out."""
        self.num_left_out += 1

    def on_stepping(self, optimizer: Hashable, is_late: bool = False, count: int | None = None) -> Iterable[Action]:
        """An optimizer is about to step.

        `is_late`: that shows that its last step was one of the training. `count`: see `count_is`, None without one.
        """
        if self.is_explicit or not (is_late or self._rounds.is_open):
            return self.on_updating(count)
        return self._step_after_another(optimizer, is_late, count)

    def on_evaluating(self, optimizer: Hashable) -> Iterable[Action]:
        """An optimizer is about to step, and calls the script for the gradients; `on_updating` follows."""
        return self._commit({}) if not self.is_explicit and self._rounds.stepping(optimizer) else ()

    def on_updating(self, count: int | None = None) -> Iterable[Action]:
        """The gradients are complete, and an optimizer is about to use them."""
        if count is not None:
            self.count_is(count)
        return self._reach(OPTIMIZER)

    def on_stepped(self, optimizer: Hashable, others: Collection[Hashable] = ()) -> Iterable[Action]:
        """An optimizer has stepped; `others` may follow the very first step (see `Rounds.stepped`)."""
        self._has_stepped = True
        return self._commit({}) if self._rounds.stepped(optimizer, others) and not self.is_explicit else ()

    def on_forgotten(self, optimizer: Hashable) -> None:
        """An optimizer that has stepped no longer exists."""
        self._rounds.forget(optimizer)

    def on_rejected(self) -> Iterable[Action]:
        """The step under way is not committed in any replica group, and is computed again (torchft)."""
        self._num_announced = 0
        return () if self.is_over else (RepeatStep(self.step),)

    def on_saving(self) -> Iterable[Action]:
        """Something is about to be saved: a checkpoint of the step that is over, announced once for each."""
        step = self.last_step
        if step == self._saved_after or self.is_over:
            return ()
        self._saved_after = step
        announce = Announce(step, PHASES[CHECKPOINT])
        if not self.num_committed:
            return (announce,)
        # A script that reports itself when a step ends may save before it does.
        is_within = self.is_explicit and self._has_stepped
        return BeginCheckpoint(self.step if is_within else step), announce

    def on_step_reported(self, figures: Mapping[str, float | int], number: int | None) -> Iterable[Action]:
        """The script reports the end of a step, with its own `number` of it where it gives one."""
        if not self.is_explicit:
            self.is_explicit = True
            if self.num_committed:
                # This step has been counted already, by its optimizer.
                self.step = self.step if number is None else number + 1
                return ()
        if number is not None:
            self.step, self.has_numbers = number, True
        return self._commit(figures)

    def on_effect(self) -> None:
        """An effect of a fault has begun at the phase that was announced last."""
        self._affected_step = self.step

    def stop(self) -> None:
        """The training is not followed any more: no event has an action after this."""
        self.is_over = True

    # ---- what follows from them ----

    def _reach(self, phase: int) -> Iterable[Action]:
        """The step reaches `phase`: announce it, and all before it that have not been seen."""
        if self._num_announced > phase or self.is_over:
            return ()
        if self._num_announced < phase:
            return self._announce_all(phase)
        # Nearly always.
        self._num_announced += 1
        announce = Announce(self.step, PHASES[phase])
        return (announce,) if phase else (BeginStep(self.step), announce)

    def _announce_all(self, last: int) -> Iterator[Action]:
        if not self._num_announced:
            yield BeginStep(self.step)
        while self._num_announced <= last and not self.is_over:
            phase = PHASES[self._num_announced]
            self._num_announced += 1
            yield Announce(self.step, phase)

    def _commit(self, figures: Mapping[str, float | int]) -> Iterator[Action]:
        yield from self._reach(COMMIT)
        if self.is_over:
            return
        step, is_first = self.step, not self.num_committed
        self.num_committed += 1
        if self._num_backwards > self.most_backwards:
            self.most_backwards = self._num_backwards
        self.num_left_out = self._num_backwards = 0
        self._has_stepped = False
        self.step += 1
        self._num_announced = 0
        yield CommitStep(step, figures, is_first, step > self._affected_step)

    def _commit_and_reach(self, phase: int) -> Iterator[Action]:
        yield from self._commit({})
        yield from self._reach(phase)

    def _step_after_another(self, optimizer: Hashable, is_late: bool, count: int | None) -> Iterator[Action]:
        if is_late:
            yield from self._commit({})
        if self._rounds.stepping(optimizer):
            yield from self._commit({})
        yield from self.on_updating(count)
