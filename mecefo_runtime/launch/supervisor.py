"""A node's supervisor: starts its ranks, tells the coordinator when one exits, starts one again when told.

Single-threaded, so that ranks can be forked at any time. It ends with the process that started it, and its ranks end
with it.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from mecefo_runtime.comm.messages import NodeLeaving, RankExited, StopNode, SupervisorHello, to_supervisor, to_wire
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.launch.notice import NOTICE
from mecefo_runtime.launch.worker import run_worker
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.job_records import ProcessExited, ProcessStarted
from mecefo_runtime.system.own_network import OwnNetwork
from mecefo_runtime.system.process import ProcessId, begin_session, keep_only, start_child
from mecefo_runtime.system.wire import Connection, WireError

RECONNECT_SECONDS = 0.05
CONNECT_TIMEOUT_SECONDS = 0.5
# What a rank that has done its training says last.
IN_ORDER = b"."


class Supervisor:
    """The ranks of one node. Whoever runs the nodes sends orders to it and gets its events, on one connection.

    `networks` are those of the ranks that have one of their own, by rank; the others share this process's.
    """

    def __init__(
        self,
        environment: RankEnvironment,
        node: int,
        ranks: range,
        attempt: int,
        logs: Path,
        networks: Mapping[int, OwnNetwork] | None = None,
    ) -> None:
        self._environment = environment
        self._networks = networks or {}
        self._node = node
        self._ranks = ranks
        self._logs = logs
        self._selector = selectors.DefaultSelector()
        # By pidfd: rank, attempt, process, and the pipe through which it says that it ended in order.
        self._running: dict[int, tuple[int, int, ProcessId, int]] = {}
        self._exited: dict[int, RankExited] = {}
        self._hello = {"token": environment.token, **to_wire(SupervisorHello(node))}
        self._job_name = environment.name
        role = {"role": "supervisor", "job": self._job_name, "node": node}
        self._orders = Connection.open(environment.events, role, CONNECT_TIMEOUT_SECONDS, is_of_run=True)
        self._coordinator: Connection | None = None
        self._is_leaving = False
        self._emitter = Emitter(
            self._send_event,
            "supervisor",
            job=self._job_name,
            node=node,
            attempt=attempt,
        )

    def run(self, first_attempts: Mapping[int, int]) -> int:
        """Start and supervise every rank until told to stop, or until the process that gives the orders is gone."""
        self._selector.register(self._orders, selectors.EVENT_READ, self._on_order)
        self._listen_for_notice()
        for rank in self._ranks:
            self._start(rank, first_attempts[rank])
        next_try = 0.0
        while True:
            if self._coordinator is None and time.monotonic() >= next_try:
                self._connect_coordinator()
                next_try = time.monotonic() + RECONNECT_SECONDS
            for key, _ in self._selector.select(RECONNECT_SECONDS if self._coordinator is None else None):
                is_wanted: Callable[[], bool] = key.data
                if not is_wanted():
                    return 0

    def _listen_for_notice(self) -> None:
        # Ranks inherit the handler, and put their own in its place before they do anything else.
        read_end, write_end = os.pipe()
        signal.signal(NOTICE, lambda *_: os.write(write_end, b"."))

        def on_notice() -> bool:
            os.read(read_end, 1)
            self._is_leaving = True
            self._tell_leaving()
            return True

        self._selector.register(read_end, selectors.EVENT_READ, on_notice)

    def _tell_leaving(self) -> None:
        if self._coordinator is not None:
            try:
                self._coordinator.send(to_wire(NodeLeaving(self._node)))
            except OSError:
                # Told again when it is back.
                self._on_coordinator()

    def _connect_coordinator(self) -> None:
        try:
            connection = Connection.open(self._environment.coordinator, self._hello, CONNECT_TIMEOUT_SECONDS)
            for message in self._exited.values():
                connection.send(to_wire(message))
        except OSError:
            return
        self._coordinator = connection
        self._selector.register(connection, selectors.EVENT_READ, self._on_coordinator)
        if self._is_leaving:
            self._tell_leaving()

    def _on_coordinator(self) -> bool:
        """The coordinator tells supervisors nothing: what can be read is its end."""
        if self._coordinator is None:
            # A rank's exit, of which the same turn told, found the connection broken already.
            return True
        try:
            self._coordinator.receive_some()
        except WireError:
            self._selector.unregister(self._coordinator)
            self._coordinator.close()
            self._coordinator = None
        return True

    def _on_order(self) -> bool:
        try:
            orders = [to_supervisor(raw) for raw in self._orders.receive_some()]
        except WireError:
            return False
        for order in orders:
            if isinstance(order, StopNode):
                return False
            self._start(order.rank, order.attempt)
        return True

    def _start(self, rank: int, attempt: int) -> None:
        if any(running == rank for running, *_ in self._running.values()):
            # Ordered twice: two processes of one rank would take turns in throwing each other out.
            return
        self._exited.pop(rank, None)
        network = self._networks.get(rank)
        host = self._environment.host if network is None else network.address
        environment = replace(self._environment, rank=rank, node=self._node, attempt=attempt, host=host)
        name = "" if self._job_name == MAIN_JOB else "twin-"
        log = self._logs / f"{name}rank-{rank}.log"
        # An exit code of 0 is no proof: whatever runs in a rank may call exit(0) in the middle of training.
        last_words, words_end = os.pipe()

        def main() -> int:
            if network is not None:
                network.enter()
            keep_only((words_end,))
            os.environ.update(environment.variables())
            code = run_worker(environment)
            if code == 0:
                os.write(words_end, IN_ORDER)
            return code

        process = start_child(f"rank-{rank}", log, main)
        os.close(words_end)
        descriptor = os.pidfd_open(process.local_pid)
        self._running[descriptor] = (rank, attempt, process, last_words)
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._on_exit(descriptor))
        self._emitter.emit(
            ProcessStarted(
                role="rank",
                started_rank=rank,
                rank_attempt=attempt,
                started_pid=process.pid,
                start_ticks=process.start_ticks,
            )
        )

    def _on_exit(self, descriptor: int) -> bool:
        rank, attempt, process, last_words = self._running.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(process.local_pid, 0)[1])
        has_ended_in_order = _said(last_words) == IN_ORDER
        self._exited[rank] = RankExited(rank, attempt, has_ended_in_order)
        if self._coordinator is not None:
            try:
                self._coordinator.send(to_wire(self._exited[rank]))
            except OSError:
                # Told again when it is back.
                self._on_coordinator()
        self._emitter.emit(
            ProcessExited(role="rank", exited_rank=rank, rank_attempt=attempt, exited_pid=process.pid, exit=code)
        )
        return True

    def _send_event(self, event: Event) -> None:
        try:
            self._orders.send_line(event.to_json())
        except OSError:
            # Nobody is left to read it; the next turn of the loop sees the same and ends.
            return


def _said(last_words: int) -> bytes:
    """What a process that is gone had written into its pipe; a child that it left behind may hold the pipe open."""
    os.set_blocking(last_words, False)
    try:
        return os.read(last_words, 1)
    except BlockingIOError:
        return b""
    finally:
        os.close(last_words)


def run_supervisor(
    environment: RankEnvironment,
    node: int,
    ranks: range,
    attempt: int,
    first_attempts: Mapping[int, int],
    logs: Path,
    networks: Mapping[int, OwnNetwork] | None = None,
) -> int:
    """Supervise `ranks` on `node`; `first_attempts` is the attempt with which each of them starts."""
    begin_session(is_idle=environment.job.priority == "idle")
    return Supervisor(environment, node, ranks, attempt, logs, networks).run(first_attempts)
