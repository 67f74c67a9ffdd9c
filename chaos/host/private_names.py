"""Imports modules of this installation in a process that may have others of the same names.

A training script, or a project's tests, may have packages `chaos` and `harness`, or a `json.py`: what they import stays
theirs. Ours are imported as `_mecefo_chaos.chaos` and so on; their own imports find each other, and the standard
library, whatever the path says. Imports nothing of ours itself: it is loaded by its path.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "_mecefo_chaos"
_ROOT = str(Path(__file__).resolve().parents[2])
_PACKAGES = frozenset({"mecefo_runtime", "chaos", "harness"})
_STANDARD = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_EXTENSIONS = str(Path(_STANDARD[1], "lib-dynload"))
_is_before_the_script = False


def load(name: str) -> Any:
    """The module of ours that is called `name` elsewhere, under its private name; imported once."""
    if PREFIX not in sys.modules:
        private = ModuleType(PREFIX, "Modules of mecefo-chaos, beside others of the same names.")
        private.__path__ = [_ROOT, *dict.fromkeys(_STANDARD), _EXTENSIONS]
        sys.modules[PREFIX] = private
        sys.meta_path.insert(0, _Finder())
    return importlib.import_module(f"{PREFIX}.{name}")


def load_before_the_script(name: str) -> Any:
    """As `load`, before the script's folder is on the path: what is imported stays unknown to the script."""
    global _is_before_the_script
    _is_before_the_script = True
    try:
        return load(name)
    finally:
        _is_before_the_script = False


def is_needed() -> bool:
    """Whether something on the path would be found in place of a package of ours or of the standard library."""
    return any(not _is_at(name, _ROOT) for name in _PACKAGES - {"harness"}) or any(map(_shadowed, _names_on_path()))


def _is_at(name: str, root: str) -> bool:
    """Whether `name` is the package there, or is not there at all."""
    module = sys.modules.get(name)
    spec = PathFinder.find_spec(name) if module is None else module.__spec__
    if spec is None:
        return module is None
    return any(Path(place).resolve() == Path(root, name) for place in spec.submodule_search_locations or ())


def _names_on_path() -> set[str]:
    """Modules of the standard library's names in the folders that are looked into before it."""
    names: set[str] = set()
    for place in sys.path:
        folder = Path(place)
        if str(folder) in _STANDARD:
            break
        if folder.is_dir():
            names |= {entry.stem for entry in folder.iterdir() if entry.suffix in ("", ".py")}
    return names & sys.stdlib_module_names


def _shadowed(name: str) -> bool:
    """Whether another module than that of the standard library is imported under its name."""
    module = sys.modules.get(name)
    spec = PathFinder.find_spec(name) if module is None else getattr(module, "__spec__", None)
    # Built into the interpreter, or a script that runs under the name: it has no file of its own, or no specification.
    if spec is None or not spec.has_location or spec.origin is None:
        return False
    return not spec.origin.startswith((*_STANDARD, _EXTENSIONS)) or "site-packages" in spec.origin


def _is_private(name: str) -> bool:
    """Whether a module of the standard library is not to be imported, or not to be seen, under its own name."""
    if not _is_before_the_script:
        return _shadowed(name)
    spec = None if name in sys.modules else PathFinder.find_spec(name)
    # One in C has its state once in a process.
    return spec is not None and isinstance(spec.loader, SourceFileLoader)


class _Finder(MetaPathFinder):
    """Finds what has a private name, and lets it import by private names."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if not name.startswith(f"{PREFIX}."):
            return None
        # A plug-in of another package is asked for by a private name, too: it derives from what has one.
        spec = PathFinder.find_spec(name, path, target) or PathFinder.find_spec(name, None, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_with_own_imports(module: ModuleType) -> None:
                # What a module's `import` statements call (Python's documentation of `builtins`).
                module.__dict__["__builtins__"] = _BUILTINS
                execute(module)

            spec.loader.exec_module = execute_with_own_imports  # type: ignore[method-assign]
        return spec


def _import(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> ModuleType:
    """As `builtins.__import__`, which has these parameters."""
    top = name.partition(".")[0]
    if level or not (top in _PACKAGES or (top in sys.stdlib_module_names and _is_private(top))):
        return builtins.__import__(name, globals, locals, fromlist, level)
    module = load(name)
    if not fromlist:
        return sys.modules[f"{PREFIX}.{top}"]
    return builtins.__import__(module.__name__, globals, locals, fromlist)


_BUILTINS = {**vars(builtins), "__import__": _import}
