"""Why a snapshot process does not deliver a part: the codes."""

from __future__ import annotations

from typing import Literal, NamedTuple

Code = Literal["damaged", "not_held"]
DAMAGED: Literal["damaged"] = "damaged"
"""Its bytes do not have the checksum that they had when they were stored."""
NOT_HELD: Literal["not_held"] = "not_held"
"""It is not here."""


class Refusal(NamedTuple):
    """The code, and the details in words."""

    code: Code
    details: str
