"""The connections of one rank, and what it reports of its training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.external.arrived_signals import ArrivedSignals
from chaos.external.connection import connect
from chaos.external.identity import Identity
from chaos.external.observation.whole_state import Scalers, WholeState
from chaos.external.optimizers import Optimizers
from chaos.external.replica_state import ReplicaState
from chaos.external.resumption import Resumption, digest_of
from chaos.external.saving import SaveFailure
from chaos.external.step_machine import CommitStep
from chaos.external.subject import ExternalSubject
from mecefo_runtime.system.command_records import (
    CheckpointBegun,
    LossNotFinite,
    RankRaised,
    StateChecksums,
    StepsCounted,
    TrainingEntered,
)
from mecefo_runtime.system.job_records import CheckpointFailed, CheckpointWritten, RankFinished
from mecefo_runtime.system.record import Record


class Rank:
    """Reports in the form in which the ranks of the built-in runtime do; `agent` is held and acts for the injector."""

    def __init__(
        self,
        environment: Mapping[str, str],
        identity: Identity,
        subject: ExternalSubject,
        optimizers: Optimizers,
        loads: Sequence[object] | None,
        scalers: Scalers,
    ) -> None:
        """Connect.

        Raises:
            OSError, mecefo_runtime.system.wire.WireError: there is no listener, or it refuses this rank.
        """
        self._leads, self._attempt, self._replica = identity.leads, identity.attempt, identity.replica
        self._optimizers = optimizers
        self.agent, self._report = connect(environment, identity)
        self.agent.expose(subject)
        self._signals = ArrivedSignals(self._report.emit)
        self._state = ReplicaState(subject, self._report_state)
        whole = WholeState(optimizers.made, subject, digest_of, scalers)
        self.resumption = Resumption(self.agent.start, optimizers, loads, whole.fields)
        self._began_seconds = 0.0
        # No loss that is not finite has been reported.
        self._is_finite = True

    # ---- steps ----

    def begin_step(self) -> None:
        """A step begins, and the state that the last one left is complete."""
        self._state.settled()
        self._began_seconds = time.monotonic()

    def commit(self, committed: CommitStep, seen: dict[str, float | int]) -> None:
        """A step is committed; `seen` are the figures that were observed."""
        self._signals.begin()
        step, loss = committed.step, seen.get("loss")
        self._state.committed(step, loss)
        if loss is not None and self._is_finite and not math.isfinite(loss):
            self._is_finite = False
            if not self._leads:
                self._report.emit(LossNotFinite(loss=str(loss)), step=step)
        if not self._leads:
            return
        if self._replica is not None:
            seen["replica"] = self._replica
        seen.update(committed.figures)
        seen["epoch"], seen["optimizers"] = self._attempt, self._optimizers.num_training
        seen["began_monotonic"] = self._began_seconds
        seen["committed_monotonic"] = now = time.monotonic()
        self._report.step_committed(step, now, seen)

    def report_count(self, step: int, *, is_explicit: bool, has_numbers: bool) -> None:
        """Report how the number of the first step is known.

        `is_explicit`: the script reports when a step ends; `has_numbers`: and gives each its number.
        """
        told_by = "torchft" if self._optimizers.are_counted_by_managers else None
        if is_explicit and (has_numbers or self.resumption.is_first):
            told_by = "script"
        counted = self.resumption.counted(step, told_by=told_by, is_explicit=is_explicit)
        self._report.emit(
            StepsCounted(
                count_kept_by=counted.count_kept_by,
                resumed_after=counted.resumed_after,
                optimizer_steps=counted.optimizer_steps,
                is_optimizer_fresh=counted.is_optimizer_fresh,
            ),
            step=step,
        )

    def report_entry(self, step: int | None) -> None:
        """Report the parameters with which the training begins, and after which `step` they are, if that is known."""
        if self.resumption.state:
            self._report.emit(TrainingEntered(**self.resumption.state), step=step)

    def look_once_more(self) -> None:
        """The training is over, and the state that it left may be gone soon."""
        self._state.finish()

    def emit_later(self, make: Callable[[], Record], step: int, now_seconds: float) -> None:
        """Report what `make` returns, on another thread; it happened at `now_seconds` (CLOCK_MONOTONIC)."""
        self._report.emit_later(make, step, now_seconds)

    # ---- checkpoints ----

    def report_save(self, step: int, path: str | None = None, *, is_asynchronous: bool = False) -> None:
        """Report what is about to be saved after `step`: before it is, as the rank may die in that."""
        own = None if path is None else str(Path(path).absolute())
        state = self.resumption.state_to_save()
        self._report.emit(CheckpointBegun(**state, path=own, is_asynchronous=is_asynchronous), step=step)

    def report_thread_save(self, step: int, path: str) -> None:
        """Report that another thread of the script is about to save: what, is not looked at there."""
        self._report.emit(CheckpointBegun(path=str(Path(path).absolute()), is_asynchronous=True), step=step)

    def report_checkpoint(
        self, step: int, blocking_seconds: float, writing_seconds: float, saved: list[list[Any]]
    ) -> None:
        """A checkpoint is written; see `chaos.external.saving.Saves`."""
        written = CheckpointWritten(
            saved=tuple(map(tuple, saved)), blocking_seconds=blocking_seconds, writing_seconds=writing_seconds
        )
        self._report.emit(written, step=step)

    def report_unsaved(self, step: int, failure: SaveFailure) -> None:
        """A checkpoint is not written, whether the script ends because of that or continues."""
        path = None if failure.path is None else str(Path(failure.path).absolute())
        self._report.emit(CheckpointFailed(reason=failure.reason, errno=failure.errno, path=path), step=step)

    # ---- the end ----

    def report_exception(self, step: int, last_step: int, raised: RankRaised) -> None:
        """Report an exception that ends the rank, or that chaos raised in it."""
        self._report.emit(RankRaised(**raised.given(), last_step=last_step), step=step or None)

    def report_end(self, last_step: int, finished: RankFinished) -> None:
        """The script has come to its end."""
        self._report.emit(finished, step=last_step)

    def flush(self) -> None:
        """Send what would be lost with this process."""
        self._report.flush()

    def abandon(self) -> None:
        """In a fork: the connections are the parent's."""
        self.agent.abandon()
        self._report.abandon()

    def _report_state(self, step: int, checksums: StateChecksums) -> None:
        self._report.emit(checksums, step=step)
