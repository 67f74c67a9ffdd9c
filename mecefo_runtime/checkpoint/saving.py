"""A rank's part of the job's durable checkpoints: which units it writes, when, and which events it emits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.job.share import WHOLE
from mecefo_runtime.job.state_source import CheckpointSource, Piece
from mecefo_runtime.model.data import read_corpus
from mecefo_runtime.state.stored import StoredStateRefused
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.job_records import CheckpointFailed, CheckpointWritten
from mecefo_runtime.system.run_records import Warned

if TYPE_CHECKING:
    from mecefo_runtime.comm.groups import Groups
    from mecefo_runtime.state.model_state import ModelState
    from mecefo_runtime.state.units import UnitState

# Reading and writing checkpoints imports torch.distributed.checkpoint, which takes most of a second: a job that has
# none does without.

CLOSE_DEADLINE_SECONDS = 30.0


def units_to_write(layout: Layout, rank: int) -> tuple[str, ...]:
    """The units that `rank` writes. Each unit is written by one of its holders, in rotation."""
    return tuple(
        unit for index, (unit, ranks) in enumerate(layout.holders().items()) if ranks[index % len(ranks)] == rank
    )


def load_pieces(pieces: Iterable[Piece], units: Mapping[str, UnitState]) -> tuple[float, int]:
    """Load those of `pieces` whose source is a checkpoint into `units`; returns (seconds, bytes loaded).

    Raises:
        StoredStateRefused: one is damaged.
    """
    began = time.monotonic()
    by_folder: dict[str, list[UnitState]] = {}
    for piece in pieces:
        if isinstance(piece.source, CheckpointSource):
            by_folder.setdefault(piece.source.folder, []).append(units[piece.unit])
    for folder, loaded in by_folder.items():
        _load_units(folder, loaded)
    num_bytes = sum(
        unit.num_elements(WHOLE) * unit.storage.element_size() for loaded in by_folder.values() for unit in loaded
    )
    return time.monotonic() - began, num_bytes


def _load_units(folder: str, units: Iterable[UnitState]) -> None:
    from mecefo_runtime.checkpoint.checkpoint import Checkpoint
    from mecefo_runtime.checkpoint.manifest import CheckpointError

    message = None
    try:
        checkpoint = Checkpoint.open(Path(folder))
        for unit in units:
            checkpoint.load_unit(unit.unit, unit)
    except CheckpointError as error:
        message = str(error)
    # Outside the except block: a traceback would keep what it refers to alive.
    if message is not None:
        raise StoredStateRefused(CheckpointSource(folder), message)


class Saving:
    """Writes this rank's units in the background. All ranks save or skip a step together: see `is_busy`."""

    def __init__(self, job: JobConfig, emitter: Emitter) -> None:
        from mecefo_runtime.checkpoint.manifest import Identity
        from mecefo_runtime.checkpoint.writer import CheckpointWriter

        assert job.checkpoint is not None
        self._config = job.checkpoint
        self._emitter = emitter
        self._root = Path(job.checkpoint.folder)
        self._writer = CheckpointWriter(self._root, Identity.of(job, read_corpus(job.data)))

    @property
    def is_busy(self) -> bool:
        """Whether the last save is still being written."""
        return self._writer.is_busy

    def is_due(self, step: int) -> bool:
        """Whether the state after `step` is to be saved."""
        return step % self._config.every_steps == 0

    def save(self, step: int, layout: Layout, state: ModelState, groups: Groups, lineage: str) -> None:
        """Save the state after `step`; returns as soon as it is copied.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: who has a share of what this rank writes is gone.
        """
        names = units_to_write(layout, groups.rank)
        storages = state.gather_storages(groups, names)
        self._writer.save(step, {name: state.units[name] for name in names}, lineage, storages)

    def tell(self, *, is_leader: bool) -> None:
        """Emit the results of earlier saves; the leader also removes old checkpoints."""
        from mecefo_runtime.checkpoint.checkpoint import prune

        for result in self._writer.results():
            if result.was_skipped or result.error is not None:
                why = result.error or "the one before is still being written"
                self._emitter.emit(CheckpointFailed(reason=why, was_skipped=result.was_skipped), step=result.step)
                continue
            self._emitter.emit(
                CheckpointWritten(
                    units=tuple(result.units),
                    num_bytes=result.num_bytes,
                    blocking_seconds=result.blocking_seconds,
                    writing_seconds=result.writing_seconds,
                ),
                step=result.step,
            )
            if is_leader:
                threading.Thread(target=prune, args=(self._root, self._config.keep), daemon=True).start()

    def close(self) -> None:
        """Wait for the save in progress."""
        if not self._writer.close(CLOSE_DEADLINE_SECONDS):
            message = f"a checkpoint was not written within {CLOSE_DEADLINE_SECONDS:.0f} s and is given up"
            self._emitter.emit(Warned(message=message))
        self.tell(is_leader=False)
