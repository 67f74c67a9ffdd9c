"""The faults of a command line after the first: each a kind, with the options that are of that fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MORE_FAULTS = "more_faults"
"""The name of the option that carries them."""
AND = "--and"
"""The option that begins another fault."""


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """One fault of a command line; `options` by name, as `read_options` takes those of the first fault."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
