"""What is said of a command that failed: the cause, how it ended, and where to read more."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from chaos.external.traceback_text import PrintedException
from harness.analysis.command.failure_cause import EXITED, FailureCause, cause_words, read_cause
from mecefo_runtime.system.command_records import RankRaised
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import AttemptStarted, ProcessExited, ProcessStarted
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.records import RECORDS, parse
from mecefo_runtime.system.run_records import Injected, Verified

_TELLING: tuple[type[Record], ...] = (AttemptStarted, ProcessStarted, ProcessExited, RankRaised, Injected, Verified)

_PIPE = re.compile(r"(?<!\|)\|(?!\|)")


class FailureFacts:
    """The events of a job from which the cause of its failure is read."""

    def __init__(self) -> None:
        self._records: list[Record] = []

    def note(self, event: Event) -> None:
        """Keep it, if it tells of that; one that makes no sense is left out."""
        if RECORDS.get(event.kind) in _TELLING:
            with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                self._records.append(parse(event))

    def cause(self, printed: Sequence[PrintedException] = ()) -> FailureCause | None:
        """See `read_cause`."""
        return read_cause(self._records, printed)


def failure_reason(
    ended: str, cause: FailureCause | None, log_name: str, otherwise: str, printed: str | None = None
) -> str:
    """The sentence: `ended` says how the command did, `otherwise` what is known where there is no cause.

    `printed` are the last lines of a job that took no step: of a rank that only ended with an exit code they say why.
    """
    if cause is None:
        return f"{ended}{otherwise}"
    words, see = cause_words(cause), f"; see logs/{log_name}"
    if printed and cause.code == EXITED and (cause.exit or 0) > 0:
        see = printed
    return f"{ended}: {words}{see}" if cause.rank is None else f"{words}; {ended}{see}"


def is_pipe(command: Sequence[str]) -> bool:
    """Whether a shell in the command is told to run a pipe; what a script does is not looked into."""
    return any(_PIPE.search(word) for word in command)
