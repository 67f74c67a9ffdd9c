"""The parts of which a summary is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A part of the summary of a run: its fields are keys of `summary.json`.

    A figure that may be unknown has no default: the analysis that fills the part says that it is None.
    """
