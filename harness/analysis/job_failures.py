"""Why a job failed: each code, and its sentence.

The runtime and the backend of commands write the sentence themselves, in the field `sentence`: it names processes,
exceptions and logs.
"""

from __future__ import annotations

from harness.analysis.command.unseen import unseen_words
from mecefo_runtime.system.job_records import JobFailed
from mecefo_runtime.system.reason import SENTENCE, Made, Reason, Table


def failure_text(failure: Reason) -> str:
    """The sentence."""
    return JOB_FAILURES.text(failure)


def job_failed(failure: Reason) -> JobFailed:
    """The event: the reason with its code, and its sentence."""
    return JobFailed(reason=failure_text(failure), why=failure)


def _stalled(seconds: float, step: int, is_command: bool = False) -> str:
    longer = "; --stall-timeout waits longer" if is_command else ""
    return f"no step was committed for {seconds:.0f} s after step {step}{longer}"


def _never_began(seconds: float, unseen: str | None = None) -> str:
    return f"in {seconds:.0f} s {'no step was committed' if unseen is None else unseen_words(unseen)}"


_WRITTEN = f"{{{SENTENCE}}}"
JOB_FAILURES = Table(
    {
        # The runtime.
        "ranks_missing": _WRITTEN,
        "restart_failed": _WRITTEN,
        "nothing_to_start_from": _WRITTEN,
        "cannot_go_on": _WRITTEN,
        "runtime_bug": _WRITTEN,
        # A command.
        "command_failed": _WRITTEN,
        "command_killed": _WRITTEN,
        "no_rank_completed": _WRITTEN,
        # Seen from outside.
        "stalled": Made(_stalled, "no step was committed for {seconds} s after step {step}"),
        "never_began": Made(_never_began, "in {seconds} s no step was committed"),
        "command_unobserved": "the agents of all hosts were lost: how the command ended there is not known",
        "all_nodes_gone": "all nodes were gone before the first step; see their logs",
        # Without a code in the log.
        "job_failed": _WRITTEN,
    }
)
