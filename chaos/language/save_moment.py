"""A moment within the save of a checkpoint: after a file, a rename or a number of bytes; or an asynchronous save."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chaos.errors import UsageError, nearest, shown
from chaos.language.sizes import bytes_text, parse_bytes

CHECKPOINT = "checkpoint"
AFTER = ("file", "rename")
DURING = ("async",)
# The words that an agent announces in addition to the phases of a step.
FILE, RENAME, BYTES, ASYNC = (f"{CHECKPOINT}/{word}" for word in (*AFTER, "bytes", "async"))
OPEN_MOMENTS = (ASYNC,)
"""Of the first step from that of the trigger on in which they come."""
_SIZE = re.compile(r"\d.*")


@dataclass(frozen=True, slots=True)
class SaveMoment:
    """`after` a file or a rename, after `num_bytes` of a file, or `during` an asynchronous save; one of them."""

    after: str | None = None
    num_bytes: int | None = None
    during: str | None = None

    @property
    def announced(self) -> str:
        """What the agent announces there."""
        return f"{CHECKPOINT}/{self.after or ('bytes' if self.during is None else self.during)}"

    @property
    def is_open(self) -> bool:
        """Whether its step may be a later one."""
        return self.announced in OPEN_MOMENTS

    def __str__(self) -> str:
        if self.during is not None:
            return f"during={self.during}"
        return f"after={self.after if self.num_bytes is None else bytes_text(self.num_bytes)}"

    @classmethod
    def parse(cls, after: object, during: object) -> SaveMoment | None:
        """Read the values of the keys `after` and `during`; None: neither is given.

        Raises:
            UsageError: it is not such a moment; `key` is the part that is wrong.
        """
        if after is not None and during is not None:
            raise UsageError("after and during contradict each other: give one of them", key="during")
        if during is not None:
            if during not in DURING:
                meant = nearest(str(during), DURING)
                raise UsageError(f"during={shown(during)}: write during=async", key="during", suggestion=meant)
            return cls(during=str(during))
        if after is None:
            return None
        if after in AFTER:
            return cls(after=str(after))
        if isinstance(after, str) and _SIZE.fullmatch(after.strip()):
            try:
                return cls(num_bytes=parse_bytes(after))
            except UsageError as error:
                raise UsageError(error.message, key="after", suggestion=error.suggestion) from None
        raise UsageError(
            f"after={shown(after)} is no moment of a save: write {', '.join(AFTER)} or a size such as 1MB",
            key="after",
            suggestion=nearest(str(after), AFTER),
        )
