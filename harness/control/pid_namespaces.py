"""Translates pids inside containers to pids on the host."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mecefo_runtime.system.events import Event

# Fields of events in which a process tells of another one.
_PID_FIELDS = ("started_pid", "exited_pid")


class HostPids:
    """Turns pids that processes in other namespaces tell into ours. What it found once it knows after they are dead."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], int] = {}
        self._namespaces: dict[int, str] = {}
        self._here = str(Path("/proc/self/ns/pid").readlink())

    def of_event(self, event: Event, peer_pid: int) -> Event:
        """The event of a process whose pid out here is `peer_pid`, with pids as they are out here."""
        if event.pid == peer_pid and self._namespace(peer_pid) in (self._here, ""):
            return event
        fields = {
            name: self.of(peer_pid, int(value)) if name in _PID_FIELDS else value
            for name, value in event.fields.items()
        }
        return replace(event, pid=peer_pid, fields=fields)

    def of(self, peer_pid: int, inner_pid: int) -> int:
        """What the process that `peer_pid`'s namespace calls `inner_pid` is called here.

        One that cannot be found keeps its number: with its start time beside it, it is nobody's.
        """
        namespace = self._namespace(peer_pid)
        if namespace in (self._here, ""):
            return inner_pid
        found = self._find(namespace, inner_pid)
        if found is not None:
            self._known[namespace, inner_pid] = found
        return self._known.get((namespace, inner_pid), inner_pid)

    def _namespace(self, pid: int) -> str:
        if pid not in self._namespaces:
            with suppress(OSError):
                self._namespaces[pid] = str(Path(f"/proc/{pid}/ns/pid").readlink())
        return self._namespaces.get(pid, "")

    def _find(self, namespace: str, inner_pid: int) -> int | None:
        for name in (entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            # It may be gone at any moment, or be another user's.
            with suppress(OSError):
                if str(Path(f"/proc/{name}/ns/pid").readlink()) != namespace:
                    continue
                lines = Path(f"/proc/{name}/status").read_text(encoding="utf-8").splitlines()
                numbers = next(line.split()[1:] for line in lines if line.startswith("NSpid:"))
                if int(numbers[-1]) == inner_pid:
                    return int(name)
        return None
