"""Which other runs of chaos are alive on this machine: the user's own by the registry, other users' by their beacons.

A beacon is an abstract Unix socket whose name says user and run. Every user of the network namespace can see it in
/proc/net/unix, nobody can open anything through it, and the kernel removes it with the process that holds it.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chaos.undo.run_registry import RegistryReader

_UNIX_SOCKETS = Path("/proc/net/unix")
# In that file an abstract name begins with @. Anybody can make a socket of any name: it only leads to a caveat.
_BEACON = re.compile(rb"@mecefo-chaos-run/(\d{1,10})/([0-9a-f]{16})$", re.MULTILINE)
_MAX_OTHERS = 16
"""More runs at once are not told apart."""


@dataclass(frozen=True, slots=True)
class OtherRun:
    """Another run that is alive; `folder` is where its files are, None where that is not readable (another user)."""

    run: str
    folder: Path | None
    uid: int


class Beacon:
    """Shows other users of this machine that `run` is under way, until it is closed or this process ends."""

    def __init__(self, run: str) -> None:
        beacon = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Without it a run is still in the registry of its own user.
        with suppress(OSError):
            beacon.bind(f"\0mecefo-chaos-run/{os.geteuid()}/{run}".encode())
        # It is to last as long as the process that dies without closing it.
        self._descriptor: int | None = beacon.detach()

    def close(self) -> None:
        """The run is over."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class OtherRuns:
    """Looks for the other runs that are alive, again and again; a look costs about a tenth of a millisecond."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._uid = os.geteuid()
        self._registry = RegistryReader()

    def alive(self) -> dict[str, OtherRun]:
        """By run, those that are alive now."""
        found = {
            one.run: OtherRun(one.run, one.folder, self._uid)
            for one in self._registry.runs()
            if one.run != self._own and one.place == self._registry.here and one.chaos.is_running()
        }
        for uid, run in _beacons():
            # The user's own runs are in the registry that they share, and in no other on purpose.
            if uid != self._uid and run != self._own:
                found.setdefault(run, OtherRun(run, None, uid))
        return dict(list(found.items())[:_MAX_OTHERS])


def _beacons() -> set[tuple[int, str]]:
    try:
        listed = _UNIX_SOCKETS.read_bytes()
    except OSError:
        return set()
    return {(int(match[1]), match[2].decode()) for match in _BEACON.finditer(listed)}
