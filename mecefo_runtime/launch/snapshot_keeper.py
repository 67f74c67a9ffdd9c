"""A node's snapshot process under torchrun: the node's first rank starts it, and it ends with torchrun's agent.

The agent ends its workers by their sessions, and starts them again: the snapshot process is in a session of its own and
nobody's child, so that it is there for the next ones. These find it by a Unix socket that is named after the agent:
nobody else has that agent, and no store that ends with the ranks is asked. While a rank lives that looks after it, it
is started again when it dies, at the same address.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.snapshots.peer import SnapshotPeer
from mecefo_runtime.snapshots.process import SnapshotProcess, start_snapshot_process
from mecefo_runtime.system.process import ProcessId, keep_only, set_name, start_child
from mecefo_runtime.system.wire import MAX_HELLO_BYTES, decode, encode, parse_address, peer_of

# One that dies as soon as it is started is started again no more often than that.
RESTART_SECONDS = 1.0
ANSWER_TIMEOUT_SECONDS = 5.0


def keep_snapshots(environment: RankEnvironment, log: Path, launcher: ProcessId) -> str:
    """Have a snapshot process on this node, for its first rank; returns where it is.

    A process that an earlier attempt of the same `launcher` has left is reused, with its snapshots. The caller must
    have no other threads.
    """
    listener = None
    address = _find(launcher, environment)
    if address is None:
        listener = socket.create_server((environment.host, 0), backlog=1024)
        address = f"{environment.host}:{listener.getsockname()[1]}"

    def start(taken: socket.socket) -> None:
        _start_apart(environment, taken, launcher)

    def look_after() -> int:
        _look_after(address, environment.token, listener, start)

    start_child("snapshots-keeper", log, look_after)
    if listener is not None:
        listener.close()
    return address


def _name(launcher: ProcessId) -> str:
    """In Linux's abstract namespace: nothing of it is in a file system, and it is gone with who listens."""
    return f"\0mecefo-snapshots-{launcher.pid}-{launcher.start_ticks}"


def _find(launcher: ProcessId, environment: RankEnvironment) -> str | None:
    """Where the process is that `launcher`'s ranks have left; it learns of their successors. None: there is none."""
    hello = {"coordinator": environment.coordinator, "token": environment.token, "node": environment.node}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(ANSWER_TIMEOUT_SECONDS)
        try:
            sock.connect(_name(launcher))
            if not _is_ours(sock):
                return None
            sock.sendall(encode(hello))
            with sock.makefile("rb") as reader:
                return str(decode(reader.readline())["address"])
        except (OSError, KeyError):
            return None


def _is_ours(sock: socket.socket) -> bool:
    """Whether the other end is of the same user: such names are open to all."""
    return peer_of(sock)[1] == os.geteuid()


def _look_after(
    address: str, token: str, listener: socket.socket | None, start: Callable[[socket.socket], None]
) -> NoReturn:
    """Start a snapshot process on `listener`, or at `address` as soon as there is none."""
    while True:
        if listener is not None:
            start(listener)
            # What listens ends with its process.
            listener.close()
        with suppress(OSError), SnapshotPeer(address, token) as peer:
            peer.wait_for_end()
        time.sleep(RESTART_SECONDS)
        try:
            listener = socket.create_server(parse_address(address), backlog=1024)
        except OSError:
            # It is there: it was only slow to answer.
            listener = None


def _start_apart(environment: RankEnvironment, listener: socket.socket, launcher: ProcessId) -> None:
    """Start a snapshot process that is nobody's child, and ends when `launcher` does."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        if os.fork() == 0:
            set_name("snapshots")
            keep_only((listener.fileno(),))
            threading.Thread(target=_end_with, args=(launcher,), daemon=True).start()
            process = start_snapshot_process(environment, listener)
            threading.Thread(target=_be_found, args=(process, launcher, environment.node), daemon=True).start()
            process.serve()
    finally:
        os._exit(0)


def _end_with(launcher: ProcessId) -> None:
    """End this process as soon as `launcher` is gone."""
    with suppress(OSError):
        descriptor = os.pidfd_open(launcher.local_pid)
        if launcher.is_running():
            select.select([descriptor], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def _be_found(process: SnapshotProcess, launcher: ProcessId, node: int) -> None:
    """Tell the ranks that `launcher` starts later where `process` is, and learn where their coordinator is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(_name(launcher))
        listener.listen()
        while True:
            sock, _ = listener.accept()
            with sock, suppress(OSError, KeyError):
                sock.settimeout(ANSWER_TIMEOUT_SECONDS)
                if not _is_ours(sock):
                    continue
                with sock.makefile("rb") as reader:
                    hello = decode(reader.readline(MAX_HELLO_BYTES))
                if hello["node"] != node:
                    # The launcher has numbered its nodes again: what is here is known by another number.
                    os.kill(os.getpid(), signal.SIGKILL)
                process.attend(str(hello["coordinator"]), str(hello["token"]))
                sock.sendall(encode({"address": process.address}))
