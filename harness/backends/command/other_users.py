"""Whether a command runs as another user than `chaos`, and what that user cannot reach of what its ranks need."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chaos.host.process_table import effective_uid
from harness.backends.command.start import SITE_FOLDER
from harness.control.admission import can_anybody_enter, can_anybody_read, user_text
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.wire import UNIX

_AGENT = SITE_FOLDER / "sitecustomize.py"


@dataclass(frozen=True, slots=True)
class OtherUser:
    """A user that is neither this process's nor root."""

    uid: int

    def __str__(self) -> str:
        return user_text(self.uid)

    def unreachable(self, address: str, agent: Path = _AGENT) -> str | None:
        """The agent's file, or the socket at `address`, if this user may be unable to reach it."""
        if not can_anybody_read(agent):
            return str(agent)
        path = Path(address.removeprefix(UNIX))
        return None if can_anybody_enter(path.resolve().parent) else str(path)


def other_user_of(processes: Iterable[ProcessId]) -> OtherUser | None:
    """The other user of the first of `processes` that has one."""
    uids = (effective_uid(process) for process in processes)
    return next((OtherUser(uid) for uid in uids if uid is not None and uid not in (os.geteuid(), 0)), None)
