"""The greeting of a process that was started with RANK: at the start of Python, whatever becomes of it afterwards.

It imports nothing of ours, no torch, and not `socket`: it runs before the script, in the script's process, and is
loaded by its path. Who the process is, the receiver reads from its environment in /proc.
"""

from __future__ import annotations

# In C, and a tenth of the time of `socket`.
import _socket
import os

# Whom the greeting was for: its pid, and LOCAL_RANK or `-`. What that process starts inherits it, and does not greet.
STARTED = "CHAOS_STARTED_PID"
# The receiver answers when it follows the process. One that is too busy is not waited for any longer.
ANSWER_SECONDS = 1.0
# As in `mecefo_runtime.system.wire`.
_UNIX = "unix:"


def is_started_by_launcher() -> bool:
    """Whether this process is to greet: it has RANK, and no process before it has greeted with that RANK.

    A launcher may itself have RANK in its environment (`RANK=0 accelerate launch`, a pod of PyTorchJob), and greets,
    too: what it starts with a LOCAL_RANK that it does not have itself is a rank. A process that replaces itself
    (`os.execv`) keeps its pid, and greets again.
    """
    environment = os.environ
    if not environment.get("RANK", "").isdecimal():
        return False
    if environment.get("CHAOS_RANK_PID", str(os.getpid())) != str(os.getpid()):
        return False
    pid, _, local_rank = environment.get(STARTED, "").partition(" ")
    return pid in ("", str(os.getpid())) or (local_rank == "-" and bool(environment.get("LOCAL_RANK")))


def greet(address: str) -> None:
    """Tell the receiver of this process, and wait until it follows it.

    Raises:
        OSError: nobody answers within the time.
    """
    os.environ[STARTED] = f"{os.getpid()} {os.environ.get('LOCAL_RANK') or '-'}"
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.settimeout(ANSWER_SECONDS)
        sock.connect(address.removeprefix(_UNIX))
        sock.sendall(b'{"role":"launch","pid":%d}\n' % os.getpid())
        sock.recv(1)
    finally:
        sock.close()
