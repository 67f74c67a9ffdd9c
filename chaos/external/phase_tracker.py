"""Connects a training to its step machine: the events of torch's hooks go in, and what comes out is done.

Nothing that fails here reaches the script: the process is then no longer followed.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch.optim import Optimizer

from chaos.external.connection import tell_idleness
from chaos.external.figures import Figures
from chaos.external.hooks import TorchHooks
from chaos.external.identity import RANK_PID, identify, may_be_rank
from chaos.external.observation.step_watch import StepWatch
from chaos.external.observation.whole_state import Scalers
from chaos.external.optimizers import Optimizers, parameters_of
from chaos.external.rank import Rank
from chaos.external.saving import SaveFailure, Saves
from chaos.external.stall_reason import StallReason
from chaos.external.step_machine import (
    BACKWARD,
    CHECKPOINT,
    COMMIT,
    DATA,
    FORWARD,
    OPTIMIZER,
    PHASES,
    Action,
    Announce,
    BeginCheckpoint,
    BeginStep,
    CommitStep,
    RepeatStep,
    StepMachine,
)
from chaos.external.subject import ExternalSubject
from chaos.external.thread_saves import ThreadSaves
from chaos.external.torchft import Managers
from chaos.in_process.agent import Agent
from chaos.language.save_moment import ASYNC, BYTES, FILE, RENAME
from mecefo_runtime.system.command_records import RankRaised
from mecefo_runtime.system.job_records import RankFinished
from mecefo_runtime.system.record import Record

_ANNOUNCING = (Agent.announce.__code__, Agent.announce_moment.__code__)
_Callback = TypeVar("_Callback", bound=Callable[..., Any])


def _guarded(callback: _Callback) -> _Callback:
    """The script continues whatever fails in `callback`, which then returns None; what a fault raises passes."""

    @functools.wraps(callback)
    def call(tracker: PhaseTracker, *arguments: Any, **keywords: Any) -> Any:
        try:
            return callback(tracker, *arguments, **keywords)
        except Exception as error:
            if _is_announced(error):
                raise
            tracker.give_up(error)
            return None

    return cast("_Callback", call)


def _is_announced(error: BaseException) -> bool:
    """Whether `error` was raised while a phase was announced: by a fault, or by a signal's handler of the script."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code not in _ANNOUNCING:
        traceback = traceback.tb_next
    return traceback is not None


class PhaseTracker:
    """The training of this process; see `StepMachine` for its steps and phases, `Observer` for its callbacks."""

    def __init__(
        self, environment: Mapping[str, str], *, is_explicit: bool, loads: Sequence[object] | None = None
    ) -> None:
        """`is_explicit`: the script reports itself when a step ends (`chaos.agent.step`).

        `loads` grows with each state that this process loads; None: loads are not observed.
        """
        self._environment = environment
        self._loads = loads
        self._machine = StepMachine(is_explicit=is_explicit)
        # Reentrant: a signal's handler may come in between.
        self._lock = threading.RLock()
        self._rank: Rank | None = None
        self._figures = Figures()
        self._watch = StepWatch(self._emit_later)
        self._scalers = Scalers()
        # The model was called in the step under way; and of that no gradients were computed yet.
        self._has_forward = self._is_unused = False
        # The loader of the last batch, and that of the last batch before the model was called.
        self._source = self._called_after = 0
        # Gradients were computed of modules in evaluation mode alone.
        self._trains_in_evaluation_mode = False
        self._managers = Managers(self._on_rejected)
        self._optimizers = Optimizers(self._managers, self._on_forgotten)
        self._stall_reason = StallReason(self.give_up)
        self._saves = Saves(self._on_written, self._on_unsaved)
        self._saving_path: str | None = None
        self._thread_saves = ThreadSaves(self._on_begun_beside, self._on_written, self._on_unsaved)
        # Step and path of what another thread saves, until it has been looked at.
        self._saved_beside: tuple[int, str] | None = None
        self.hooks = TorchHooks(self)
        self._leave_managers: Callable[[], None] = lambda: None
        # The thread that trains, once that is known.
        self._thread: int | None = None
        self._called: Callable[[], object] = lambda: None  # what the script called first in the newest step
        # Compiled steps that are over and not yet reported.
        self._num_unseen = 0
        # The optimizer has called its closure.
        self._is_evaluating = False
        # How many effects have begun in this rank.
        self._num_effects = 0

    def attach(self) -> None:
        """Start following."""
        self.hooks.attach()
        self._leave_managers = self._managers.watch()
        atexit.register(self._finish, os.getpid())

    # ---- what the script does (`chaos.external.hooks.Observer`) ----

    @_guarded
    def created(self, optimizer: Optimizer) -> None:
        """The script has made another optimizer."""
        self._optimizers.add(optimizer)

    def is_elsewhere(self) -> bool:
        """See `Observer`."""
        return self._thread not in (None, threading.get_ident())

    @_guarded
    def on_data(self, source: object) -> None:
        """See `Observer`. Once it is known what is trained from, other loaders (evaluation) are no part of a step."""
        trained_from = self._figures.trained_from
        is_trained_from = trained_from is None or trained_from == id(source)
        self._stall_reason.fetched(is_trained_from=is_trained_from)
        # Another thread of the script may fetch ahead.
        if threading.get_ident() != (self._thread or threading.main_thread().ident):
            return
        self._source = id(source)
        if self._is_unused:
            self._look_at_next_pass()
        if is_trained_from:
            if self._rank is None:
                self._enter(DATA)
            self._feed(self._machine.on_data)

    @_guarded
    def on_batch(self, source: object, batch: object, iterator: object, *, is_first: bool) -> None:
        """See `Observer`."""
        self._figures.fetched(id(source), batch)
        self._watch.batches.returned(iterator, batch, is_first=is_first)

    @_guarded
    def on_asked(self, iterator: object, indices: object) -> None:
        """See `Observer`."""
        self._watch.batches.asked(iterator, indices)

    @_guarded
    def on_restarted(self, iterator: object) -> None:
        """See `Observer`."""
        self._watch.batches.restart(iterator)

    def _look_at_next_pass(self) -> None:
        """Another batch is fetched before a backward pass: losses are summed up, or a part of them is of no step."""
        if self._source != self._called_after:
            self._watch.passes_were_of_no_step()
        self.hooks.await_forward()

    @_guarded
    def may_be_trained(self, module: object) -> bool:
        """See `Observer`: no metric, and nothing in evaluation mode, unless the script trains that."""
        if not isinstance(module, torch.nn.Module):
            return True
        if not module.training and not self._trains_in_evaluation_mode:
            return False
        return next(module.parameters(), None) is not None

    @_guarded
    def on_forward(self, module: object, arguments: tuple[object, ...], keywords: Mapping[str, object] | None) -> None:
        """See `Observer`."""
        if self._thread is None:
            self._thread = threading.get_ident()
        self._is_unused, self._called_after = True, self._source
        if self._has_forward:
            # A further pass of a step with several; of another module, such as a metric, it is none.
            if type(module) is type(self._called()):
                self._watch.forward(self._machine.step, arguments, keywords)
            return
        self._has_forward = True
        self._optimizers.passed()
        if self._rank is None:
            self._enter(FORWARD)
        elif self._rank.resumption.is_due:
            self._find_place(FORWARD)
        self._take_up_count()
        self._called = weakref.ref(module)
        self._figures.forward(module, arguments)
        self._feed(self._machine.on_forward)
        self._watch.forward(self._machine.step, arguments, keywords)

    @_guarded
    def on_backward(self, tensors: object, gradients: object) -> None:
        """See `Observer`."""
        if self._thread is None:
            self._thread = threading.get_ident()
        self._trains_in_evaluation_mode |= not self._has_forward
        self._is_unused = False
        self._optimizers.passed()
        self._figures.backward(tensors, gradients)
        self._watch.backward()
        if self._rank is None:
            self._enter(BACKWARD)
        self._feed(self._machine.on_backward)

    @_guarded
    def on_computed_back(self, tensors: object) -> None:
        """See `Observer`."""
        if self._stall_reason.is_watching:
            parameters = parameters_of(self._optimizers.training())
            self._stall_reason.computed_back(tensors, (parameter.grad for parameter in parameters))

    @_guarded
    def on_scaler_made(self, scaler: object) -> None:
        """See `Observer`."""
        self._scalers.add(scaler)

    @_guarded
    def on_scaled(self, outputs: object, scaled: object) -> None:
        """See `Observer`."""
        self._figures.scaled(outputs, scaled)

    @_guarded
    def on_left_out(self) -> None:
        """See `Observer`: no step of the training."""
        with self._lock:
            self._machine.on_left_out()
        self._figures.left_out()
        # Its samples are used up: they are of the step that is made at last.
        self._has_forward = self._is_unused = False

    @_guarded
    def on_stepping(self, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """See `Observer`. With a closure (LBFGS, Lightning), the whole step is computed inside the optimizer's."""
        if not self._optimizers.enter(optimizer) or self._machine.is_over:
            return None
        self._watch.stepping(self._machine.step, optimizer)
        closure = arguments[1] if len(arguments) > 1 else keywords.get("closure")
        if not callable(closure):
            is_late = False if self.hooks.is_telling_compiled_step else self._optimizers.is_late(optimizer)
            if is_late is not None:
                if self._rank is None:
                    self._enter(OPTIMIZER)
                count = self._count(is_stepping=True)
                self._watch.updating(is_late=self.hooks.is_telling_compiled_step)
                self._feed(self._machine.on_stepping, id(optimizer), is_late, count)
            return None
        self._feed(self._machine.on_evaluating, id(optimizer))

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            result = closure(*args, **kwargs)
            self._on_evaluated()
            return result

        if len(arguments) > 1:
            return (arguments[0], evaluate, *arguments[2:]), keywords
        return arguments, {**keywords, "closure": evaluate}

    @_guarded
    def _on_evaluated(self) -> None:
        """The optimizer's closure has computed the gradients."""
        if self._rank is None:
            self._enter(OPTIMIZER)
        count = self._count(is_stepping=True)
        self._watch.updating()
        self._is_evaluating = True
        try:
            self._feed(self._machine.on_updating, count)
        finally:
            self._is_evaluating = False

    @_guarded
    def on_stepped(self, optimizer: Any) -> None:
        """See `Observer`."""
        others = self._optimizers.leave(optimizer)
        if others is not None:
            if self._rank is None:
                self._enter(COMMIT)
            self._feed(self._machine.on_stepped, id(optimizer), others)

    @_guarded
    def on_loaded(self) -> None:
        """See `Observer`."""
        self._optimizers.loaded()

    @_guarded
    def on_compiled_step(self, optimizer: Any) -> None:
        """See `Observer`. All that is left of the step is announced when it is over."""
        self._num_unseen = 1
        self.on_stepping(optimizer, (optimizer,), {})
        self.on_stepped(optimizer)
        self._num_unseen = 0

    @_guarded
    def on_save(self, path: str | None) -> bool:
        """See `Observer`: after a step that is over and before the next one, as far as that is seen; once for each."""
        if self._rank is None:
            return False
        if self._thread != threading.get_ident():
            # Distributed saves write on several threads.
            is_part = self._saves.is_within or self._saves.are_in_flight
            is_between = self._machine.newest_step == self._machine.last_step
            return not is_part and self._thread_saves.begin(path, self._machine.last_step, is_between_steps=is_between)
        self._saves.begin(self._machine.last_step)
        self._saving_path = path
        try:
            self._feed(self._machine.on_saving)
        except Exception as error:
            if _is_announced(error):
                # The script sees its save fail.
                self._saves.failed(error, path)
            raise
        return True

    @_guarded
    def on_saved(self, began_seconds: float, result: object, path: str | None) -> None:
        """See `Observer`."""
        if self._thread_saves.ended():
            return
        if self._rank is not None:
            self._rank.resumption.saved(time.monotonic() - began_seconds)
        self._saves.called(began_seconds, result, path)
        if self._rank is None or self._saves.is_within:
            return
        step = self._machine.last_step
        if self._saves.are_in_flight:
            self._announce_moment(step, ASYNC, path)
        else:
            self._announce_moment(step, FILE, path)

    @_guarded
    def on_renamed(self, source: str, target: str) -> None:
        """See `Observer`."""
        if self._rank is None or self._thread != threading.get_ident():
            return
        within = None if self._saving_path is None else str(Path(self._saving_path).absolute())
        step = self._saves.renamed(str(Path(source).absolute()), str(Path(target).absolute()), within)
        if step is not None:
            self._announce_moment(step, RENAME, target)

    @_guarded
    def on_save_failed(self, error: BaseException, path: str | None) -> None:
        """See `Observer`."""
        if not self._thread_saves.ended(error):
            self._saves.failed(error, path)

    @_guarded
    def on_departure(self) -> None:
        """See `Observer`: send what would otherwise be lost."""
        if not self.is_elsewhere():
            self._saves.next_step()
        if self._rank is not None:
            self._rank.flush()

    def tell_exception(self, raised: RankRaised) -> bool:
        """Report an uncaught exception, or one that chaos raised; returns whether that was possible."""
        rank = self._rank
        if rank is not None:
            rank.report_exception(self._machine.newest_step, self._machine.last_step, raised)
        return rank is not None

    @_guarded
    def step_ended(self, figures: Mapping[str, float | int], step: int | None) -> None:
        """The script reports that a step is over; `step` is its own count, where it gives one."""
        if self._thread is None:
            self._thread = threading.get_ident()
        if self._rank is None:
            self._enter(COMMIT)
        self._feed(self._machine.on_step_reported, figures, step)

    # ---- what others show (`Managers`, `Optimizers`, `Saves`) ----

    @_guarded
    def _on_rejected(self) -> None:
        self._feed(self._machine.on_rejected)

    @_guarded
    def _on_forgotten(self, optimizer: int, is_first: bool) -> None:
        if is_first:
            # The training may be over, and what it trained may be gone in a moment.
            self._look_once_more()
        with self._lock:
            self._machine.on_forgotten(optimizer)

    def _on_written(self, step: int, blocking_seconds: float, writing_seconds: float, saved: list[list[Any]]) -> None:
        """A checkpoint is written, on whatever thread that was."""
        if self._rank is not None and step > 0:
            self._rank.report_checkpoint(step, blocking_seconds, writing_seconds, saved)

    def _on_begun_beside(self, step: int, path: str, is_between_steps: bool) -> None:
        """Another thread of the script begins to save."""
        if self._rank is not None:
            self._rank.report_thread_save(step, path)
        # What it saves is looked at by the thread that trains, before that changes it.
        self._saved_beside = (step, path) if is_between_steps else None

    def _on_unsaved(self, step: int, failure: SaveFailure) -> None:
        if self._rank is not None and step > 0:
            self._rank.report_unsaved(step, failure)

    # ---- the machine ----

    def _feed(self, event: Callable[..., Iterable[Action]], *facts: Any) -> None:
        """Have the machine decide what follows from `event`, and perform it."""
        with self._lock:
            actions = event(*facts)
        if type(actions) is tuple:
            for action in actions:
                self._perform(action)
            return
        # Not locked while an action is performed: that may take long, and may be another event.
        following = iter(actions)
        while True:
            with self._lock:
                action = next(following, None)
            if action is None:
                return
            self._perform(action)

    def _perform(self, action: Action) -> None:
        rank = self._rank
        # By their frequency.
        if type(action) is Announce:
            self._announce(action)
        elif rank is None:
            return
        elif type(action) is BeginStep:
            self._saves.next_step()
            if self._saved_beside is not None:
                saved, self._saved_beside = self._saved_beside, None
                rank.report_save(*saved, is_asynchronous=True)
            rank.begin_step()
        elif type(action) is CommitStep:
            self._commit(rank, action)
        elif type(action) is RepeatStep:
            self._figures.take(action.step)
            self._discard()
            self.hooks.await_forward()
        elif type(action) is BeginCheckpoint:
            rank.report_save(action.step, self._saving_path)

    def _announce(self, announce: Announce) -> None:
        if self._rank is None:
            return
        agent = self._rank.agent
        try:
            agent.announce(announce.step, announce.phase)
        except Exception as error:
            # The rank may be ended by it before its own end is reported.
            self._tell_injected(error)
            raise
        self._see_effects(agent)
        if announce.phase == PHASES[CHECKPOINT]:
            self._announce_moment(announce.step, BYTES, self._saving_path)
        elif announce.phase == PHASES[FORWARD] and self._saves.are_in_flight:
            self._announce_moment(announce.step, ASYNC, None)

    def _see_effects(self, agent: Agent) -> None:
        if agent.num_begun != self._num_effects:
            self._num_effects = agent.num_begun
            with self._lock:
                self._machine.on_effect()
            self._stall_reason.begin(self._called_module())

    def _announce_moment(self, step: int, moment: str, path: str | None) -> None:
        """Let the rank be held within its save; the size of the file at `path` is reported."""
        if self._rank is None:
            return
        told: dict[str, Any] = {}
        if path is not None:
            told["path"] = str(Path(path).absolute())
            with suppress(OSError):
                told["num_bytes"] = Path(path).stat().st_size
        agent = self._rank.agent
        try:
            agent.announce_moment(step, moment, told)
        except Exception as error:
            self._tell_injected(error)
            raise
        self._see_effects(agent)

    def _commit(self, rank: Rank, committed: CommitStep) -> None:
        loss = self._figures.loss_on_device()
        seen = self._figures.take(committed.step)
        self._has_forward = self._is_unused = False
        self._watch.committed(committed.step, self._optimizers.made(), seen.get("loss") if loss is None else loss)
        if committed.is_first:
            machine = self._machine
            rank.report_count(committed.step, is_explicit=machine.is_explicit, has_numbers=machine.has_numbers)
        rank.commit(committed, seen)
        self._stall_reason.committed(began_after=committed.follows_effect)
        self.hooks.await_forward()

    def _discard(self) -> None:
        """What was computed is of no step."""
        self._has_forward = self._is_unused = False
        self._watch.discarded()

    def _emit_later(self, make: Callable[[], Record], step: int, now_seconds: float) -> None:
        if self._rank is not None:
            self._rank.emit_later(make, step, now_seconds)

    def _tell_injected(self, error: Exception) -> None:
        from chaos.external.uncaught import injected

        if (raised := injected(error)) is not None:
            self.tell_exception(raised)

    def _count(self, *, is_stepping: bool = False) -> int | None:
        """By the restored training's own count the step under way: one that was resumed does not begin at step 1."""
        machine = self._machine
        if machine.is_explicit or machine.is_over or not self._optimizers.may_count:
            return None
        return self._optimizers.next_step(machine.leading_optimizer, self._num_unseen, is_stepping=is_stepping)

    def _take_up_count(self) -> None:
        if (count := self._count()) is not None:
            with self._lock:
                self._machine.count_is(count)

    def _find_place(self, phase: int) -> None:
        """Find by its parameters the step after which this start continues; `phase` is about to begin."""
        if self._rank is None:
            return
        found = self._rank.resumption
        if not found.is_due or self._num_unseen or phase > OPTIMIZER:
            # Of a step that is over when it is seen they are no longer what it began with.
            return
        is_first_pass = phase >= FORWARD
        step = found.look(is_first_pass=is_first_pass)
        if step is not None and not self._optimizers.are_counted_by_managers:
            if is_first_pass:
                self._optimizers.count_is_known()
            with self._lock:
                self._machine.continues_after(step)
        if is_first_pass:
            self._rank.report_entry(self._machine.last_step if found.is_first else step)

    # ---- being a rank ----

    def _enter(self, phase: int) -> None:
        """Register with the injector at the first `phase` that is seen of a training, so that step 1 can be held."""
        if not self._machine.is_over:
            self._connect(phase)
            self._find_place(phase)

    def _connect(self, phase: int) -> None:
        if not may_be_rank(self._environment):
            self.stop()
            return
        identity = identify(self._environment, self._managers.replica_group())
        subject = ExternalSubject(self._optimizers.training, self._is_step_unseen, self._called_module)
        self._rank = Rank(self._environment, identity, subject, self._optimizers, self._loads, self._scalers)
        self.hooks.watch_departure()
        self._figures.set_world_size(identity.world_size)
        if phase < COMMIT:
            self._take_up_count()
        os.environ[RANK_PID] = str(os.getpid())
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _look_once_more(self) -> None:
        if self._rank is not None:
            self._rank.look_once_more()

    def _called_module(self) -> torch.nn.Module | None:
        module = self._called()
        return module if isinstance(module, torch.nn.Module) else None

    def _is_step_unseen(self) -> bool:
        """Whether the beginning of the optimizer's step is over where `optimizer` is announced."""
        return self._is_evaluating or self.hooks.has_compiled_steps

    def _leave_to_parent(self) -> None:
        """In a fork: the connections are the parent's, and so is the training."""
        rank = self._rank
        self.stop()
        if rank is not None:
            rank.abandon()

    @_guarded
    def _finish(self, pid: int) -> None:
        if os.getpid() != pid:
            return
        # Set by an uncaught exception: then it was not the script's own end.
        has_failed = hasattr(sys, "last_value")
        # No other one trains any more.
        self._thread = threading.get_ident()
        self.hooks.tell_compiled_step()
        if self._machine.is_over:
            return
        if self._rank is None:
            if not has_failed:
                tell_idleness(self._environment)
            return
        self._saves.next_step()
        if has_failed:
            self._rank.flush()
            return
        self._look_once_more()
        machine = self._machine
        passes = 0 if machine.num_left_out else self._stall_reason.num_left_out(machine.most_backwards)
        finished = RankFinished(steps_left_out=machine.num_left_out, spoilt_passes_left_out=passes)
        self._rank.report_end(machine.last_step, finished)

    def stop(self) -> None:
        """Stop following; the script continues."""
        self._machine.stop()
        self._rank = None
        self.hooks.detach()
        self._leave_managers()
        self._stall_reason.end()

    def give_up(self, error: Exception) -> None:
        """Stop following because of `error`, which is reported once."""
        if not self._machine.is_over:
            self.stop()
            print(f"chaos: this process is no longer observed: {type(error).__name__}: {error}", file=sys.stderr)
