"""What can be wrong with a checkpoint, and why something of it was not checked: codes with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Damage that the standard library sees.
EMPTY, NO_END, TOO_SHORT, BAD_CHECKSUM, BAD_HEADER = "empty", "no_end", "too_short", "bad_checksum", "bad_header"
MISSING, UNREADABLE, BAD_METADATA = "missing", "unreadable", "bad_metadata"
# What the job's own Python sees.
LOAD_FAILED, NOT_FINITE = "load_failed", "not_finite"
# A file of it is of another step.
MIXED = "mixed"
DAMAGE = (
    EMPTY,
    NO_END,
    TOO_SHORT,
    BAD_CHECKSUM,
    BAD_HEADER,
    MISSING,
    UNREADABLE,
    BAD_METADATA,
    MIXED,
    LOAD_FAILED,
    NOT_FINITE,
)

# Why something is not known. NO_PATH: the call that saved it named no file.
NO_PATH = "unknown"
GONE, OVERWRITTEN, TOO_MANY_BYTES, NO_TIME = "gone", "overwritten", "too_many_bytes", "no_time"
UNKNOWN_FORMAT, NO_CHECKSUMS, REFUSED, NO_PYTHON, ELSEWHERE = (
    "unknown_format",
    "no_checksums",
    "refused",
    "no_python",
    "elsewhere",
)
# Its save was not seen to end, and what else belongs to it is not known.
UNFINISHED = "unfinished"
# It was read when an attempt had ended, and its values were not.
VALUES_NOT_READ = "values_not_read"


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong with `file` (a name in the checkpoint's folder, or the file itself).

    `num_bytes` of `expected_bytes` are there, as far as these are known. `part` is the record of a zip archive or the
    tensor, `count` how many values of it are not finite, `error` what the reader said.
    """

    code: str
    file: str
    num_bytes: int | None = None
    expected_bytes: int | None = None
    part: str | None = None
    count: int | None = None
    error: str | None = None

    def to_dict(self) -> Mapping[str, Any]:
        """Without what is not known."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in named.items() if value is not None}
