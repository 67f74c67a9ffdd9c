"""The origin of stored figures."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Origin:
    """When, on what and by what command something was measured."""

    date: str
    machine: str
    command: str

    @classmethod
    def now(cls, command: str) -> Origin:
        """Here and today."""
        cores = len(os.sched_getaffinity(0))
        machine = f"cores {cores}, platform {platform.platform()}, python {platform.python_version()}"
        return cls(datetime.now(UTC).date().isoformat(), machine, command)
