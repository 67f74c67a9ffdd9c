"""The result of one check of the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "missing", "wrong"]
# In a `Check`: all backends that are installed.
EVERY_BACKEND = ("*",)


@dataclass(frozen=True, slots=True)
class Finding:
    """`found` says what is there, `purpose` what it is for, and `remedy` what to do unless it is ok.

    `missing`: it is not there; `wrong`: it is, but not as it has to be. `needed_by`: the backends that cannot do
    without; where it is empty, only what `purpose` names is missed.
    """

    name: str
    outcome: Outcome
    found: str
    purpose: str
    remedy: str = ""
    needed_by: tuple[str, ...] = ()

    def stops(self, backend: str) -> bool:
        """Whether no experiment can run on `backend` for this."""
        return self.outcome != "ok" and backend in self.needed_by


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look for: its name, what it is for, and who needs it, whatever is found."""

    name: str
    purpose: str
    needed_by: tuple[str, ...] = ()

    def ok(self, found: str) -> Finding:
        """The check passed."""
        return self._finding("ok", found, "")

    def missing(self, found: str, remedy: str) -> Finding:
        """The thing is missing."""
        return self._finding("missing", found, remedy)

    def wrong(self, found: str, remedy: str) -> Finding:
        """The thing exists, but is not usable."""
        return self._finding("wrong", found, remedy)

    def looked(self, look: Callable[[], Finding]) -> Finding:
        """What `look` finds; a look that fails has found that something is wrong."""
        try:
            return look()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return self.wrong(f"could not be looked at: {reason}", "a bug in chaos, or a very unusual machine")

    def _finding(self, outcome: Outcome, found: str, remedy: str) -> Finding:
        from chaos.experiment.backends import backends

        needed_by = tuple(backends()) if self.needed_by == EVERY_BACKEND else self.needed_by
        return Finding(self.name, outcome, found, self.purpose, remedy, needed_by)
