"""Undoes what a run has left on this host, whose agent is dead."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

from chaos.errors import ChaosError
from chaos.host.process_table import is_stopped
from chaos.host.run_processes import end_processes
from chaos.undo.heal import Healed, heal
from chaos.undo.lease import LEASE_SECONDS
from chaos.undo.run_registry import OpenRun, left_here
from harness.node.socket_folder import SocketFolder

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 2.0


def heal_here(run: str) -> Healed:
    """End the processes of `run` on this host, and undo what is pending; an agent that is still there goes first.

    Before the host was started again there may have been another agent, with a ledger of its own.
    """
    deadline = time.monotonic() + LEASE_SECONDS + _GRACE_SECONDS
    # The tool does not speak to it any more: it leaves with its lease, unless it hangs.
    while time.monotonic() < deadline and any(one.is_owned() and not is_stopped(one.chaos) for one in left_here(run)):
        time.sleep(_POLL_SECONDS)
    healed = [_healed(one) for one in left_here(run)]
    ended = tuple(one.to_dict() for one in end_processes(run))
    with suppress(OSError):
        SocketFolder(run).remove()
    return Healed(
        run,
        healed[0].folder if healed else "",
        tuple(undone for one in healed for undone in one.undone),
        tuple(failed for one in healed for failed in one.failed),
        (*(process for one in healed for process in one.ended), *ended),
        tuple(removed for one in healed for removed in one.removed),
        tuple(left for one in healed for left in one.left),
        tuple(problem for one in healed for problem in one.problems),
    )


def _healed(known: OpenRun) -> Healed:
    if known.is_owned():
        known.chaos.signal(signal.SIGKILL)
    # The watchdog of an agent that was killed undoes, and ends.
    deadline = time.monotonic() + LEASE_SECONDS
    while (known.is_owned() or known.is_watched()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    try:
        return heal(known)
    except ChaosError as error:
        return Healed(known.run, str(known.folder), problems=(str(error),))
