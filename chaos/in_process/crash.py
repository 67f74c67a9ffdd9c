"""The ways in which a rank crashes, on its training thread, when it is released."""

from __future__ import annotations

import builtins
import ctypes
import importlib
import os
import sys
from typing import Any

from chaos.in_process.base import InProcessFault, InProcessFaultRefused


class Segfault(InProcessFault):
    """Reads from address 0."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Nothing yet."""
        return {"address": 0}

    def released(self) -> None:
        """The invalid read; the kernel answers with SIGSEGV."""
        _flush()
        ctypes.string_at(0)


class Abort(InProcessFault):
    """Calls abort(3), as a failed assertion in C++ does."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Nothing yet."""
        return {}

    def released(self) -> None:
        """SIGABRT from within."""
        _flush()
        os.abort()


class Exit(InProcessFault):
    """Ends the process at once, without Python's clean-up; argument `code`."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Nothing yet."""
        return {"code": int(self.arguments["code"])}

    def released(self) -> None:
        """_exit(2)."""
        _flush()
        os._exit(int(self.arguments["code"]))


class Raise(InProcessFault):
    """Raises an exception in the training thread, out of the announcement; arguments `exception`, `message`."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Make the exception, so that one which cannot be made is refused."""
        name = str(self.arguments["exception"])
        module, _, attribute = name.rpartition(".")
        try:
            wanted = getattr(importlib.import_module(module) if module else builtins, attribute)
            made = wanted(str(self.arguments["message"]))
        except (ImportError, AttributeError, TypeError) as error:
            raise InProcessFaultRefused(f"{name}(message) cannot be made here: {error}") from error
        if not isinstance(made, Exception):
            raise InProcessFaultRefused(f"{name} is no exception")
        self._made = made
        self._is_raised = self._is_told = False
        return {"exception": type(made).__qualname__}

    def released(self) -> None:
        """The exception, in whatever the rank was about to do."""
        self._is_raised = True
        raise self._made

    def announced(self, step: int, phase: str) -> None:
        """Say that the script has caught it: it trains on. One that ends of it may still save something."""
        if self._is_raised and not self._is_told and phase != "checkpoint":
            self._is_told = True
            self.report({"handled_at": [step, phase]})


def _flush() -> None:
    # What the rank has printed is not part of what it loses.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
