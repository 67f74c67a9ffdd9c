"""Runs when Python starts in a job that somebody else wrote: a rank greets; modules are hooked when they are imported.

Another `sitecustomize` that the environment has is run as if this one were not there.
"""

from __future__ import annotations

import atexit
import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

# Not from `typing`, which alone costs more than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 5 ms at every start of Python
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
_PID = os.getpid()
# By function: the module in which it is, its names there, and what a call of it is called in the log.
_READS = {
    "torch.serialization": (("load",), "torch"),
    "torch.distributed.checkpoint.state_dict_loader": (("load", "load_state_dict"), "distributed_checkpoint"),
    # Before `safetensors.torch` and transformers take it from there.
    "safetensors": (("safe_open",), "safetensors"),
}
_GROUPS = {"torch.distributed.distributed_c10d": (("init_process_group",), "process_group")}
# How many states the process has loaded, as far as it matters: whether it has.
_loads: list[bool] = []


class _Awaiting:
    """Calls a function with each awaited module when it is imported; other finders find the modules."""

    def __init__(self, awaited: dict[str, Callable[[ModuleType], None]]) -> None:
        self._awaited = awaited

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name not in self._awaited:
            return None
        act = self._awaited.pop(name)
        if not self._awaited:
            sys.meta_path.remove(self)
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            # An attribute of the instance: the loader stays what it is for whoever asks.
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                act(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


def _watch_calls(names: tuple[str, ...], what: str) -> Callable[[ModuleType], None]:
    """Report every call of these functions of a module."""

    def watch(module: ModuleType) -> None:
        for name in names:
            original = getattr(module, name, None)
            if original is not None:
                setattr(module, name, _telling(original, what))

    return watch


def _telling(original: Any, what: str) -> Any:
    """Wrap `original`: its outermost calls are reported, except those of forks."""
    import functools

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if what != "process_group" and not _loads:
            _loads.append(True)
        if os.getpid() != _PID or _is_given_up:
            return original(*args, **kwargs)
        try:
            early = _import("chaos.external.early")
        except (Exception, SystemExit) as error:
            _give_up(error)
            return original(*args, **kwargs)
        with early.watched(what, args, kwargs) as watched:
            result = original(*args, **kwargs)
            watched.returned(result)
        return result

    return call


_is_given_up = False


def _give_up(error: BaseException) -> None:
    """What this process reads is not observed; the script must not suffer."""
    global _is_given_up
    _is_given_up = True
    print(f"chaos: what this process loads is not observed: {type(error).__name__}: {error}", file=sys.stderr)


def _watch(module: ModuleType) -> None:
    """Be told of every optimizer that is made: a process that makes none does not train."""
    import functools

    original = module.Optimizer.__init__
    told: list[Any] = []
    _count_loaded_modules()

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            if not told:
                # A script that has put a hook of its own in place of ours has done so by now.
                _watch_exceptions()
                told.append(_load())
            told[0](self)
        except (Exception, SystemExit) as error:
            # The script must not suffer; it is not followed then.
            told[:] = [lambda optimizer: None]
            print(f"chaos: this process is not observed: {type(error).__name__}: {error}", file=sys.stderr)

    module.Optimizer.__init__ = init


def _watch_exceptions() -> None:
    """Be told of an exception that nobody catches, before whoever prints it, and change nothing about that.

    Again at the first optimizer, and at the end of the process: a script may have put its own hook in place of this.
    """
    hook = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        _tell_exception(error)
        hook(kind, error, traceback)

    sys.excepthook = tell


_is_exception_told = False


def _tell_exception(error: BaseException | None) -> None:
    """Once; not of a fork's, which is a process of the script's own."""
    global _is_exception_told
    if error is None or _is_exception_told or os.getpid() != _PID:
        return
    _is_exception_told = True
    try:
        _import("chaos.external.uncaught").tell(error)
    except (Exception, SystemExit) as failure:
        print(f"chaos: how this process ends is not told: {type(failure).__name__}: {failure}", file=sys.stderr)


def _count_loaded_modules() -> None:
    """Note whenever a module's state is loaded: one that was loaded before the first optimizer was made, too."""
    import functools

    # All of torch that comes before its optimizers is there.
    modules = sys.modules.get("torch.nn.modules.module")
    if modules is None:
        return
    original = modules.Module.load_state_dict

    @functools.wraps(original)
    def load_state_dict(*args: Any, **kwargs: Any) -> Any:
        if not _loads:
            _loads.append(True)
        return original(*args, **kwargs)

    modules.Module.load_state_dict = load_state_dict


def _load() -> Any:
    """`chaos.external.start.optimizer_created`."""
    start = _import("chaos.external.start")
    # Whoever imports it before there is an optimizer means to call `chaos.agent.step`.
    start.begin(is_explicit=_has_our_agent(), loads=_loads)
    return start.optimizer_created


def _has_our_agent() -> bool:
    """Whether the script has imported our `chaos.agent`, of whatever version, and not a module of its own."""
    place = os.path.dirname(getattr(sys.modules.get("chaos.agent"), "__file__", None) or "")  # noqa: PTH120
    return os.path.exists(os.path.join(place, "external", "site", "sitecustomize.py"))  # noqa: PTH110, PTH118


def _import(name: str) -> Any:
    """A module of ours, from where this file is, in whatever environment the script has."""
    import importlib.util

    if sys.version_info < (3, 10):  # noqa: UP036 - that of the script
        raise RuntimeError(f"the agent needs Python 3.10 or newer, and this is {sys.version.split()[0]}")
    if not _has_our_agent() and (private := _private_names()).is_needed():
        return private.load(name)
    # Only for the moment: what the script imports is to be found where it would be without us. First, because another
    # version of ours may be installed.
    sys.path.insert(0, _PACKAGES)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(_PACKAGES)


def _private_names() -> Any:
    """`chaos.host.private_names`, which must not import the package that it is in."""
    return _by_path("_mecefo_chaos_names", "host", "private_names.py")


def _by_path(name: str, *place: str) -> Any:
    """The module of ours that is at `place` in the package `chaos`, as `name`: the package is not imported for it."""
    if name not in sys.modules:
        path = os.path.join(_PACKAGES, "chaos", *place)  # noqa: PTH118
        # Not by `importlib.util`, which costs 3 ms at every start of a rank.
        module = sys.modules[name] = type(sys)(name)
        module.__file__ = path
        SourceFileLoader(name, path).exec_module(module)
    return sys.modules[name]


def _greet() -> None:
    """A rank says that it was started: what dies before its first step has been an attempt, too."""
    try:
        launch = _by_path("_mecefo_chaos_launch", "external", "launch.py")
        if launch.is_started_by_launcher():
            launch.greet(os.environ["CHAOS_AGENT"])
    except (Exception, SystemExit):
        # The script must not suffer, nor its log: whether the rank is observed, it says itself later.
        return


def _move() -> None:
    """Into the network that was made for this rank, before anything is opened."""
    try:
        # The script's folder is not on the path yet, so that nobody knows which names it takes.
        _private_names().load_before_the_script("chaos.host.join_network").move(os.environ)
    except (Exception, SystemExit) as error:
        # Links to it are not cut then, which is found out when one is to be.
        print(f"chaos: this process has no network of its own: {type(error).__name__}: {error}", file=sys.stderr)


def _run_next() -> None:
    """Run the `sitecustomize` that would have been found without this one, if there is one, under its name."""
    others = [place for place in sys.path if os.path.abspath(place) != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    # What it raises is raised, as it would be without us.
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get("CHAOS_AGENT") and os.environ.get("CHAOS_RUN"):
        if os.environ.get("RANK") and (os.environ.get("CHAOS_NETWORKS") or os.environ.get("CHAOS_NCCL_LOG")):
            _move()
        if os.environ.get("RANK"):
            _greet()
        _watch_exceptions()
        # Python sets it before it calls whatever hook is there.
        atexit.register(lambda: _tell_exception(getattr(sys, "last_value", None)))
        awaited = {name: _watch_calls(*calls) for name, calls in {**_READS, **_GROUPS}.items()}
        awaited["torch.optim.optimizer"] = _watch
        for name in [name for name in awaited if name in sys.modules]:
            awaited.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, _Awaiting(awaited))
    _run_next()
