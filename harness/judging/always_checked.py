"""What is checked in every run, asked for or not: gates by kind of job, and the checks beside them.

The judging uses this table, and so do `chaos gates` and the documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mecefo_runtime.job.traits import traits_of
from mecefo_runtime.planners import stops_on_loss
from mecefo_runtime.system.json_values import called

Job = Literal["built-in", "restarting", "command"]
CheckCode = Literal[
    "leftovers",
    "end",
    "finite_loss",
    "equal_replicas",
    "finite_parameters",
    "one_generation",
    "gates",
    "abort",
    "verified_and_recovered",
    "unexplained_losses",
    "repairs",
    "own_failures",
    "same_step",
]
Result = Literal["fail", "halted", "error", "inconclusive", "dirty"]

JOBS: Mapping[Job, str] = {
    "built-in": "the built-in job",
    "restarting": "the built-in job, if it restarted from saved state (always with the strategies checkpoint and reft)",
    "command": "a command (-- COMMAND)",
}
GATES: Mapping[Job, tuple[str, ...]] = {
    "built-in": ("steps_lost == 0", "samples_lost == 0", "unrecovered_incidents == 0"),
    # Restarting from saved state loses steps by design.
    "restarting": ("samples_lost == 0", "unrecovered_incidents == 0"),
    # Its launcher restarts it from a checkpoint, and the samples of its steps cannot be seen.
    "command": ("unrecovered_incidents == 0",),
}
_BUILT_IN: tuple[Job, ...] = ("built-in", "restarting")
_COMMAND: tuple[Job, ...] = ("command",)
_ALL: tuple[Job, ...] = (*_BUILT_IN, *_COMMAND)


@dataclass(frozen=True, slots=True)
class Check:
    """`about` is what must hold, `jobs` the kinds of job that are checked, `results` the verdicts it can lead to."""

    code: CheckCode = field(metadata=called("check"))
    about: str
    jobs: tuple[Job, ...]
    results: tuple[Result, ...] = field(metadata=called("verdicts"))


CHECKS: tuple[Check, ...] = (
    Check(
        "leftovers",
        "every fault is undone, and no process, network rule or container is left behind",
        _ALL,
        ("dirty", "inconclusive"),
    ),
    Check(
        "end",
        "the job completes; a command ends with exit code 0",
        _ALL,
        ("fail", "halted", "error", "inconclusive"),
    ),
    Check("finite_loss", "the loss, where it is known, is finite at every step", _ALL, ("fail", "inconclusive")),
    Check("equal_replicas", "ranks that hold the same layers end with the same values", _BUILT_IN, ("fail",)),
    Check(
        "equal_replicas",
        "replicas that were bitwise equal before the fault are equal at the end",
        _COMMAND,
        ("fail", "inconclusive"),
    ),
    Check(
        "finite_parameters",
        "no more parameter values are NaN or infinite at the end than before the fault",
        _COMMAND,
        ("fail",),
    ),
    Check("one_generation", "no process of an earlier attempt trains or saves beside a later one", _COMMAND, ("fail",)),
    Check("gates", "the gates above, and those that were asked for", _ALL, ("fail", "inconclusive")),
    Check("abort", "no gate ended the run before the job was over", _ALL, ("fail", "inconclusive")),
    Check(
        "verified_and_recovered",
        "every fault fires, its effect is verified, and the job commits a step that began after it",
        _ALL,
        ("fail", "inconclusive"),
    ),
    Check(
        "unexplained_losses", "no rank is lost beside a fault that has not been recovered from", _ALL, ("inconclusive",)
    ),
    Check("repairs", "a repair that had time brings its ranks back", _BUILT_IN, ("inconclusive",)),
    Check(
        "own_failures",
        "no rank fails by itself with steps to come, and the job does not end before a step that is known to come",
        _COMMAND,
        ("fail", "inconclusive"),
    ),
    Check("same_step", "the ranks of a restarted attempt continue from the same step", _COMMAND, ("inconclusive",)),
)


def kind_of_job(runtime: object, strategy: str | None = None, *, went_back: bool = False) -> Job:
    """The kind of a job of `runtime` with that `strategy`; `went_back`: it restarted from saved state."""
    if traits_of(runtime).is_user_script:
        return "command"
    return "restarting" if stops_on_loss(strategy) or went_back else "built-in"


def checks_of(job: Job) -> Iterator[Check]:
    """The checks of a job of that kind, in the order of the table."""
    return (check for check in CHECKS if job in check.jobs)
