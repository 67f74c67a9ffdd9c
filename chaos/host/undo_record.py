"""Undo records: frozen dataclasses, one for each fault and each tool that changes the machine.

Their JSON stands in ledgers, which whoever heals may read years later: a key that is written stays readable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from chaos.errors import HealError
from mecefo_runtime.system.json_values import JsonTypeError, from_json, to_json
from mecefo_runtime.system.reason import Reason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoRecord:
    """One record; its fields are the keys of its JSON, in their order. Subclasses are frozen dataclasses, too."""

    # Of another version, which knew more.
    MAY_HAVE_MORE: ClassVar[bool] = True

    def changed_paths(self) -> tuple[str, ...] | None:
        """The files and folders that the undo may change, whole paths; None: any that the record names."""
        return None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        values: dict[str, Any] = to_json(self)
        return values

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; what another version has beside is left out.

        Raises:
            HealError: it is no such record; the message says what of it cannot be.
        """
        try:
            return from_json(cls, raw)
        except JsonTypeError as error:
            raise HealError(Reason("record_not_understood", error=error)) from error
