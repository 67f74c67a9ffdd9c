"""Reports what a rank reads, and when its process group is formed, from the start of the process on.

Imports no torch: it may be called while torch is being imported. A process that does not yet know which rank it is
keeps the events until it does.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.external.call_paths import path_in_call
from chaos.external.identity import JOB_VARIABLE, Identity, identify, may_be_rank
from chaos.external.report import Report
from chaos.in_process.protocol import AGENT_VARIABLE
from mecefo_runtime.system.command_records import ProcessGroupFormed, StateLoaded
from mecefo_runtime.system.events import MAIN_JOB
from mecefo_runtime.system.record import Record

GROUP = "process_group"
# A data set may read a file for each of its samples with `torch.load`.
MAX_LOADS = 256
_MAX_KEPT = 256
_MAX_ERROR = 300
_MAX_FILES = 4096

_depth = threading.local()


class Channel:
    """The connection for the events of this process; it is made when the first of them is there."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._report: Report | None = None
        self._identity: Identity | None = None
        # Events from before the rank is known, and when they happened (CLOCK_MONOTONIC).
        self._kept: list[tuple[Record, float]] = []
        self.num_loads = 0
        os.register_at_fork(after_in_child=self.abandon)

    def emit(self, record: Record) -> None:
        """Report it now, or when it is known which rank this is."""
        if os.getpid() != self._pid or not may_be_rank(os.environ):
            return
        if self._report is None and os.environ.get("RANK", "").isdecimal() and "torchft" not in sys.modules:
            self._open(identify(os.environ))
        if self._report is not None:
            self._report.emit(record)
        elif len(self._kept) < _MAX_KEPT:
            self._kept.append((record, time.monotonic()))

    def report(self, identity: Identity) -> Report:
        """The connection of this rank, as it is known now.

        Raises:
            OSError, mecefo_runtime.system.wire.WireError: there is no listener, or it refuses this rank.
        """
        if self._report is None or identity != self._identity:
            self._open(identity)
        assert self._report is not None
        return self._report

    def abandon(self) -> None:
        """In a fork: the connection is the parent's."""
        report, self._report, self._kept = self._report, None, []
        if report is not None:
            report.abandon()

    def _open(self, identity: Identity) -> None:
        earlier, self._report = self._report, None
        if earlier is not None:
            earlier.close()
        job = os.environ.get(JOB_VARIABLE) or MAIN_JOB
        self._report, self._identity = Report(os.environ[AGENT_VARIABLE], identity, job), identity
        kept, self._kept = self._kept, []
        for record, happened in kept:
            self._report.emit(record, monotonic_seconds=happened)


_channel: Channel | None = None


def channel() -> Channel:
    """The one of this process."""
    global _channel
    if _channel is None or _channel._pid != os.getpid():
        _channel = Channel()
    return _channel


class watched:  # noqa: N801 - a context manager, used as a function is
    """One call of a function that reads a state, or forms the process group; calls within it are part of it."""

    def __init__(self, what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """`what` is `process_group`, or the field `by` of `StateLoaded`."""
        self._what, self._args, self._kwargs = what, args, kwargs
        self._began = 0.0
        self._is_outermost = False

    def __enter__(self) -> watched:
        self._is_outermost = not getattr(_depth, "calls", 0)
        _depth.calls = getattr(_depth, "calls", 0) + 1
        self._began = time.monotonic()
        return self

    def returned(self, result: object) -> None:
        """The call has returned `result`."""
        self._tell(None)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _depth.calls -= 1
        if error is not None:
            self._tell(error)

    def _tell(self, error: BaseException | None) -> None:
        if not self._is_outermost:
            return
        try:
            record = self._group(error) if self._what == GROUP else self._load(error)
            if record is not None:
                channel().emit(record)
        except Exception as failure:  # the script must not suffer
            print(f"chaos: a load is not observed: {type(failure).__name__}: {failure}", file=sys.stderr)

    def _load(self, error: BaseException | None) -> StateLoaded | None:
        own = channel()
        own.num_loads += 1
        if own.num_loads > MAX_LOADS:
            return None
        told: dict[str, Any] = {
            "by": self._what,
            "began_monotonic": self._began,
            "seconds": time.monotonic() - self._began,
        }
        path = path_in_call(self._args, self._kwargs, "storage_reader", 0)
        if path is not None:
            told |= _status(Path(path).absolute())
        if error is not None:
            told["error"] = _text(error)
        return StateLoaded(**told)

    def _group(self, error: BaseException | None) -> ProcessGroupFormed:
        told: dict[str, Any] = {"began_monotonic": self._began, "seconds": time.monotonic() - self._began}
        distributed = sys.modules.get("torch.distributed.distributed_c10d")
        if error is not None:
            return ProcessGroupFormed(**told, error=_text(error))
        if distributed is not None and distributed.is_initialized():
            told["backend"] = str(distributed.get_backend())
            told["world_size"] = int(distributed.get_world_size())
            told["timeout_seconds"] = _timeout_seconds(distributed, self._args, self._kwargs)
        return ProcessGroupFormed(**told)


def _status(path: Path) -> dict[str, Any]:
    """Path, device, inode and size of a file or folder; of one that is not there only its path."""
    told: dict[str, Any] = {"path": str(path)}
    try:
        status = path.stat()
        told |= {"device": status.st_dev, "inode": status.st_ino, "num_bytes": status.st_size}
        if path.is_dir():
            files = [entry for entry, _ in zip(path.rglob("*"), range(_MAX_FILES), strict=False)]
            told["num_bytes"] = sum(entry.stat().st_size for entry in files if entry.is_file())
    except OSError:
        return told
    return told


def _timeout_seconds(distributed: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
    """Time-out of the process group's operations: the argument of `init_process_group`, else torch's default."""
    given = kwargs.get("timeout", args[2] if len(args) > 2 else None)
    if given is None:
        defaults = getattr(distributed, "_get_default_timeout", None)
        given = None if defaults is None else defaults(distributed.get_backend())
    seconds = getattr(given, "total_seconds", None)
    return None if seconds is None else float(seconds())


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_ERROR]
