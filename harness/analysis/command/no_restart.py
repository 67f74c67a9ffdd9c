"""Why nothing started a command's ranks again, as far as its launcher is known, and what would have."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.command.attempts import Attempt
from harness.analysis.words import count
from mecefo_runtime.system.job_records import JobFailed, JobStarted
from mecefo_runtime.system.reason import Made, Reason, Table

PYTHON, SPAWN = "python", "spawn"
_LAUNCH = {"torchrun": "torchrun --max-restarts 1", "accelerate": "accelerate launch --max_restarts 1"}
_SUPERVISOR = "a supervisor (a shell loop, systemd, a scheduler that requeues)"


def read_no_restart(started: JobStarted | None, attempts: Sequence[Attempt], failed: JobFailed | None) -> Reason | None:
    """Of a command that ended by itself and failed; None where restarts were left, or the launcher is not known.

    The `launcher` was allowed no restart, had used up all `max_restarts`, or there was none: it is then `python` where
    the script is the only rank, `spawn` where the script starts its ranks itself.
    """
    if started is None or failed is None or failed.exit is None or not attempts:
        return None
    last = attempts[-1]
    if last.max_restarts is None:
        is_plain = started.launcher == PYTHON and last.number == 1
        starts_ranks = (last.world_size or 1) > 1
        return Reason("no_launcher", launcher=SPAWN if starts_ranks else PYTHON) if is_plain else None
    # What torchrun calls elastic is what runs the ranks of `accelerate launch` too.
    launcher = "accelerate" if started.launcher == "accelerate" else "torchrun"
    if not last.max_restarts:
        return Reason("none_allowed", launcher=launcher)
    if (last.num_restarts or 0) >= last.max_restarts:
        return Reason("used_up", launcher=launcher, max_restarts=last.max_restarts)
    return None


def no_restart_text(why: Reason) -> str:
    """A sentence without its full stop: why the ranks were not started again, and what would have done that."""
    return NO_RESTART.text(why)


def supervisor_words(why: Reason | None) -> str:
    """What starts a command again whose own process has ended."""
    return _supervisor(None if why is None else why.get("launcher"))


def _supervisor(launcher: str | None) -> str:
    return f"`{_LAUNCH['torchrun']} ...`, or {_SUPERVISOR}," if launcher == PYTHON else _SUPERVISOR


def _no_launcher(launcher: str) -> str:
    return f"It was started once by Python, without a launcher: {_supervisor(launcher)} would start it again"


def _used_up(launcher: str, max_restarts: int) -> str:
    option = "--max_restarts" if launcher == "accelerate" else "--max-restarts"
    return f"Its launcher had used up its {count(max_restarts, 'restart')} ({option} {max_restarts})"


def _none_allowed(launcher: str) -> str:
    return f"Its launcher was allowed no restart: `{_LAUNCH[launcher]} ...` starts the ranks again"


NO_RESTART = Table(
    {
        "no_launcher": Made(
            _no_launcher, "It was started once by Python, without a launcher: ... would start it again"
        ),
        "used_up": Made(
            _used_up, "Its launcher had used up its {max_restarts} restarts (--max-restarts {max_restarts})"
        ),
        "none_allowed": Made(
            _none_allowed, "Its launcher was allowed no restart: `{launcher} ...` starts the ranks again"
        ),
    }
)
