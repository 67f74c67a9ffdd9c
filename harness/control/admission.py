"""Which processes may connect to the control server: by the user and pid that the kernel reports for a connection.

A process of this user or of root may. Only root can start processes of another user, so a server of root also admits
those of other users, if they are processes of this run: they descend from the server's process. Anybody on the machine
can set this run's mark in an environment, so the mark does not count here.
"""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path

from chaos.host.process_table import ancestors_of, effective_uid
from mecefo_runtime.system.process import ProcessId

ROOT = 0
_ANYBODY_MAY_ENTER = 0o001
_ANYBODY_MAY_READ = 0o004


class Admission:
    """Decides for one server; `root` is the process whose descendants are those of the run."""

    def __init__(self, root: ProcessId | None = None) -> None:
        self._root = ProcessId.of(os.getpid()) if root is None else root
        # Of other users. Their launcher may end before them, and then they descend from it no more.
        self._admitted: set[ProcessId] = set()

    def admits(self, pid: int | None, uid: int) -> bool:
        """Whether the process that connected with this pid and user may; `pid` is None where the kernel reports none.

        Between the connection and this call, its pid may have been recycled. Then the process that has it now counts
        only if it has the same user, who has control over it anyway.
        """
        own = os.geteuid()
        if uid in (own, ROOT):
            return True
        if own != ROOT or pid is None:
            return False
        with suppress(ProcessLookupError):
            process = ProcessId.of(pid)
            if effective_uid(process) == uid and self._is_of_run(process):
                self._admitted.add(process)
                return True
        return False

    def _is_of_run(self, process: ProcessId) -> bool:
        return any(one == self._root or one in self._admitted for one in (process, *ancestors_of(process)))


def user_text(uid: int) -> str:
    """A user for messages: `nobody (uid 65534)`."""
    with suppress(KeyError):
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    return f"uid {uid}"


def can_anybody_enter(folder: Path) -> bool:
    """Whether the permissions let every user pass through `folder` and all that it is in; ACLs are not read."""
    try:
        return all(one.stat().st_mode & _ANYBODY_MAY_ENTER for one in (folder, *folder.parents))
    except OSError:
        return False


def can_anybody_read(file: Path) -> bool:
    """Whether the permissions let every user read `file`, and pass through all that it is in."""
    try:
        return bool(file.stat().st_mode & _ANYBODY_MAY_READ) and can_anybody_enter(file.parent)
    except OSError:
        return False
