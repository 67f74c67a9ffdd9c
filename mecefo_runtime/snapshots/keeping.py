"""How a training rank saves its state: durable checkpoints, and snapshots in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from mecefo_runtime.checkpoint.saving import Saving, load_pieces
from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.messages import Form, Hello, Received
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.snapshot_interval import NO_SNAPSHOT_COSTS, SnapshotCosts, SnapshotInterval
from mecefo_runtime.job.state_source import (
    ParitySource,
    PeerSource,
    Piece,
    SnapshotSource,
    SourceKind,
    Version,
    kind_of,
)
from mecefo_runtime.snapshots.peer import SnapshotPeer
from mecefo_runtime.snapshots.reading import fetch_pieces
from mecefo_runtime.snapshots.writing import SnapshotWriter
from mecefo_runtime.state.activity import StateActivity
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.stored import StoredStateRefused
from mecefo_runtime.state.units import UnitState
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.job_records import SnapshotIntervalChosen
from mecefo_runtime.system.run_records import Warned


class Keeping:
    """Both of one rank, as far as the job has them: `snapshots` is where its node's process is, empty: nowhere.

    `announce` hears of a step's phases `checkpoint` and `snapshot`.
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
        self._refuses_nonfinite = job.health.nonfinite != "commit"
        self._address = snapshots
        self._token = token
        self._emitter = emitter
        self._announce = announce
        self._form: Form | None = None
        self._state: ModelState | None = None
        self._saving = None if job.checkpoint is None else Saving(job, emitter)
        self._snapshots: SnapshotWriter | None = None
        if job.snapshots is not None and snapshots:
            told = job.snapshots.every_steps, job.snapshots.mtbf_seconds, self._cluster.num_ranks
            self._interval = SnapshotInterval(*told)
            self._snapshots = SnapshotWriter(snapshots, token, rank, self._interval.steps, self._warn, announce)

    def greet(self, hello: Hello) -> Hello:
        """`hello`, with what the node's snapshot process, if there is one, has left of earlier ranks."""
        if self._snapshots is None:
            return hello
        try:
            with SnapshotPeer(self._address, self._token) as peer:
                return replace(hello, snapshots=peer.offers())
        except OSError as error:
            self._warn(f"the node's snapshot process cannot be asked what it keeps: {error}")
            return hello

    @property
    def activities(self) -> tuple[StateActivity, ...]:
        """The activities that use the state between two optimizer steps."""
        return () if self._snapshots is None else (self._snapshots,)

    @property
    def is_saving(self) -> bool:
        """Whether this rank is still writing a checkpoint."""
        return self._saving is not None and self._saving.is_busy

    @property
    def snapshot_step(self) -> int:
        """The step of this rank's newest complete snapshot, 0: it has none."""
        return 0 if self._snapshots is None else self._snapshots.stored_step

    @property
    def snapshot_costs(self) -> SnapshotCosts:
        """What a snapshot takes here, as far as it has been measured."""
        return NO_SNAPSHOT_COSTS if self._snapshots is None else self._snapshots.costs

    def restore(
        self, form: Form, pieces: Sequence[Piece], units: Mapping[str, UnitState], moved: tuple[float, int] = (0.0, 0)
    ) -> tuple[float, int, tuple[Received, ...]]:
        """Get what of `pieces`, all for this rank, is stored somewhere.

        What peers sent has arrived: that took `moved` (seconds, bytes sent and received). Returns (seconds, bytes, from
        where the pieces came) of both.

        Raises:
            mecefo_runtime.state.stored.StoredStateRefused: it is damaged or gone.
        """
        version = _version_of(form)
        by_kind: dict[SourceKind, list[Piece]] = {}
        for piece in (piece for piece in pieces if piece.source != PeerSource(self._rank)):
            by_kind.setdefault(kind_of(piece.source), []).append(piece)
        received = []
        if sent := by_kind.pop("peer", []):
            received.append(Received("peer", len(sent), sum(_num_bytes(piece, units) for piece in sent), moved[0]))
        stored_seconds, stored_bytes = 0.0, 0
        for kind, wanted in by_kind.items():
            if kind == "checkpoint":
                seconds, num_bytes = load_pieces(wanted, units)
            else:
                seconds, num_bytes = fetch_pieces(wanted, version, units, self._token)
            stored_seconds, stored_bytes = stored_seconds + seconds, stored_bytes + num_bytes
            received.append(Received(kind, len(wanted), num_bytes, seconds))
        # With such a version no step has been committed: something may have corrupted the state before it was copied.
        if form.returns_to is None and self._refuses_nonfinite:
            sources = {piece.unit: piece.source for piece in pieces}
            for unit, source in sources.items():
                if isinstance(source, SnapshotSource | ParitySource) and units[unit].is_corrupted():
                    raise StoredStateRefused(source, f"{unit} from node {source.node}'s snapshots is corrupted")
        return moved[0] + stored_seconds, moved[1] + stored_bytes, tuple(received)

    def enter(self, form: Form, state: ModelState) -> None:
        """An epoch begins with `state`."""
        self._form, self._state = form, state
        if self._snapshots is not None:
            node_of = self._cluster.node_of
            of_node = tuple(rank for rank in form.members if node_of(rank) == node_of(self._rank))
            self._interval.enter(form.failures, form.resume_step)
            self._snapshots.every_steps = self._interval.steps
            is_from_memory = any(isinstance(piece.source, SnapshotSource | ParitySource) for piece in form.pieces)
            restored = _version_of(form) if is_from_memory else None
            self._snapshots.enter(state, form.lineage, of_node, form.snapshot_processes, restored)

    def on_committed(
        self, step: int, groups: Groups, can_save: bool, snapshot_step: int, snapshot_costs: SnapshotCosts
    ) -> None:
        """`step` is committed: begin what is due, if nobody is still writing a checkpoint.

        `snapshot_step` is the newest of which all have a snapshot, 0: there is none; `snapshot_costs` are the greatest
        of all ranks.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: who has a share of what is to be written is gone.
        """
        form, state = self._form, self._state
        assert form is not None and state is not None
        is_leader = self._rank == form.leader
        if self._snapshots is not None:
            self._snapshots.agree(snapshot_step)
            has_changed = self._interval.on_committed(step, snapshot_step, snapshot_costs)
            self._snapshots.every_steps = self._interval.steps
            if has_changed and is_leader:
                chosen = SnapshotIntervalChosen(
                    every_steps=self._interval.steps,
                    stopped_seconds=snapshot_costs.stopped_seconds,
                    complete_seconds=snapshot_costs.complete_seconds,
                    step_seconds=snapshot_costs.step_seconds,
                    mtbf_seconds=self._interval.mtbf_seconds,
                )
                self._emitter.emit(chosen, step=step)
        if self._saving is None:
            return
        self._saving.tell(is_leader=is_leader)
        if self._saving.is_due(step) and can_save:
            self._announce(step, "checkpoint")
            self._saving.save(step, form.layout, state, groups, form.lineage)
        elif self._saving.is_due(step) and is_leader:
            self._emitter.emit(Warned(message="no checkpoint: the last one is still being written"), step=step)

    def close(self) -> None:
        """Finish the saves in progress."""
        if self._saving is not None:
            self._saving.close()
        if self._snapshots is not None:
            self._snapshots.close()

    def _warn(self, message: str) -> None:
        self._emitter.emit(Warned(message=message))


def _version_of(form: Form) -> Version:
    """The version that an epoch begins with."""
    return form.returns_to or Version(form.resume_step - 1, form.lineage)


def _num_bytes(piece: Piece, units: Mapping[str, UnitState]) -> int:
    unit = units[piece.unit]
    return unit.num_elements(piece.share) * unit.storage.element_size()


def of_rank(pieces: Iterable[Piece], rank: int) -> tuple[Piece, ...]:
    """Those of `pieces` that are for `rank`."""
    return tuple(piece for piece in pieces if piece.destination == rank)
