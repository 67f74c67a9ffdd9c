"""Names that do not resolve in a rank, or late: what its Python code asks of `socket.getaddrinfo` and `gethostbyname`.

Python calls audit hooks at each such lookup before it calls the resolver, on whatever thread, however the function was
imported (docs.python.org, audit events table). A hook cannot be removed: without an effect it does nothing. Native
code, such as torch's TCPStore and NCCL, resolves names without Python and is not affected, nor is a socket's `connect`
to a name.
"""

from __future__ import annotations

import fnmatch
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from chaos.in_process.base import InProcessFault, Subject

# As glibc's gai_strerror has them.
ERRORS: Mapping[str, str] = {
    "EAI_AGAIN": "Temporary failure in name resolution",
    "EAI_NONAME": "Name or service not known",
}
HOSTS_FILE = Path("/etc/hosts")
_LOOKUPS = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})
_WILDCARDS = frozenset("*?[")
_active: list[UnresolvedName] = []
_has_hook = False


class UnresolvedName(InProcessFault):
    """Delays lookups of `name`, a pattern, by `delay_seconds`, then fails them with `error`, unless that is None.

    Reports the first: {name, call, asked_seconds, waited_seconds, error}.
    """

    def __init__(
        self, arguments: Mapping[str, Any], subject: Subject | None, report: Callable[[Mapping[str, Any]], None]
    ) -> None:
        super().__init__(arguments, subject, report)
        self._pattern = str(arguments["name"]).lower()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._num_lookups = 0
        # A resolver that has no answer from a server still knows these.
        self._known = _names_in_hosts() if _WILDCARDS & set(self._pattern) else frozenset()

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """From now on, also on threads that are not held."""
        global _has_hook
        if not _has_hook:
            sys.addaudithook(_on_event)
            _has_hook = True
        _active.append(self)
        return {"name": self._pattern, "known": sorted(self._known)}

    def lift(self) -> dict[str, Any]:
        """Lookups are answered as before."""
        with suppress(ValueError):
            _active.remove(self)
        return {"num_lookups": self._num_lookups}

    def meets(self, call: str, host: object) -> None:
        """Delay and fail a lookup of `host`, if it is one of those.

        Raises:
            socket.gaierror: it is, and is to fail.
        """
        name = host.decode(errors="replace") if isinstance(host, bytes | bytearray) else host
        # In a worker forked since, no connection would lift it.
        if not isinstance(name, str) or not self._is_affected(name.lower()) or os.getpid() != self._process:
            return
        asked_seconds, error = float(self.arguments["delay_seconds"]), self.arguments["error"]
        began = time.monotonic()
        if asked_seconds:
            time.sleep(asked_seconds)
        waited_seconds = time.monotonic() - began
        with self._lock:
            self._num_lookups += 1
            is_first = self._num_lookups == 1
        if is_first:
            told = {"name": name, "call": call, "asked_seconds": asked_seconds, "waited_seconds": waited_seconds}
            self.report({**told, "error": error})
        if error is not None:
            raise socket.gaierror(getattr(socket, error), ERRORS[error])

    def _is_affected(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self._pattern) and name not in self._known and not _is_address(name)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if _active and event in _LOOKUPS:
        for effect in list(_active):
            effect.meets(event.partition(".")[2], arguments[0])


def _is_address(name: str) -> bool:
    try:
        # Of a link-local one the interface comes last.
        ip_address(name.partition("%")[0])
    except ValueError:
        return name in ("", "<broadcast>")
    return True


def _names_in_hosts() -> frozenset[str]:
    """Those of /etc/hosts, and `localhost`, which resolvers know without it."""
    found = {"localhost"}
    with suppress(OSError):
        for line in HOSTS_FILE.read_text(encoding="utf-8", errors="replace").splitlines():
            found.update(name.lower() for name in line.partition("#")[0].split()[1:])
    return frozenset(found)
