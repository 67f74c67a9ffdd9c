"""Real snapshot processes of eight nodes, as the local backend starts them, with real ranks' copies in their memory.

Every node has a rank that holds the whole state and copies its share of it. There is no training: the state is drawn.
What the coordinator would hear is heard here, and what it would decide is decided by its own code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from chaos.errors import EnvironmentFailure
from chaos.host import python_module
from mecefo_chaos.studies.papers.reft.schemes import NUM_NODES, Scheme
from mecefo_runtime.job.config import JobConfig, ModelConfig, SnapshotConfig
from mecefo_runtime.job.layout import Cluster, Layout, configured_layout
from mecefo_runtime.job.protection import SnapshotOffers
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.job.state_source import ParitySource, Piece, Share, Version, choose_version
from mecefo_runtime.recovery.kept_snapshots import offers_of
from mecefo_runtime.snapshots.messages import SnapshotsHello, from_snapshot_process
from mecefo_runtime.snapshots.reading import fetch_pieces
from mecefo_runtime.snapshots.writing import SnapshotWriter
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.stored import StoredStateRefused
from mecefo_runtime.state.units import UnitState
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.wire import LOOPBACK, Connection, WireError, new_token, token_matches

MODEL = ModelConfig(64, 172, num_layers=2, num_heads=4, num_key_value_heads=4, vocab_size=256)
_MEMORY_BYTES = 64 << 20
_DEADLINE_SECONDS = 60.0
_HELLO_SECONDS = 10.0
_JOB_NAME = "drawn"


def layout_of(nodes: Collection[int]) -> Layout:
    """Every one of `nodes` has a rank of its own that holds all; at least one."""
    cluster = Cluster(NUM_NODES, 1, NUM_NODES, 1, MODEL.num_layers, NUM_NODES)
    whole = configured_layout(cluster)
    replicas = tuple(replica for replica in whole.replicas if replica.spans[0].rank in nodes)
    return Layout(whole.num_layers, replicas)


class ForkServer:
    """The local backend's, from which every process of a node is forked; a context that ends all of them."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._replies: dict[str, Mapping[str, Any]] = {}
        self._gone: set[ProcessId] = set()
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "forkserver.log").open("ab") as log:
            self._process = subprocess.Popen(
                python_module.command("harness.backends.forkserver", str(os.getpid()), ""),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # What is read ahead would not be seen by select().
                bufsize=0,
                start_new_session=True,
            )
        self._has_begun = False
        self._answer("ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def start(self, node: int, environment: Mapping[str, str]) -> ProcessId:
        """Start the snapshot process of `node`.

        Raises:
            EnvironmentFailure: the fork server is gone.
        """
        command = {"command": "snapshots", "job": _JOB_NAME, "node": node, "environment": environment, "id": node}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({**command, "logs": str(self._logs)}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EnvironmentFailure(f"the fork server is gone: {error.strerror}") from error
        return _process_of(self._answer("started"))

    def bury(self, process: ProcessId) -> None:
        """Wait until `process` is gone, and with it its address is free.

        Raises:
            EnvironmentFailure: it does not end, or the fork server is gone.
        """
        while process not in self._gone:
            self._read()
        self._gone.discard(process)

    def _answer(self, wanted: str) -> Mapping[str, Any]:
        while wanted not in self._replies:
            self._read()
        return self._replies.pop(wanted)

    def _read(self) -> None:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _DEADLINE_SECONDS)[0]:
            raise EnvironmentFailure(f"the fork server says nothing for {_DEADLINE_SECONDS:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise EnvironmentFailure(f"the fork server is gone; {self._logs} says why")
        if not self._has_begun:
            self._has_begun = python_module.is_begin(line)
            return
        reply: Mapping[str, Any] = json.loads(line)
        if reply["reply"] == "exited":
            self._gone.add(_process_of(reply))
        else:
            self._replies[reply["reply"]] = reply


def _process_of(reply: Mapping[str, Any]) -> ProcessId:
    return ProcessId(int(reply["pid"]), int(reply["start_ticks"]))


class Nodes:
    """Eight nodes under one `scheme`: their snapshot processes, and their ranks' states and writers; a context."""

    def __init__(self, server: ForkServer, scheme: Scheme) -> None:
        self.scheme = scheme
        self._server = server
        snapshots = SnapshotConfig(
            memory_bytes=_MEMORY_BYTES, protection=scheme.protection, group_size=max(2, scheme.group_size)
        )
        self.job = JobConfig(MODEL, NUM_NODES, 1, data_parallel=NUM_NODES, pipeline=1, snapshots=snapshots)
        self._token = new_token()
        self._coordinator = _Coordinator(self._token)
        self._processes: dict[int, ProcessId] = {}
        self._states: dict[int, ModelState] = {}
        self._writers: dict[int, SnapshotWriter] = {}
        self.warnings: list[str] = []
        environment = RankEnvironment(self.job, coordinator=self._coordinator.address, token=self._token).variables()
        try:
            for node in range(NUM_NODES):
                self._processes[node] = server.start(node, environment)
            self._coordinator.wait_until(lambda kept: len(kept) == NUM_NODES, "nodes did not come up")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> tuple[int, ...]:
        """The nodes that have not been lost."""
        return tuple(sorted(self._processes))

    def snapshot(self, version: Version, seed: int) -> tuple[dict[str, Tensor], float]:
        """The living nodes' ranks copy a state drawn by `seed`, and all agree on it once it is protected.

        Returns (storage of every unit, seconds from the first byte copied until it is protected everywhere).
        """
        addresses = {node: kept.address for node, kept in self._coordinator.kept().items()}
        values = self._draw(seed)
        for node in self.alive:
            self._writers[node].enter(self._states[node], version.lineage, (node,), addresses)
        began = time.monotonic()
        for node in self.alive:
            self._writers[node].begin(version.step + 1)
            self._writers[node].finish()
        is_protected = self.scheme.protection != "none" and len(self.alive) > 1
        self._coordinator.wait_until(
            lambda kept: all(
                any(offer.version == version for offer in kept[node].offers)
                and (not is_protected or any(parity.version == version for parity in kept[node].parities))
                for node in self.alive
            ),
            f"step {version.step} is not protected; warnings: {self.warnings}",
        )
        seconds = time.monotonic() - began
        for node in self.alive:
            self._writers[node].agree(version.step)
        self._coordinator.wait_until(
            lambda kept: all(kept[node].agreed == version for node in self.alive), "nodes did not hear of the agreement"
        )
        return values, seconds

    def lose(self, nodes: Collection[int]) -> None:
        """SIGKILL the snapshot processes of `nodes`; over when the coordinator has noticed."""
        for node in nodes:
            self._writers.pop(node).close()
        self._end([self._processes.pop(node) for node in nodes])
        self._coordinator.wait_until(lambda kept: not set(nodes) & set(kept), "a killed process went on")

    def restore(self) -> tuple[Version, dict[str, Tensor]] | None:
        """What the coordinator would choose now, in the memory of a new rank; None: there is no version to be had.

        Returns (version, storage of every unit).

        Raises:
            mecefo_runtime.state.stored.StoredStateRefused: what was offered could not be had.
        """
        first = min(self.alive, default=0)
        layout = layout_of({first})
        choice = choose_version(layout, offers_of(self._coordinator.kept()))
        if choice is None:
            return None
        units = self._fetch(choice.pieces, choice.version)
        return choice.version, {name: unit.storage for name, unit in units.items()}

    def demand(self, version: Version, lost: Collection[int]) -> str | None:
        """Ask living nodes to rebuild what `lost` had, whether they offer it or not; returns why the last one refused.

        None: somebody gave something out for a lost node that no node should be able to rebuild.
        """
        kept, reason = self._coordinator.kept(), "no node is left"
        for group in self.scheme.groups(NUM_NODES):
            of_group = set(group.nodes) & set(lost)
            if len(of_group) <= group.num_parities:
                continue
            # Only its own group has the parity; where nobody of it is left, any other node has to refuse.
            node = min(set(group.nodes) & set(kept) or set(kept), default=None)
            if node is None:
                continue
            source = ParitySource(node, kept[node].address, min(of_group))
            for name in layout_of(range(NUM_NODES)).holders():
                try:
                    self._fetch((Piece(name, source, node, Share(min(of_group), NUM_NODES)),), version)
                except StoredStateRefused as error:
                    reason = str(error)
                else:
                    return None
        return reason

    def close(self) -> None:
        """End all that is left."""
        for writer in self._writers.values():
            writer.close()
        self._coordinator.close()
        self._end(list(self._processes.values()))
        self._processes.clear()

    def _end(self, processes: Sequence[ProcessId]) -> None:
        for process in processes:
            process.signal(signal.SIGKILL)
        for process in processes:
            self._server.bury(process)

    def _fetch(self, pieces: Collection[Piece], version: Version) -> dict[str, UnitState]:
        names = {piece.unit for piece in pieces}
        units = {name: UnitState(name, self.job, is_to_come=True) for name in sorted(names)}
        fetch_pieces(pieces, version, units, self._token)
        return units

    def _draw(self, seed: int) -> dict[str, Tensor]:
        """Make the state of every living node's rank what `seed` says; where nodes were lost, they hold it again."""
        if set(self._states) != set(self.alive):
            layout = layout_of(self.alive)
            self._states = {node: ModelState(self.job, layout, node, {}, 0) for node in self.alive}
        if not self._writers:
            self._writers = {
                node: SnapshotWriter(kept.address, self._token, node, 1, self.warnings.append)
                for node, kept in self._coordinator.kept().items()
            }
        generator = torch.Generator().manual_seed(seed)
        units = self._states[self.alive[0]].units
        values = {name: torch.randn(unit.storage.shape, generator=generator) for name, unit in units.items()}
        for state in self._states.values():
            for name, unit in state.units.items():
                unit.storage.copy_(values[name])
        return values


class _Coordinator:
    """Hears what snapshot processes have, and when they are gone, as the job's coordinator does."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._listener = socket.create_server((LOOPBACK, 0))
        host, port = self._listener.getsockname()[:2]
        self.address = f"{host}:{port}"
        self._changed = threading.Condition()
        self._kept: dict[int, SnapshotOffers] = {}
        threading.Thread(target=self._accept, name="coordinator", daemon=True).start()

    def kept(self) -> dict[int, SnapshotOffers]:
        """What each living node has."""
        with self._changed:
            return dict(self._kept)

    def wait_until(self, is_so: Callable[[Mapping[int, SnapshotOffers]], bool], otherwise: str) -> None:
        """Wait until `is_so` of what is kept.

        Raises:
            EnvironmentFailure: it did not become so, as `otherwise` says.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: is_so(self._kept), _DEADLINE_SECONDS):
                raise EnvironmentFailure(f"within {_DEADLINE_SECONDS:g} s {otherwise}")

    def close(self) -> None:
        """Take no more connections."""
        # A thread that waits in accept() does not notice close() alone.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        connection = Connection(sock)
        node = None
        try:
            raw = connection.receive_hello(_HELLO_SECONDS)
            if not token_matches(raw, self._token):
                return
            hello = from_snapshot_process({key: value for key, value in raw.items() if key != "token"})
            sock.settimeout(None)
            if not isinstance(hello, SnapshotsHello):
                return
            node = hello.node
            while True:
                told = from_snapshot_process(connection.receive())
                if isinstance(told, SnapshotOffers):
                    with self._changed:
                        self._kept[node] = told
                        self._changed.notify_all()
        except (WireError, OSError):
            # It is gone.
            return
        finally:
            with self._changed:
                if node is not None:
                    self._kept.pop(node, None)
                self._changed.notify_all()
            with suppress(OSError):
                connection.close()
