"""torchft: what its managers know of a process that we do not: the replica group, and how many steps were committed."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from chaos.external.imports import Awaiting


class Managers:
    """Those that the script makes, from the import of `torchft.manager` on (torchft 0.1-0.2)."""

    def __init__(self, on_rejected: Callable[[], None]) -> None:
        """`on_rejected` is called when a manager lets no replica group take the step, which is then done again."""
        self._on_rejected = on_rejected
        self._newest: Callable[[], Any] = lambda: None
        self.are_any = False

    def watch(self) -> Callable[[], None]:
        """From now on; returns what ends it."""
        undo: list[Callable[[], None]] = []
        undo.append(Awaiting("torchft.manager", lambda module: undo.append(self._attach(module))).cancel)

        def end() -> None:
            while undo:
                undo.pop()()

        return end

    def num_steps(self) -> int | None:
        """How many steps its replica group has committed, the one that is about to be included; None without any."""
        manager = self._newest()
        return None if manager is None else int(manager.current_step())

    def replica_group(self) -> int | None:
        """The number at the end of the name that the script gave the replica group, as torchft itself reads it."""
        found = re.search(r"(\d+)$", str(getattr(self._newest(), "_replica_id", None) or ""))
        return None if found is None else int(found[1])

    def _attach(self, module: ModuleType) -> Callable[[], None]:
        kind: Any = module.Manager
        made, commit = kind.__init__, kind.should_commit

        @wraps(made)
        def init(manager: Any, *args: Any, **kwargs: Any) -> None:
            made(manager, *args, **kwargs)
            self._newest, self.are_any = weakref.ref(manager), True

        @wraps(commit)
        def should_commit(manager: Any, *args: Any, **kwargs: Any) -> Any:
            answer = commit(manager, *args, **kwargs)
            if not answer:
                self._on_rejected()
            return answer

        kind.__init__, kind.should_commit = init, should_commit
        # Scripts make it before the optimizer, with which we begin.
        made_before = [found for found in gc.get_objects() if type(found) is kind]
        if made_before:
            self._newest, self.are_any = weakref.ref(made_before[-1]), True

        def restore() -> None:
            for name, ours, original in (("__init__", init, made), ("should_commit", should_commit, commit)):
                if getattr(kind, name) is ours:
                    setattr(kind, name, original)

        return restore
