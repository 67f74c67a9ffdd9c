"""The local backend's fork server: imports torch and reads the training text once, then forks every process of a run.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from harness.network.plan import NETWORKS_VARIABLE, Networks
from mecefo_runtime.config import JobConfig
from mecefo_runtime.coordinator import run_coordinator
from mecefo_runtime.data import read_corpus
from mecefo_runtime.events import Emitter
from mecefo_runtime.process import ProcessId, die_with_parent, keep_only, set_name, start_child
from mecefo_runtime.succession import Succession
from mecefo_runtime.supervisor import run_supervisor
from mecefo_runtime.worker import connect_sink

LOOPBACK = "127.0.0.1"


class ForkServer:
    """Starts processes on command, each in its network where there are `networks`; reports each start and each exit."""

    def __init__(self, commands: int, replies: int, networks: Networks | None = None) -> None:
        self._commands = commands
        self._networks = networks
        self._replies = replies
        self._buffer = b""
        self._listeners: dict[str, socket.socket] = {}
        self._successions: dict[str, Succession] = {}
        self._children: dict[int, ProcessId] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Until standard input ends."""
        self._selector.register(self._commands, selectors.EVENT_READ)
        networks = None if self._networks is None else self._networks.to_json()
        self._reply({"reply": "ready", "torch": torch.__version__, "networks": networks})
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._commands:
                    data = os.read(self._commands, 1 << 16)
                    if not data:
                        return
                    *lines, self._buffer = (self._buffer + data).split(b"\n")
                    for line in lines:
                        self._obey(json.loads(line))
                else:
                    self._reap(key.fd)

    def _obey(self, command: Mapping[str, Any]) -> None:
        environment: dict[str, str] = command.get("environment", {})
        match command["command"]:
            case "listen":
                # Held here, so that a restarted coordinator has the same address and no connection is refused
                # meanwhile.
                listener = self._listen()
                self._listeners[command["job"]] = listener
                self._successions[command["job"]] = Succession()
                host, port = listener.getsockname()
                self._reply({"reply": "listening", "job": command["job"], "address": f"{host}:{port}"})
            case "supervisor":
                node, ranks = int(command["node"]), range(*command["ranks"])
                attempts = {int(rank): int(attempt) for rank, attempt in command["rank_attempts"].items()}

                own = {} if self._networks is None else {rank: self._networks.of_rank(rank) for rank in ranks}

                def supervise() -> int:
                    if self._networks is not None:
                        self._networks.of_node(node).enter()
                    keep_only(network.descriptor for network in own.values())
                    return run_supervisor(
                        environment, node, ranks, int(command["attempt"]), attempts, Path(command["logs"]), own
                    )

                self._start(command, f"node-{node}", supervise)
            case "coordinator":
                listener, succession = self._listeners[command["job"]], self._successions[command["job"]]

                def coordinate() -> int:
                    os.setsid()
                    if self._networks is not None:
                        self._networks.coordinator.enter()
                    keep_only((listener.fileno(),))
                    job = JobConfig.from_dict(json.loads(environment["MECEFO_JOB"]))
                    sink, attempt = connect_sink(environment), int(command["attempt"])
                    emitter = Emitter(sink, "coordinator", job=command["job"], attempt=attempt)
                    return run_coordinator(job, listener, environment["MECEFO_TOKEN"], emitter, succession)

                self._start(command, "coordinator", coordinate)

    def _listen(self) -> socket.socket:
        if self._networks is None:
            return socket.create_server((LOOPBACK, 0), backlog=1024)
        own = self._networks.coordinator
        with own.entered():
            return socket.create_server((own.address, 0), backlog=1024)

    def _start(self, command: Mapping[str, Any], name: str, run: Any) -> None:
        prefix = "" if command["job"] == "main" else f"{command['job']}-"
        process = start_child(name, Path(command["logs"]) / f"{prefix}{name}.log", run)
        descriptor = os.pidfd_open(process.pid)
        self._children[descriptor] = process
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._reply({"reply": "started", "id": command["id"], "pid": process.pid, "start_ticks": process.start_ticks})

    def _reap(self, descriptor: int) -> None:
        process = self._children.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        self._reply({"reply": "exited", "pid": process.pid, "start_ticks": process.start_ticks, "exit": code})

    def _reply(self, message: Mapping[str, Any]) -> None:
        os.write(self._replies, json.dumps(message).encode() + b"\n")


def main() -> None:
    """`python -m harness.backends.forkserver PARENT_PID DATA [MODULE]...`: serve who holds the other ends of the pipes.

    The modules are imported once, for all that are forked.
    """
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_name("chaos-forks")
    torch.set_num_threads(1)
    read_corpus(sys.argv[2] or None)
    for module in sys.argv[3:]:
        importlib.import_module(module)
    # The first optimizer imports some 800 modules.
    torch.optim.AdamW([torch.zeros(1)], fused=True)
    # Children write to their logs; nothing but replies may reach the reply pipe.
    replies = os.dup(1)
    os.dup2(2, 1)
    held = os.environ.pop(NETWORKS_VARIABLE, None)
    ForkServer(0, replies, None if held is None else Networks.from_json(held)).serve()


if __name__ == "__main__":
    main()
