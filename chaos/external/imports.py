"""Waits for modules that a script may import itself, and imports none on its behalf."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Awaiting(MetaPathFinder):
    """Calls `act` with the module `name`: at once where it is imported already, else as soon as it is."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name, self._act = name, act
        module = sys.modules.get(name)
        if module is not None:
            act(module)
        else:
            sys.meta_path.insert(0, self)

    def cancel(self) -> None:
        """Stop waiting."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`: finds what the others find."""
        if name != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            # An attribute of the instance: the loader stays what it is for whoever asks.
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    self.cancel()
                    self._act(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
