"""The fork server of nodes: imports torch and reads the training text once, then forks every process of a run.

Without it each of a run's nodes would import torch for itself (7-8 s each when five do so on two cores), at every
repair again. Commands come as JSON lines on standard input and are answered on standard output. Its death, and that of
whoever started it, is the death of all it started: the kernel sees to that (`die_with_parent`).
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from chaos.host.python_module import begin_output
from harness.network.plan import NETWORKS_VARIABLE, Networks
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.launch.sinks import connect_sink
from mecefo_runtime.membership.coordinator import run_coordinator
from mecefo_runtime.membership.coordinator_checkpoint import CoordinatorCheckpoint
from mecefo_runtime.system.address import ReservedAddress
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.own_network import OwnNetwork
from mecefo_runtime.system.process import (
    ProcessId,
    begin_session,
    die_with_parent,
    keep_only,
    set_name,
    start_child,
)
from mecefo_runtime.system.wire import LOOPBACK

STRANGERS_SECONDS = 1.0


class ForkServer:
    """Starts processes on command, each in its network where there are `networks`; reports each start and each exit.

    `host` is the address by which others reach what it starts, where that is not of a network of its own.
    """

    def __init__(self, commands: int, replies: int, networks: Networks | None = None, host: str = LOOPBACK) -> None:
        self._commands = commands
        self._networks = networks
        self._host = host
        self._replies = replies
        self._buffer = b""
        self._listeners: dict[str, socket.socket] = {}
        self._snapshots: dict[tuple[str, int], ReservedAddress] = {}
        self._coordinator_checkpoints: dict[str, CoordinatorCheckpoint] = {}
        self._children: dict[int, ProcessId] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Until standard input ends."""
        self._selector.register(self._commands, selectors.EVENT_READ)
        networks = None if self._networks is None else self._networks.to_text()
        self._reply({"reply": "ready", "networks": networks})
        is_first = os.getpid() == 1
        while True:
            for key, _ in self._selector.select(STRANGERS_SECONDS if is_first else None):
                if key.fd == self._commands:
                    data = os.read(self._commands, 1 << 16)
                    if not data:
                        return
                    *lines, self._buffer = (self._buffer + data).split(b"\n")
                    for line in lines:
                        self._obey(json.loads(line))
                else:
                    self._reap(key.fd)
            if is_first:
                with suppress(ChildProcessError):
                    self._reap_strangers()

    def _obey(self, command: Mapping[str, Any]) -> None:
        match command["command"]:
            case "listen":
                self._listen_for_coordinator(command)
            case "supervisor":
                self._start_supervisor(command)
            case "snapshots":
                self._start_snapshots(command)
            case "coordinator":
                self._start_coordinator(command)
            case "command":
                # Here: only a command's container has a use for it.
                from harness.backends.command.start import become

                self._start(command, str(command["log"]), lambda: become(command))

    def _listen_for_coordinator(self, command: Mapping[str, Any]) -> None:
        """Held here: a restarted coordinator has the same address, and no connection is refused before it listens."""
        own_network = None if self._networks is None else self._networks.coordinator
        listener = self._listen(int(command.get("port", 0)), own_network)
        self._listeners[command["job"]] = listener
        self._coordinator_checkpoints[command["job"]] = CoordinatorCheckpoint()
        host, port = listener.getsockname()
        self._reply({"reply": "listening", "job": command["job"], "address": f"{host}:{port}"})

    def _start_supervisor(self, command: Mapping[str, Any]) -> None:
        environment: dict[str, str] = command.get("environment", {})
        node, ranks = int(command["node"]), range(*command["ranks"])
        attempts = {int(rank): int(attempt) for rank, attempt in command["rank_attempts"].items()}

        own = {} if self._networks is None else {rank: self._networks.of_rank(rank) for rank in ranks}
        snapshots = self._snapshots.get((command["job"], node))

        # Here and below: a coordinator's container has no use for torch, which takes seconds to import.
        from mecefo_runtime.launch.supervisor import run_supervisor

        def supervise() -> int:
            if self._networks is not None:
                self._networks.of_node(node).enter()
            keep_only(network.descriptor for network in own.values())
            # Hooks read their own variables.
            os.environ.update(environment)
            place = "" if snapshots is None else str(snapshots)
            return run_supervisor(
                replace(RankEnvironment.read(environment), host=self._host, snapshots=place),
                node,
                ranks,
                int(command["attempt"]),
                attempts,
                Path(command["logs"]),
                own,
            )

        self._start(command, f"node-{node}", supervise)

    def _start_snapshots(self, command: Mapping[str, Any]) -> None:
        environment: dict[str, str] = command.get("environment", {})
        node = int(command["node"])
        network = None if self._networks is None else self._networks.of_node(node)

        from mecefo_runtime.snapshots.process import run_snapshot_process
        from mecefo_runtime.training.hooks import Hooks

        # Kept here: ranks find one that is started again where the one before was.
        with nullcontext() if network is None else network.entered():
            if (key := (command["job"], node)) not in self._snapshots:
                self._snapshots[key] = ReservedAddress(self._host if network is None else network.address)
            listener = self._snapshots[key].listen()

        def keep_snapshots() -> int:
            if network is not None:
                network.enter()
            keep_only((listener.fileno(),))
            # Hooks read their own variables.
            os.environ.update(environment)
            own_environment = replace(RankEnvironment.read(environment), node=node)
            observe = partial(Hooks, own_environment.hooks, rank=None, node=node, attempt=1)
            return run_snapshot_process(own_environment, listener, observe)

        self._start(command, f"node-{node}-snapshots", keep_snapshots)
        # What listens ends with its process.
        listener.close()

    def _start_coordinator(self, command: Mapping[str, Any]) -> None:
        environment: dict[str, str] = command.get("environment", {})
        listener, checkpoint = self._listeners[command["job"]], self._coordinator_checkpoints[command["job"]]

        def coordinate() -> int:
            own_environment = RankEnvironment.read(environment)
            begin_session(is_idle=own_environment.job.priority == "idle")
            if self._networks is not None:
                self._networks.coordinator.enter()
            keep_only((listener.fileno(),))
            sink, attempt = connect_sink(own_environment.events), int(command["attempt"])
            emitter = Emitter(sink, "coordinator", job=command["job"], attempt=attempt)
            return run_coordinator(own_environment.job, listener, own_environment.token, emitter, checkpoint)

        self._start(command, "coordinator", coordinate)

    def _listen(self, port: int, own: OwnNetwork | None) -> socket.socket:
        if own is None:
            return socket.create_server((self._host, port), backlog=1024)
        with own.entered():
            return socket.create_server((own.address, port), backlog=1024)

    def _start(self, command: Mapping[str, Any], name: str, run: Any) -> None:
        prefix = "" if command["job"] == "main" else f"{command['job']}-"
        process = start_child(name, Path(command["logs"]) / f"{prefix}{name}.log", run)
        descriptor = os.pidfd_open(process.local_pid)
        self._children[descriptor] = process
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._reply({"reply": "started", "id": command["id"], "pid": process.pid, "start_ticks": process.start_ticks})

    def _reap_strangers(self) -> None:
        """As the first process of a container, bury those whose parents died before them."""
        ours = {process.pid for process in self._children.values()}
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid in ours:
                # The next of them is not shown before this one, which its descriptor tells of.
                return
            os.waitpid(found.si_pid, 0)

    def _reap(self, descriptor: int) -> None:
        process = self._children.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(process.local_pid, 0)[1])
        self._reply({"reply": "exited", "pid": process.pid, "start_ticks": process.start_ticks, "exit": code})

    def _reply(self, message: Mapping[str, Any]) -> None:
        os.write(self._replies, json.dumps(message).encode() + b"\n")


def load(data: str | None, modules: Iterable[str]) -> None:
    """Bring into memory what every rank that is forked will need."""
    import numpy.random  # noqa: F401
    import torch

    import mecefo_runtime.launch.supervisor  # noqa: F401
    from mecefo_runtime.model.data import read_corpus

    torch.set_num_threads(1)
    read_corpus(data)
    for module in modules:
        importlib.import_module(module)


def main() -> None:
    """`python -m harness.backends.forkserver PARENT_PID [DATA [MODULE]...]`: serve until standard input ends.

    With DATA ("": the text that comes with us) what ranks of our runtime need is loaded once, for all that are forked.
    """
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_name("chaos-forks")
    if loaded := sys.argv[2:]:
        load(loaded[0] or None, loaded[1:])
    # Children write to their logs; nothing but replies may reach the reply pipe.
    begin_output()
    replies = os.dup(1)
    os.dup2(2, 1)
    held = os.environ.pop(NETWORKS_VARIABLE, None)
    ForkServer(0, replies, None if held is None else Networks.from_text(held)).serve()
    sys.stderr.flush()
    # Python's own end takes half a second with torch imported, and the run waits for it; there is nothing to clean up.
    os._exit(0)


if __name__ == "__main__":
    main()
