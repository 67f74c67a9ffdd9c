"""A process that has TCP connections, and does with them what a test asks: the rank of a job, or a stranger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Self

from chaos.host.run_processes import RUN_VARIABLE
from mecefo_runtime.system.process import ProcessId

_PROGRAM = """
import json, select, socket, struct, sys, threading
sockets, streams = {}, {}
def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET
def keep(one):
    sockets[one.fileno()] = one
    return one.fileno()
def stream(one, stop):
    block = bytes(1 << 16)
    while not stop.is_set():
        try: one.sendall(block)
        except OSError: return
def drain(one):
    while True:
        try:
            if not one.recv(1 << 20): return
        except OSError: return
def obey(do, number=0, address="", port=0, source="", text="", seconds=0.0, options=()):
    one = sockets.get(number)
    if do == "listen":
        new = socket.socket(family(address)); new.bind((address, 0)); new.listen()
        return [keep(new), new.getsockname()[1]]
    if do == "connect":
        new = socket.socket(family(address)); new.bind((source, 0)); new.connect((address, port))
        return keep(new)
    if do == "accept": return keep(one.accept()[0])
    if do == "send": one.sendall(text.encode()); return len(text)
    if do == "receive":
        if not select.select([one], [], [], seconds)[0]: return None
        try: return one.recv(1 << 16).decode()
        except OSError as error: return type(error).__name__
    if do == "stream":
        streams[number] = threading.Event()
        threading.Thread(target=stream, args=(one, streams[number]), daemon=True).start()
    if do == "drain": threading.Thread(target=drain, args=(one,), daemon=True).start()
    if do == "set":
        for level, option, value in options:
            one.setsockopt(level, option, value)
    if do == "get":
        level = (41, 73) if one.family == socket.AF_INET6 and not one.getsockname()[0].startswith("::ffff") else (0, 21)
        keepalive = [one.getsockopt(*name) for name in ((1, 9), (6, 4), (6, 5), (6, 6))]
        return {"ttl": one.getsockopt(*level), "rate": struct.unpack("Q", one.getsockopt(1, 47, 8))[0],
                "keepalive": keepalive, "blocks": one.getblocking()}
    if do == "close": sockets.pop(number).close()
for line in sys.stdin:
    print(json.dumps(obey(**json.loads(line))), flush=True)
"""
UNLIMITED = (1 << 64) - 1


class Talker:
    """A process with the mark of `run`; None: without."""

    def __init__(self, run: str | None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
        self._child = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _PROGRAM],
            env=environment if run is None else {**environment, RUN_VARIABLE: run},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.process = ProcessId.of(self._child.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it, and its connections with it."""
        self._child.kill()
        self._child.communicate()

    def ask(self, do: str, number: int = 0, **more: Any) -> Any:
        """Have it do something with one of its sockets; returns what it says."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps({"do": do, "number": number, **more}) + "\n")
        self._child.stdin.flush()
        return json.loads(self._child.stdout.readline())


def connect(one: Talker, other: Talker, near: str = "127.0.0.1", far: str = "127.0.0.2") -> tuple[int, int]:
    """A connection from `near` to `far`: its numbers at the one and at the other."""
    listening, port = other.ask("listen", address=far)
    number = one.ask("connect", source=near, address=far, port=port)
    accepted = other.ask("accept", listening)
    other.ask("close", listening)
    return number, accepted
