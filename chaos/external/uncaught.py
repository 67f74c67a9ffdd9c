"""Tells of the exception that ends a rank, with what led to it and the place in the script.

`site/sitecustomize.py` loads it when there is one, and not before: torch need not have been imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from chaos.external.exception_kind import kind_of
from chaos.external.identity import JOB_VARIABLE, identify, may_be_rank
from chaos.external.launch import STARTED
from chaos.external.report import Report
from chaos.external.traceback_text import exceptions_in, is_of_script
from chaos.in_process.protocol import AGENT_VARIABLE
from mecefo_runtime.system.command_records import RankRaised
from mecefo_runtime.system.events import MAIN_JOB

_MAX_MESSAGE = 2000
_MAX_CAUSES = 8
_MAX_CAUSE_MESSAGE = 500
_INJECTED_IN = "/chaos/in_process/crash.py"
_START = "chaos.external.start"


def tell(error: BaseException) -> None:
    """Report `error`, which nobody caught, as the end of this rank; nothing where this process is none.

    Raises:
        OSError, mecefo_runtime.system.wire.WireError: there is no listener, or it refuses this process.
    """
    if isinstance(error, SystemExit | KeyboardInterrupt) or not may_be_rank(os.environ) or _is_started_by_rank():
        return
    tracker = _tracker()
    if tracker is None and not os.environ.get("RANK"):
        # A launcher, or a process of the command's that has nothing to do with the training.
        return
    raised = record_of(error)
    if tracker is None or not tracker.tell_exception(raised):
        job = os.environ.get(JOB_VARIABLE) or MAIN_JOB
        report = Report(os.environ[AGENT_VARIABLE], identify(os.environ), job)
        report.emit(raised)


def _is_started_by_rank() -> bool:
    """Whether another process has greeted, whose RANK this one has inherited."""
    greeted, _, _ = os.environ.get(STARTED, "").partition(" ")
    return greeted not in ("", str(os.getpid()))


def record_of(error: BaseException) -> RankRaised:
    """The event of `error`."""
    name, message = _name_of(error), _message_of(error)
    file, line, is_injected = _place_of(error)
    causes = [*_causes_of(error)]
    # Of many the root is what is asked for.
    causes = causes if len(causes) <= _MAX_CAUSES else [*causes[: _MAX_CAUSES - 1], causes[-1]]
    return RankRaised(
        exception=name,
        message=_cut(message, _MAX_MESSAGE),
        failure=kind_of(name, message),
        file=file,
        line=line,
        is_injected=is_injected,
        causes=tuple(causes),
    )


def injected(error: BaseException) -> RankRaised | None:
    """The event of `error` while chaos raises it: its place in the script is where chaos was called from.

    None where chaos does not: the handler of a signal may raise something while a rank is held.
    """
    raised = record_of(error)
    if not raised.is_injected:
        return None
    frame: FrameType | None = sys._getframe()
    while frame is not None and not is_of_script(frame.f_code.co_filename):
        frame = frame.f_back
    file, line = (None, None) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
    return RankRaised(**{**raised.given(), "file": file, "line": line})


def _causes_of(error: BaseException) -> Iterator[dict[str, Any]]:
    """What led to `error`, the root last."""
    seen, current = {id(error)}, error
    while True:
        link, following = _next_of(current)
        if following is None or id(following) in seen:
            break
        seen.add(id(following))
        name, message = _name_of(following), _message_of(following)
        file, line, _ = _place_of(following)
        yield _cause(name, message, file, line, link)
        current = following
    # One of another process is there as text only.
    for told in exceptions_in(_message_of(current).splitlines())[-1:]:
        yield _cause(told.exception, told.message, told.file, told.line, "remote")
        for one in told.causes:
            yield _cause(one.exception, one.message, one.file, one.line, one.link)


def _cause(name: str, message: str, file: str | None, line: int | None, link: str | None) -> dict[str, Any]:
    said = _cut(message, _MAX_CAUSE_MESSAGE)
    return {"exception": name, "message": said, "file": file, "line": line, "link": link}


def _next_of(error: BaseException) -> tuple[str, BaseException | None]:
    if error.__cause__ is not None:
        return "cause", error.__cause__
    if error.__context__ is not None and not error.__suppress_context__:
        return "context", error.__context__
    parts = getattr(error, "exceptions", None)
    if isinstance(parts, tuple) and parts and isinstance(parts[0], BaseException):
        return "remote", parts[0]
    return "", None


def _name_of(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        # A script's own class can do anything here.
        return ""


def _place_of(error: BaseException) -> tuple[str | None, int | None, bool]:
    """File and line of the script where it came up, and whether chaos has raised it there."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno, False
    place: tuple[str | None, int | None] = (None, None)
    file, traceback = "", error.__traceback__
    while isinstance(traceback, TracebackType):
        file = traceback.tb_frame.f_code.co_filename
        if is_of_script(file):
            place = file, traceback.tb_lineno
        traceback = traceback.tb_next
    return (*place, _INJECTED_IN in file)


def _cut(text: str, size: int) -> str:
    """Beginning and end: a message that has another one's traceback in it ends with what that one says."""
    if len(text) <= size:
        return text
    half = (size - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def _tracker() -> Any:
    """What follows this process, if anything does: under whichever name it was imported."""
    prefix = __name__.removesuffix("chaos.external.uncaught")
    for name in (f"{prefix}{_START}", _START, f"_mecefo_chaos.{_START}"):
        if (start := sys.modules.get(name)) is not None and (found := start.tracker()) is not None:
            return found
    return None
