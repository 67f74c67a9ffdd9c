"""Why a run cannot tell whether a job recovers from an incident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Code = Literal["left_in_order", "never_read", "put_back", "newer_saved"]
LEFT_IN_ORDER: Literal["left_in_order"] = "left_in_order"


@dataclass(frozen=True, slots=True)
class Undecided:
    """Why nobody knows whether the job recovers from an incident.

    `left_in_order`: asked to leave, all ranks ended well after `step`, when a checkpoint of `saved_step` was saved, and
    nobody started them again. Of what was damaged: `never_read`, no restart came after it; `put_back`, it was whole
    again by then; `newer_saved`, a checkpoint of `saved_step` was there by then, which is read in its place.
    """

    code: Code
    step: int | None = None
    saved_step: int | None = None
