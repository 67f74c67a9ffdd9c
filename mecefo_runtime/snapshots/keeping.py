"""What a rank does while it trains so that its state survives it: durable checkpoints, snapshots in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mecefo_runtime.checkpoint.saving import Saving, load_pieces
from mecefo_runtime.comm.messages import Form
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.state_source import Piece, Version
from mecefo_runtime.snapshots.reading import fetch_pieces
from mecefo_runtime.snapshots.writing import SnapshotWriter
from mecefo_runtime.state.activity import StateActivity
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.units import UnitState
from mecefo_runtime.system.events import Emitter


class Keeping:
    """Both of one rank, as far as the job has them: `snapshots` is where its node's process is, empty: nowhere.

    `announce` hears of a step's phase `checkpoint`.
    """

    def __init__(
        self,
        job: JobConfig,
        rank: int,
        snapshots: str,
        token: str,
        emitter: Emitter,
        announce: Callable[[int, str], None],
    ) -> None:
        self._rank = rank
        self._cluster = job.cluster()
        self._token = token
        self._emitter = emitter
        self._announce = announce
        self._form: Form | None = None
        self._state: ModelState | None = None
        self._saving = None if job.checkpoint is None else Saving(job, emitter)
        self._snapshots: SnapshotWriter | None = None
        if job.snapshots is not None and snapshots:
            self._snapshots = SnapshotWriter(snapshots, token, rank, job.snapshots.every_steps, self._warn)

    @property
    def activities(self) -> tuple[StateActivity, ...]:
        """What uses the state between two optimizer steps."""
        return () if self._snapshots is None else (self._snapshots,)

    @property
    def is_saving(self) -> bool:
        """Whether this rank is still writing a checkpoint."""
        return self._saving is not None and self._saving.is_busy

    @property
    def snapshot_step(self) -> int:
        """The step of this rank's newest complete snapshot, 0: it has none."""
        return 0 if self._snapshots is None else self._snapshots.stored_step

    def restore(
        self, pieces: Sequence[Piece], version: Version | None, units: Mapping[str, UnitState]
    ) -> tuple[float, int]:
        """Get what of `pieces`, all for this rank, is stored somewhere; returns (seconds, bytes).

        Raises:
            mecefo_runtime.state.stored.StoredStateRefused: it is damaged or gone.
        """
        of_snapshots = fetch_pieces(pieces, version, units, self._token)
        of_checkpoints = load_pieces(pieces, units)
        return of_snapshots[0] + of_checkpoints[0], of_snapshots[1] + of_checkpoints[1]

    def enter(self, form: Form, state: ModelState) -> None:
        """An epoch begins with `state`."""
        self._form, self._state = form, state
        if self._snapshots is not None:
            node_of = self._cluster.node_of
            of_node = tuple(rank for rank in form.members if node_of(rank) == node_of(self._rank))
            self._snapshots.enter(state, form.lineage, of_node, form.snapshot_processes)

    def on_committed(self, step: int, *, can_save: bool, snapshot_step: int) -> None:
        """`step` is committed: begin what is due, if nobody is still writing a checkpoint.

        `snapshot_step` is the newest of which all have a snapshot, 0: there is none.
        """
        form, state = self._form, self._state
        assert form is not None and state is not None
        is_leader = self._rank == form.leader
        if self._snapshots is not None:
            self._snapshots.agree(snapshot_step)
        if self._saving is None:
            return
        self._saving.tell(is_leader=is_leader)
        if self._saving.is_due(step) and can_save:
            self._announce(step, "checkpoint")
            self._saving.save(step, form.layout, state.units, self._rank, form.lineage)
        elif self._saving.is_due(step) and is_leader:
            self._emitter.emit("warning", step=step, message="no checkpoint: the last one is still being written")

    def close(self) -> None:
        """Finish what is under way."""
        if self._saving is not None:
            self._saving.close()
        if self._snapshots is not None:
            self._snapshots.close()

    def _warn(self, message: str) -> None:
        self._emitter.emit("warning", message=message)


def of_rank(pieces: Iterable[Piece], rank: int) -> tuple[Piece, ...]:
    """Those of `pieces` that are for `rank`."""
    return tuple(piece for piece in pieces if piece.destination == rank)
