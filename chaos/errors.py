"""The one tree of exceptions; every message says what was wrong and what to do about it.

    ChaosError
    ├── UsageError            4  what the user wrote cannot be: file, line, key, nearest valid word
    │   └── RunNotFound          no stored run goes by that name (harness.store.runs)
    ├── InjectionError        5  the fault did not take effect, so nothing can be concluded
    │   ├── TargetNotFound       nothing of the target is there any more
    │   ├── NotOurs              what is there was not started by this run
    │   └── EffectNotSeen        applied, but its effect was not seen in time
    ├── BudgetExceeded        5  a figure takes too many operations, and is not known (harness.analysis.contained)
    ├── HealError             6  something that was changed could not be changed back
    └── EnvironmentFailure    3  the machine refuses: full disk, unwritable folder, no more processes
        ├── StoreError           the folder of runs may not be read or written (harness.store.runs)
        └── LogError             there is no event log that can be read (harness.store.log)

The number is the exit code with which the command ends when nothing worse happened. What a run that was judged exits
with is its verdict's: `EXIT_CODES` in `harness/judging/verdict.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from chaos.refusals import refusal_text
from mecefo_runtime.system.reason import SENTENCE, Reason

if TYPE_CHECKING:
    # Not in Python 3.10, which a rank of your own script may run.
    from typing import Self

# Longer ones are cut: an error names the value, it does not repeat the file.
_MAX_SHOWN_CHARACTERS = 60
_MAX_SHOWN_PROBLEMS = 20
# A setting that a message names: between characters that no quoted text of a user contains.
_SETTING = re.compile("\x02(.*?)\x03")


class ChaosError(Exception):
    """The base of all errors that this tool reports."""

    exit_code: ClassVar[int] = 3


class UsageError(ChaosError):
    """What the user wrote cannot be.

    `str()` reads `FILE:LINE: KEY: MESSAGE (did you mean 'WORD'?)`, of which whatever is unknown is left out. Several
    mistakes are one error with several `problems`, of which the first ones are shown, one a line; of a single mistake,
    `problems` is the error itself.
    """

    exit_code = 4

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int | None = None,
        key: str | None = None,
        suggestion: str | None = None,
        problems: Sequence[UsageError] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.line = line
        self.key = key
        self.suggestion = suggestion
        self.problems: tuple[UsageError, ...] = tuple(problems) or (self,)

    def __str__(self) -> str:
        if self.problems != (self,):
            first = [f"  {problem}" for problem in self.problems[:_MAX_SHOWN_PROBLEMS]]
            num_others = len(self.problems) - len(first)
            return "\n".join([self.message, *first, *([f"  and {num_others} more"] if num_others else [])])
        place = self.path
        if self.line is not None:
            place = f"{self.path}:{self.line}" if self.path else f"line {self.line}"
        hint = f" (did you mean {self.suggestion!r}?)" if self.suggestion else ""
        return ": ".join([*filter(None, (place, self.key)), f"{in_terms(self.message)}{hint}"])


def all_of(problems: Sequence[UsageError]) -> UsageError:
    """One error that reports all of `problems` (at least one), in the order of their lines."""
    if len(problems) == 1:
        return problems[0]
    ordered = sorted(problems, key=lambda problem: problem.line or 0)
    return UsageError(f"{len(ordered)} mistakes:", path=ordered[0].path, problems=ordered)


class ReasonedError(ChaosError):
    """An error with a reason: `why` is a code with fields, and the message its sentence.

    One that is raised with a text has the `code` that is given with it, or that of its class.
    """

    CODE: ClassVar[str]

    def __init__(self, why: Reason | str = "", *, code: str | None = None) -> None:
        self.why = why if isinstance(why, Reason) else Reason(code or self.CODE, **{SENTENCE: why})
        super().__init__(refusal_text(self.why))

    @property
    def code(self) -> str:
        """Of its reason."""
        return self.why.code


class InjectionError(ReasonedError):
    """The fault did not take effect."""

    exit_code = 5
    CODE = "refused"

    def because(self, cause: str, sign: str = ": ") -> Self:
        """The same, with what explains it after the sentence."""
        return type(self)(Reason("with_cause", why=self.why, because=cause, sign=None if sign == ": " else sign))


class TargetNotFound(InjectionError):
    """Nothing of the target is there any more."""

    CODE = "target_not_found"


class NotOurs(InjectionError):
    """What is there was not started by this run."""

    CODE = "not_ours"


class EffectNotSeen(InjectionError):
    """The fault was applied, but its effect was not seen in time."""

    CODE = "effect_not_seen"


class HealError(ReasonedError):
    """Something that was changed could not be changed back."""

    exit_code = 6
    CODE = "undo_failed"


class EnvironmentFailure(ChaosError):
    """The machine lacks or refuses what the run needs."""

    exit_code = 3


def reason_of_error(error: ChaosError) -> Reason:
    """The reason that an error stands for."""
    return error.why if isinstance(error, ReasonedError) else Reason("environment", sentence=str(error))


def setting(key: str, value: object = None) -> str:
    """A setting of the experiment in a message: told as a key of a file or as an option, as the user said the rest."""
    return f"\x02{key}\x03" if value is None else f"\x02{key}={value}\x03"


def in_terms(message: str, option_of: Callable[[str], str | None] = lambda key: None) -> str:
    """`message` with each `setting` as its option, or, where `option_of` knows none, as the key in a file."""

    def written(match: re.Match[str]) -> str:
        key, _, value = match[1].partition("=")
        option = option_of(key)
        if option is not None:
            return f"{option} {value}".rstrip()
        return f"{key}: {value}" if value else key

    return _SETTING.sub(written, message)


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of `words` that `word` probably stands for, if any is close enough."""
    matches = difflib.get_close_matches(word.lower(), sorted(words), n=1)
    return matches[0] if matches else None


def shown(value: object) -> str:
    """A value that a user wrote, as a message quotes it: on one line, without control characters, cut when long."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[: _MAX_SHOWN_CHARACTERS - 3]}..."
