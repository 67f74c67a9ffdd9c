"""Why nothing started a command's ranks again, as far as its launcher is known, and what would have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.analysis.command.attempts import Attempt
from harness.analysis.words import count
from mecefo_runtime.system.job_records import JobFailed, JobStarted

PYTHON, SPAWN = "python", "spawn"
_LAUNCH = {"torchrun": "torchrun --max-restarts 1", "accelerate": "accelerate launch --max_restarts 1"}
_SUPERVISOR = "a supervisor (a shell loop, systemd, a scheduler that requeues)"


@dataclass(frozen=True, slots=True)
class NoRestart:
    """`code`: the `launcher` was allowed no restart, had used up all `max_restarts`, or there was none.

    Without one it is `python` where the script is the only rank, `spawn` where the script starts its ranks itself.
    """

    code: Literal["none_allowed", "used_up", "no_launcher"]
    launcher: str
    max_restarts: int = 0


def read_no_restart(
    started: JobStarted | None, attempts: Sequence[Attempt], failed: JobFailed | None
) -> NoRestart | None:
    """Of a command that ended by itself and failed; None where restarts were left, or the launcher is not known."""
    if started is None or failed is None or failed.exit is None or not attempts:
        return None
    last = attempts[-1]
    if last.max_restarts is None:
        is_plain = started.launcher == PYTHON and last.number == 1
        starts_ranks = (last.world_size or 1) > 1
        return NoRestart("no_launcher", SPAWN if starts_ranks else PYTHON) if is_plain else None
    # What torchrun calls elastic is what runs the ranks of `accelerate launch` too.
    launcher = "accelerate" if started.launcher == "accelerate" else "torchrun"
    if not last.max_restarts:
        return NoRestart("none_allowed", launcher)
    if (last.num_restarts or 0) >= last.max_restarts:
        return NoRestart("used_up", launcher, last.max_restarts)
    return None


def no_restart_words(why: NoRestart) -> str:
    """A sentence without its full stop: why the ranks were not started again, and what would have done that."""
    if why.code == "no_launcher":
        return f"It was started once by Python, without a launcher: {supervisor_words(why)} would start it again"
    if why.code == "used_up":
        option = "--max_restarts" if why.launcher == "accelerate" else "--max-restarts"
        restarts = count(why.max_restarts, "restart")
        return f"Its launcher had used up its {restarts} ({option} {why.max_restarts})"
    return f"Its launcher was allowed no restart: `{_LAUNCH[why.launcher]} ...` starts the ranks again"


def supervisor_words(why: NoRestart | None) -> str:
    """What starts a command again whose own process has ended."""
    is_single_rank = why is not None and why.launcher == PYTHON
    return f"`{_LAUNCH['torchrun']} ...`, or {_SUPERVISOR}," if is_single_rank else _SUPERVISOR
