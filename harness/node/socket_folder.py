"""The folder of a run's Unix sockets: at the same path on every host, for this user alone."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

RANK_SOCKET, AGENT_SOCKET = "ranks", "agent"
"""Where the processes of the job report, and where the agent of the host can be reached."""
_MEMORY = Path("/dev/shm")


class SocketFolder:
    """The folder of `run` on this host."""

    def __init__(self, run: str) -> None:
        self.folder = (_MEMORY if _MEMORY.is_dir() else Path("/tmp")) / f"chaos-{run}"

    def path(self, name: str) -> str:
        """The path of a socket in it."""
        return str(self.folder / name)

    def make(self) -> None:
        """Make it; what an agent that was killed has left in it is removed.

        Raises:
            OSError: it cannot be made, or is somebody else's.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if not self.is_ours():
            raise PermissionError(f"{self.folder} is not for this user alone")
        for name in (RANK_SOCKET, AGENT_SOCKET):
            (self.folder / name).unlink(missing_ok=True)

    def is_ours(self) -> bool:
        """Whether it is there for this user alone: what listens in another one is no agent of ours."""
        try:
            status = self.folder.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077

    def remove(self) -> None:
        """Remove it with its sockets."""
        for name in (RANK_SOCKET, AGENT_SOCKET):
            with suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()
