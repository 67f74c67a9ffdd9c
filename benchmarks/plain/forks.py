"""Forks the processes of plain jobs and of ours from one and the same server, so that they begin alike.

One command and its processes at a time, as JSON lines. Its death, and that of whoever started it, is the death of all
it started. Ours are forked as `harness.backends.forkserver` forks them: a coordinator, and a supervisor for each node
that forks its ranks.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.plain.phases import Window
from benchmarks.plain.trainer import PlainTrainer
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.launch.sinks import connect_sink
from mecefo_runtime.launch.supervisor import run_supervisor
from mecefo_runtime.membership.coordinator import run_coordinator
from mecefo_runtime.model.data import read_corpus
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.json_values import from_json
from mecefo_runtime.system.process import ProcessId, die_with_parent, keep_only, set_name, start_child
from mecefo_runtime.system.wire import LOOPBACK


class Forks:
    """Reads commands from `commands`; answers each with the pids it forked, and later with each exit."""

    def __init__(self, commands: int, replies: int) -> None:
        self._replies = replies
        self._commands = os.fdopen(commands, "rb", buffering=0)
        self._children: dict[int, tuple[str, ProcessId]] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Until the commands end."""
        self._selector.register(self._commands, selectors.EVENT_READ)
        self._reply({"ready": os.getpid()})
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._commands:
                    self._reap(key.fd)
                elif line := self._commands.readline():
                    self._obey(json.loads(line))
                else:
                    return

    def _obey(self, command: Mapping[str, Any]) -> None:
        match command["command"]:
            case "plain":
                self._start_plain(command, Path(command["folder"]))
            case "ours":
                self._start_ours(command, Path(command["folder"]))
            case "kill":
                for _, process in self._children.values():
                    process.signal(signal.SIGKILL)
                return
        self._reply({"started": {name: process.pid for name, process in self._children.values()}})

    def _start_plain(self, command: Mapping[str, Any], folder: Path) -> None:
        job, window = from_json(JobConfig, command["config"]), Window(*command["window"])

        def train(rank: int) -> int:
            keep_only(())
            # gloo would look for the machine's name, which need not have an address.
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            found = PlainTrainer(job, rank, rendezvous_file(folder), window).run()
            plain_file(folder, rank).write_text(json.dumps(found))
            torch.distributed.destroy_process_group()
            return 0

        def host(node: int) -> int:
            # Sessions as ours have them: where the scheduler groups by session (sched(7), autogroup), ranks that all
            # share one are scheduled otherwise beside other load than ranks of several nodes.
            os.setsid()
            names = [f"rank-{rank}" for rank in job.cluster().ranks_of(node)]
            ranks = [
                start_child(name, folder / f"{name}.log", partial(train, rank))
                for name, rank in zip(names, job.cluster().ranks_of(node), strict=True)
            ]
            codes = [os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) for process in ranks]
            for name, code in zip(names, codes, strict=True):
                if code:
                    print(f"{name} ended with exit code {code}", flush=True)
            return int(any(codes))

        for node in range(job.nodes):
            self._start(f"node-{node}", folder, partial(host, node))

    def _start_ours(self, command: Mapping[str, Any], folder: Path) -> None:
        told = RankEnvironment.read(command["environment"])
        job = told.job
        with socket.create_server((LOOPBACK, 0), backlog=1024) as listener:
            address = f"{LOOPBACK}:{listener.getsockname()[1]}"
            environment = replace(told, coordinator=address)

            def coordinate() -> int:
                os.setsid()
                keep_only((listener.fileno(),))
                emitter = Emitter(connect_sink(environment.events), "coordinator")
                return run_coordinator(job, listener, environment.token, emitter)

            def supervise(node: int) -> int:
                keep_only(())
                os.environ.update(command["environment"])
                ranks = job.cluster().ranks_of(node)
                return run_supervisor(environment, node, ranks, 1, dict.fromkeys(ranks, 1), folder)

            self._start("coordinator", folder, coordinate)
            for node in range(job.nodes):
                self._start(f"node-{node}", folder, partial(supervise, node))

    def _start(self, name: str, folder: Path, run: Callable[[], int]) -> None:
        process = start_child(name, folder / f"{name}.log", run)
        descriptor = os.pidfd_open(process.pid)
        self._children[descriptor] = name, process
        self._selector.register(descriptor, selectors.EVENT_READ)

    def _reap(self, descriptor: int) -> None:
        name, process = self._children.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        self._reply({"exited": name, "code": code})

    def _reply(self, message: Mapping[str, Any]) -> None:
        os.write(self._replies, json.dumps(message).encode() + b"\n")


def plain_file(folder: Path, rank: int) -> Path:
    """Where plain `rank` writes what it measured."""
    return folder / f"plain-{rank}.json"


def rendezvous_file(folder: Path) -> Path:
    """Where plain ranks meet; it must not exist before."""
    return folder / "rendezvous"


def main() -> None:
    """`python -m benchmarks.plain.forks PARENT_PID`: serve whoever holds the other ends of the pipes."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_name("plain-forks")
    torch.set_num_threads(1)
    read_corpus(None)
    # The first optimizer imports some 800 modules.
    torch.optim.AdamW([torch.zeros(1)], fused=True)
    # Children write to their logs; nothing but replies may reach the reply pipe.
    replies = os.dup(1)
    os.dup2(2, 1)
    Forks(0, replies).serve()


if __name__ == "__main__":
    main()
