"""Follows one process's training from phase to phase, announces each, and can be held there."""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from chaos.external.connection import connect, tell_idleness
from chaos.external.figures import Figures
from chaos.external.hooks import TorchHooks
from chaos.external.identity import RANK_PID, Identity, identify, may_be_rank
from chaos.external.optimizers import Optimizers, parameters_of
from chaos.external.replica_state import ReplicaState
from chaos.external.report import Report
from chaos.external.resumption import Resumption
from chaos.external.saving import SaveFailure, Saves
from chaos.external.stall_reason import StallReason
from chaos.external.subject import ExternalSubject
from chaos.external.torchft import Managers
from chaos.in_process.agent import Agent
from mecefo_runtime.system.command_records import (
    CheckpointBegun,
    LossNotFinite,
    RankRaised,
    StateChecksums,
    StepsCounted,
    TrainingEntered,
)
from mecefo_runtime.system.job_records import CheckpointFailed, CheckpointWritten, RankFinished

# What can be seen of a script without a line changed. `reduce` cannot: it goes on within `backward`.
PHASES = ("data", "forward", "backward", "optimizer", "commit", "checkpoint")
_DATA, _FORWARD, _BACKWARD, _OPTIMIZER, _COMMIT = range(5)


class PhaseTracker:
    """The training of this process, a step of which is one of the leading optimizer (see `chaos.external.steps`).

    A phase is announced when it is first seen in a step. One that a script does not show is announced with the next one
    that it does, so that no step passes in which a rank could not be held.
    """

    def __init__(
        self, environment: Mapping[str, str], *, is_explicit: bool, loads: Sequence[object] | None = None
    ) -> None:
        """`loads` grows with each state that this process loads; None: loads are not observed."""
        self._environment = environment
        self._loads = loads
        # Whether the script says itself when a step ends (`chaos.agent.step`).
        self.is_explicit = is_explicit
        # The step under way, from 1, and how many of its phases have been announced.
        self.step = 1
        self._num_announced = 0
        self._began_seconds = 0.0
        self._num_committed = 0
        # Since the last commit.
        self._num_left_out = self._num_backwards = 0
        # Backward passes of the step that took most of them.
        self._most_backwards = 1
        # How many effects have begun in this rank, and the step that was under way when the newest did.
        self._num_effects = self._affected_step = 0
        self._stall_reason = StallReason(self._give_up)
        self._saves = Saves(self._tell_checkpoint, self._tell_unsaved)
        # Steps that are over and not yet told: compiled ones.
        self._num_unseen = 0
        self._agent: Agent | None = None
        self._report: Report | None = None
        self._identity: Identity | None = None
        self._figures = Figures()
        self._managers = Managers(self._on_rejected)
        self._optimizers = Optimizers(self._managers, self._look_once_more)
        self._replica_state: ReplicaState | None = None
        self._resumption: Resumption | None = None
        # The script gives the numbers of its steps.
        self._has_numbers = False
        # Steps of an optimizer since the last commit.
        self._has_stepped = False
        self._is_finite = True
        self._loss: float | None = None
        self._called: Callable[[], object] = lambda: None  # what the script called first in the newest step
        # The optimizer has called its closure.
        self._is_evaluating = False
        self._thread: int | None = None
        self._is_over = False
        self.hooks = TorchHooks(self)
        self._leave_managers: Callable[[], None] = lambda: None

    def attach(self) -> None:
        """Start following."""
        self.hooks.attach()
        self._leave_managers = self._managers.watch()
        atexit.register(self._finish, os.getpid())

    # ---- what the script does (`chaos.external.hooks.Observer`) ----

    def created(self, optimizer: Optimizer) -> None:
        """The script has made another optimizer."""
        self._optimizers.add(optimizer)

    def is_elsewhere(self) -> bool:
        """See `Observer`."""
        return self._thread not in (None, threading.get_ident())

    def on_data(self, source: object) -> None:
        """See `Observer`. Once it is known what is trained from, other loaders (evaluation) are no part of a step."""
        trained_from = self._figures.trained_from
        is_trained_from = trained_from is None or trained_from == id(source)
        self._stall_reason.fetched(is_trained_from=is_trained_from)
        if not is_trained_from:
            return
        if threading.get_ident() != (self._thread or threading.main_thread().ident):
            # Fetched ahead by a thread of the script's own.
            return
        if self._optimizers.rounds.new_batch():
            self._commit({})
        self._reach(_DATA)

    def on_batch(self, source: object, batch: object) -> None:
        """See `Observer`."""
        self._guard(self._figures.fetched, id(source), batch)

    def on_forward(self, module: object, arguments: tuple[object, ...]) -> None:
        """See `Observer`."""
        self._on_training_thread()
        self._optimizers.passed()
        if self._agent is None and not self._is_over:
            self._register(_FORWARD)
        elif self._resumption is not None and self._resumption.is_due:
            self._guard(self._find_place, _FORWARD)
        self._take_up_count()
        self._called = weakref.ref(module)
        self._reach(_DATA)
        self._guard(self._figures.forward, module, arguments)
        self._reach(_FORWARD)

    def on_backward(self, tensors: object, gradients: object) -> None:
        """See `Observer`."""
        self._on_training_thread()
        self._optimizers.passed()
        self._guard(self._figures.backward, tensors, gradients)
        self._num_backwards += 1
        if self._num_announced <= _BACKWARD:
            self._reach(_BACKWARD)

    def on_computed_back(self, tensors: object) -> None:
        """See `Observer`."""
        if self._stall_reason.is_watching:
            parameters = parameters_of(self._optimizers.training())
            self._guard(self._stall_reason.computed_back, tensors, (parameter.grad for parameter in parameters))

    def on_scaled(self, outputs: object, scaled: object) -> None:
        """See `Observer`."""
        self._guard(self._figures.scaled, outputs, scaled)

    def on_left_out(self) -> None:
        """See `Observer`: no step of the training."""
        self._num_left_out += 1
        self._guard(self._figures.left_out)

    def on_stepping(self, optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """See `Observer`. With a closure (LBFGS, Lightning), the whole step is computed inside the optimizer's."""
        if not self._optimizers.enter(optimizer) or self._is_over:
            return None
        closure = arguments[1] if len(arguments) > 1 else keywords.get("closure")
        if not callable(closure) and not self.hooks.is_telling_compiled_step:
            is_late = self._optimizers.is_late(optimizer)
            if is_late is None:
                return None
            if is_late and not self.is_explicit:
                self._commit({})
        if not self.is_explicit and self._optimizers.rounds.stepping(id(optimizer)):
            self._commit({})
        if not callable(closure):
            self._take_up_count(is_stepping=True)
            self._reach(_OPTIMIZER)
            return None

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            result = closure(*args, **kwargs)
            self._take_up_count(is_stepping=True)
            self._is_evaluating = True
            try:
                self._reach(_OPTIMIZER)
            finally:
                self._is_evaluating = False
            return result

        if len(arguments) > 1:
            return (arguments[0], evaluate, *arguments[2:]), keywords
        return arguments, {**keywords, "closure": evaluate}

    def on_stepped(self, optimizer: Any) -> None:
        """See `Observer`."""
        is_over = self._optimizers.leave(optimizer)
        self._has_stepped = self._has_stepped or is_over is not None
        if is_over and not self._is_over and not self.is_explicit:
            self._commit({})

    def on_loaded(self) -> None:
        """See `Observer`."""
        self._optimizers.loaded()

    def _on_rejected(self) -> None:
        """Torchft takes the step back: what was computed for it is computed again."""
        self._figures.take(self.step)
        self._num_announced = 0
        self.hooks.await_forward()

    def on_compiled_step(self, optimizer: Any) -> None:
        """See `Observer`. All that is left of the step is announced when it is over."""
        self._num_unseen = 1
        self.on_stepping(optimizer, (optimizer,), {})
        self.on_stepped(optimizer)
        self._num_unseen = 0

    def on_save(self, path: str | None) -> bool:
        """See `Observer`: after a step that is over and before the next one, as far as that is seen; once for each."""
        if self._agent is None or self._thread != threading.get_ident():
            return False
        if self._saves.begin(self.step - 1):
            self._guard(self._tell_save)
            if self._agent is not None:
                try:
                    self._announce(self._agent, self.step - 1, "checkpoint")
                except Exception as error:
                    # Raised on behalf of a fault: the script sees its save fail.
                    self._guard(self._saves.failed, error, path)
                    raise
        return True

    def on_saved(self, began_seconds: float, result: object, path: str | None) -> None:
        """See `Observer`."""
        if self._resumption is not None:
            self._resumption.saved(time.monotonic() - began_seconds)
        self._guard(self._saves.called, began_seconds, result, path)

    def on_save_failed(self, error: BaseException, path: str | None) -> None:
        """See `Observer`."""
        self._guard(self._saves.failed, error, path)

    def _tell_unsaved(self, step: int, failure: SaveFailure) -> None:
        """Report it, whether the script ends of it or catches it and trains on without that checkpoint."""
        if self._report is not None and step > 0:
            path = None if failure.path is None else str(Path(failure.path).absolute())
            self._report.emit(CheckpointFailed(reason=failure.reason, errno=failure.errno, path=path), step=step)

    def _tell_checkpoint(
        self, step: int, blocking_seconds: float, writing_seconds: float, saved: list[list[Any]]
    ) -> None:
        """A checkpoint is written, on whatever thread that was."""
        report = self._report
        if report is not None and step > 0:
            written = CheckpointWritten(
                saved=tuple(map(tuple, saved)), blocking_seconds=blocking_seconds, writing_seconds=writing_seconds
            )
            report.emit(written, step=step)

    def on_departure(self) -> None:
        """See `Observer`: send what would otherwise be lost."""
        if not self.is_elsewhere():
            self._guard(self._saves.next_step)
        if self._report is not None:
            self._report.flush()

    def _announce(self, agent: Agent, step: int, phase: str) -> None:
        try:
            agent.announce(step, phase)
        except Exception as error:
            # If it was raised on behalf of a fault: the rank may be ended before it comes to its own end of it.
            self._guard(self._tell_injected, error)
            raise

    def _tell_injected(self, error: Exception) -> None:
        from chaos.external.uncaught import injected

        if (raised := injected(error)) is not None:
            self.tell_exception(raised)

    def tell_exception(self, raised: RankRaised) -> bool:
        """Tell of an exception that nobody caught, or that chaos raised; returns whether that was possible.

        Between two steps it is of the one that is over: saving belongs to that.
        """
        if self._report is None:
            return False
        step = self.step if self._num_announced else self.step - 1
        self._report.emit(RankRaised(**raised.given(), last_step=self.step - 1), step=step or None)
        return True

    def step_ended(self, figures: Mapping[str, float | int], step: int | None) -> None:
        """The script says so itself; `step` is its own count, where it gives one."""
        if not self.is_explicit:
            self.is_explicit = True
            if self._num_committed:
                # What has been counted by itself until now was this step too.
                self.step = self.step if step is None else step + 1
                return
        if step is not None:
            self.step, self._has_numbers = step, True
        self._on_training_thread()
        self._commit(figures)

    # ---- steps and phases ----

    def _reach(self, phase: int) -> None:
        """The step comes to `phase`: wait there if wanted, and at all before it that have not been seen."""
        if self._num_announced > phase or self._is_over:
            return
        if self._agent is None:
            self._register(phase)
        if self._num_announced == 0:
            self._guard(self._saves.next_step)
            if self._replica_state is not None:
                self._guard(self._replica_state.settled)
            self._began_seconds = time.monotonic()
        while self._agent is not None and self._num_announced <= phase:
            name = PHASES[self._num_announced]
            self._num_announced += 1
            self._announce(self._agent, self.step, name)
            if self._agent.num_begun != self._num_effects:
                self._num_effects, self._affected_step = self._agent.num_begun, self.step
                self._guard(self._stall_reason.begin, self._called_module())

    def _commit(self, figures: Mapping[str, float | int]) -> None:
        self._reach(_COMMIT)
        if self._is_over:
            return
        self._guard(self._tell, figures)
        self._num_committed += 1
        self._most_backwards = max(self._most_backwards, self._num_backwards)
        self._num_left_out = self._num_backwards = 0
        self._has_stepped = False
        self._stall_reason.committed(began_after=self.step > self._affected_step)
        if self._replica_state is not None:
            self._replica_state.committed(self.step, self._loss)
        self.step += 1
        self._num_announced = 0
        self.hooks.await_forward()

    def _tell(self, figures: Mapping[str, float | int]) -> None:
        seen = self._figures.take(self.step)
        self._loss = seen.get("loss")
        if self._identity is None or self._report is None:
            return
        if self._loss is not None and self._is_finite and not math.isfinite(self._loss):
            self._is_finite = False
            if not self._identity.leads:
                self._report.emit(LossNotFinite(loss=str(self._loss)), step=self.step)
        if not self._num_committed:
            self._tell_count()
        if not self._identity.leads:
            return
        if self._identity.replica is not None:
            seen["replica"] = self._identity.replica
        seen.update(figures)
        seen["epoch"], seen["optimizers"] = self._identity.attempt, self._optimizers.num_training
        seen["began_monotonic"] = self._began_seconds
        seen["committed_monotonic"] = now = time.monotonic()
        self._report.step_committed(self.step, now, seen)

    def _take_up_count(self, *, is_stepping: bool = False) -> None:
        """Go on counting where the restored training's own count is: one that was resumed does not begin at step 1."""
        if self.is_explicit or self._is_over:
            return
        step = self._optimizers.next_step(self._num_unseen, is_stepping=is_stepping)
        if step is not None and step != self.step:
            self.step, self._num_announced = step, 0

    def _find_place(self, phase: int) -> None:
        """Find by its parameters the step after which this start continues; `phase` is about to begin."""
        found = self._resumption
        if found is None or not found.is_due or self._num_unseen or phase > _OPTIMIZER:
            # Of a step that is over when it is seen they are no longer what it began with.
            return
        is_first_pass = phase >= _FORWARD
        step = found.look(is_first_pass=is_first_pass)
        if step is not None and not self._optimizers.are_counted_by_managers:
            if is_first_pass:
                self._optimizers.count_is_known()
            if step + 1 != self.step:
                self.step, self._num_announced = step + 1, 0
        if is_first_pass and self._report is not None and found.digest is not None:
            known = self.step - 1 if found.is_first else step
            self._report.emit(TrainingEntered(parameters=found.digest), step=known)

    def _tell_count(self) -> None:
        """Report how the number of the first step is known."""
        if self._resumption is None or self._report is None:
            return
        told_by = "torchft" if self._optimizers.are_counted_by_managers else None
        if self.is_explicit and (self._has_numbers or self._resumption.is_first):
            told_by = "script"
        counted = self._resumption.counted(self.step, told_by=told_by, is_explicit=self.is_explicit)
        self._report.emit(
            StepsCounted(
                count_kept_by=counted.count_kept_by,
                resumed_after=counted.resumed_after,
                optimizer_steps=counted.optimizer_steps,
                is_optimizer_fresh=counted.is_optimizer_fresh,
            ),
            step=self.step,
        )

    def _tell_save(self) -> None:
        """Report which parameters are saved, before they are: also of a rank that dies in the save."""
        if self._resumption is None or self._report is None or not self._num_committed:
            return
        # A script that says itself when a step ends may save before it does.
        is_within = self.is_explicit and self._has_stepped
        begun = CheckpointBegun(parameters=self._resumption.digest_to_save() or "")
        self._report.emit(begun, step=self.step if is_within else self.step - 1)

    # ---- being a rank ----

    def _register(self, phase: int) -> None:
        """Say hello to the injector: at the first that is seen of a training, so that step 1 can be held."""
        self._guard(self._connect)
        if not self._is_over:
            self._guard(self._find_place, phase)

    def _connect(self) -> None:
        if not may_be_rank(self._environment):
            self.stop()
            return
        identity = identify(self._environment, self._managers.replica_group())
        agent, self._report = connect(self._environment, identity)
        subject = ExternalSubject(self._optimizers.training, self._is_step_unseen, self._called_module)
        agent.expose(subject)
        self._replica_state = ReplicaState(subject, self._tell_state)
        self._identity, self._agent = identity, agent
        self._resumption = Resumption(agent.start, self._optimizers, self._loads)
        self.hooks.watch_departure()
        self._figures.set_world_size(identity.world_size)
        self._take_up_count()
        os.environ[RANK_PID] = str(os.getpid())
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def _tell_state(self, step: int, checksums: StateChecksums) -> None:
        if self._report is not None:
            self._report.emit(checksums, step=step)

    def _look_once_more(self) -> None:
        """The training is over, and what it trained may be gone in a moment."""
        if self._replica_state is not None and not self._is_over:
            self._guard(self._replica_state.finish)

    def _called_module(self) -> torch.nn.Module | None:
        module = self._called()
        return module if isinstance(module, torch.nn.Module) else None

    def _is_step_unseen(self) -> bool:
        """Whether the beginning of the optimizer's step is over where `optimizer` is announced."""
        return self._is_evaluating or self.hooks.has_compiled_steps

    def _on_training_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.get_ident()

    def _leave_to_parent(self) -> None:
        """In a fork: the connections are the parent's, and so is the training."""
        agent, report = self._agent, self._report
        self.stop()
        if agent is not None:
            agent.abandon()
        if report is not None:
            report.abandon()

    def _finish(self, pid: int) -> None:
        # Set by an exception that nobody caught: then it was not the script's own end.
        has_failed = hasattr(sys, "last_value")
        if os.getpid() != pid:
            return
        # No other one trains any more.
        self._thread = threading.get_ident()
        self.hooks.tell_compiled_step()
        if self._identity is None and not has_failed and not self._is_over:
            self._guard(tell_idleness, self._environment)
            return
        self._guard(self._saves.next_step)
        if self._report is not None:
            if has_failed:
                self._report.flush()
            else:
                self._look_once_more()
                passes = 0 if self._num_left_out else self._stall_reason.num_left_out(self._most_backwards)
                finished = RankFinished(steps_left_out=self._num_left_out, spoilt_passes_left_out=passes)
                self._report.emit(finished, step=self.step - 1)

    def stop(self) -> None:
        """Stop following; the script continues."""
        self._is_over = True
        self._agent = self._report = None
        self.hooks.detach()
        self._leave_managers()
        self._stall_reason.end()

    def _guard(self, act: Callable[..., None], *arguments: object) -> None:
        """Whatever goes wrong on our side, the script continues; it is said once."""
        try:
            act(*arguments)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if not self._is_over:
            self.stop()
            print(f"chaos: this process is no longer observed: {type(error).__name__}: {error}", file=sys.stderr)
