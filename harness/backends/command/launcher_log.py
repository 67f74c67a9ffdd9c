"""Reads what a command prints: which worker failed, and of what, where the ranks have not reported it; and its steps.

torch 2.11-2.13, `torch/distributed/elastic/multiprocessing/api.py`: one line for the first worker that failed, at the
time at which it was detected, whether or not it starts them again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from chaos.external.traceback_text import PREFIX as _PREFIX
from chaos.external.traceback_text import PrintedException, exceptions_in
from chaos.in_process.protocol import AgentListener, AgentSession, At, Begin, FromInjector, Holds, Refused
from harness.analysis.words import exit_text
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.job_records import StepCommitted
from mecefo_runtime.system.process import ProcessId

# A progress bar ends its lines with carriage returns only.
_LINE_END = re.compile(rb"[\r\n]")
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_NOT_CONNECTED = "Gloo connectFullMesh failed"
_STORE_LOST = "RendezvousConnectionError: The connection to the C10d store has failed"


STORE_SETTING = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
OLD_ADDRESSES = (
    "; ranks that were started again could not connect to each other: PyTorch (2.13) may have given them the addresses "
    f"of those before, which {STORE_SETTING}=1 avoids"
)
LOST_STORE = "; a launcher lost its connection to the store of the rendezvous, which another launcher hosts"
_TAIL_BYTES = 262_144
_TAIL_LINES = 8
_OF_LAUNCHERS = ("ChildFailedError", "SignalException", "CalledProcessError", "RendezvousConnectionError")
_HEADER = re.compile(r"^\s*(?:\+ Exception Group )?Traceback \(most recent call last\)")
# torchrun's summary of a failure, which names no exception (torch 2.11-2.13).
_BOILERPLATE = re.compile(
    r"\[\d+\]:$|(?:time|host|rank|exitcode|error_file|traceback)\s*:|Root Cause|Failures:|<NO_OTHER_FAILURES>"
    r"|\S+ FAILED$"
)
# What libraries print whether or not anything fails: log lines below the level of an error (torch, glog, absl), and
# torchrun's own errors, which tell what it did about it; warnings of Python, whose next line is the one that warns.
_BELOW_ERROR = re.compile(r"^(?:\[rank\d+\]:)?\[?[IWD]\d{4} \d\d:\d\d")
_OF_TORCHRUN = re.compile(r"^\[?[EIW]\d{4} \d\d:\d\d.*torch/distributed/(?:run|launch|elastic/)")
_WARNING = re.compile(r"^\S.*:\d+: (?:[A-Za-z_.]*Warning): ")
# torchrun (torch 2.11-2.13, `torch/distributed/run.py`), between two lines of asterisks.
_THREADS = "Setting OMP_NUM_THREADS environment variable for each process"


class LauncherLog:
    """Follows the log of a launcher while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        # Whether ranks could not connect to each other, none of which was of the first start.
        self.has_failed_restart = False
        # Whether a launcher gave up because the store of its rendezvous was gone (torch 2.13, c10d).
        self.has_lost_store = False
        self._has_failed = False

    def new_lines(self) -> list[str]:
        """What was written since the last call, whole lines."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                data = log.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = _LINE_END.split(self._rest + data)
        return [line.decode(errors="replace") for line in lines]

    def culprits(self, lines: Iterable[str]) -> list[int]:
        """The pids of the workers that it blames in these lines, in their order."""
        culprits: list[int] = []
        for line in lines:
            if match := _FAILED.search(line):
                self._has_failed = True
                culprits.append(int(match[3]))
            elif _STORE_LOST in line:
                self.has_lost_store = True
            elif _NOT_CONNECTED in line and self._has_failed:
                self.has_failed_restart = True
        return culprits

    def printed(self) -> list[PrintedException]:
        """The exceptions at its end, without those by which launchers tell that a rank has failed."""
        found = exceptions_in(self._tail())
        return [one for one in found if one.exception.rpartition(".")[2] not in _OF_LAUNCHERS]

    def last_words(self) -> str:
        """The worker that a signal ended, or the last lines: the end of the sentence that it failed; or nothing.

        Without any line of the job's own (torchrun --redirects), the worker that ended with an exit code.
        """
        blamed = [match for line in self._tail() if (match := _FAILED.search(line)) is not None]
        killed = [match for match in blamed if int(match[1]) < 0]
        named = killed or ([] if (lines := self.last_lines()) else blamed)
        if named:
            return f"; its launcher names local rank {named[-1][2]}: {exit_text(int(named[-1][1]))}"
        return lines

    def last_lines(self) -> str:
        """The last lines of the job's own, each once, as the end of a sentence; or nothing."""
        lines = list(_without_banners(_PREFIX.sub("", line) for line in self._tail()))
        lines = list(_without_launchers(lines))
        # What comes after it is the launcher's own end.
        lines = list(takewhile(lambda line: not _HEADER.match(line), lines)) or lines
        # Launchers draw rulers.
        words = [line.strip() for line in lines if any(char.isalnum() for char in line)]
        # Several ranks print the same.
        last = [*dict.fromkeys(line for line in words if not _BOILERPLATE.match(line))][-_TAIL_LINES:]
        return f"; the last lines of logs/{self._path.name}: {' | '.join(last)}" if last else ""

    def _tail(self) -> list[str]:
        try:
            with self._path.open("rb") as log:
                log.seek(max(0, self._path.stat().st_size - _TAIL_BYTES))
                return log.read().decode(errors="replace").splitlines()
        except OSError:
            return []


def _without_banners(lines: Iterable[str]) -> Iterator[str]:
    is_of_warning = False
    for line in lines:
        is_quoted = is_of_warning and line.startswith("  ")
        is_of_warning = bool(_WARNING.match(line))
        is_banner = _BELOW_ERROR.match(line) or _OF_TORCHRUN.match(line) or _THREADS in line
        if not (is_quoted or is_of_warning or is_banner):
            yield line


def _without_launchers(lines: Iterable[str]) -> Iterator[str]:
    """`lines` without the tracebacks in which a launcher reports that a rank has failed."""
    traceback: list[str] = []
    for line in lines:
        if _HEADER.match(line):
            yield from traceback
            traceback = [line]
        elif traceback and line[:1].strip():
            if line.partition(":")[0].rpartition(".")[2] not in _OF_LAUNCHERS:
                yield from (*traceback, line)
            traceback = []
        elif traceback:
            traceback.append(line)
        else:
            yield line
    yield from traceback


class LogSteps:
    """Reads steps from the lines of a command in which no optimizer of PyTorch is seen (`job.step_from`).

    Stands in for the agent that the command does not have. No rank can be held: what a fault does at a step it does
    when the line of the step before was read, soon after it was written. Nothing can be done inside the ranks.
    """

    def __init__(
        self, pattern: str, process: ProcessId, emitter: Emitter, listener: Callable[[], AgentListener | None]
    ) -> None:
        """`pattern` has a group `step`, or its first is the number; without one its matches are counted."""
        self._pattern = re.compile(pattern)
        self._emitter = emitter
        self._listener = listener
        self._session = AgentSession(0, 0, 1, process, self._on_order)
        self._holds: frozenset[tuple[int | None, str]] = frozenset()
        self._num_seen = 0
        self._is_connected = False

    def connect(self) -> None:
        """The command runs: report as its rank 0."""
        if (listener := self._listener()) is not None:
            self._is_connected = True
            listener.connected(self._session)
            self._reach(1)

    def close(self) -> None:
        """It has ended."""
        if self._is_connected and (listener := self._listener()) is not None:
            listener.closed(self._session)

    def feed(self, line: str) -> None:
        """Process one line of the log."""
        match = self._pattern.search(line)
        if match is None:
            return
        self._num_seen += 1
        named = match.groupdict()
        number = named.get("step") or (match[1] if match.re.groups and "step" not in named else None)
        step = int(number) if number is not None and number.isdecimal() else self._num_seen
        committed = StepCommitted(epoch=1)
        with suppress(TypeError, ValueError):
            committed = StepCommitted(epoch=1, loss=float(named.get("loss") or ""))
        self._emitter.emit(committed, step=step)
        self._reach(step + 1)

    def _reach(self, step: int) -> None:
        if (listener := self._listener()) is None:
            return
        for phase in sorted({phase for wanted, phase in self._holds if wanted == step}):
            listener.on_message(self._session, At(step, phase))

    def _on_order(self, order: Holds | FromInjector) -> None:
        match order:
            case Begin(handle=handle):
                reason = "steps are read from the log: nothing can be done inside this command's ranks"
                if (listener := self._listener()) is not None:
                    listener.on_message(self._session, Refused(handle, reason))
            case _ if hasattr(order, "holds"):
                self._holds = frozenset(tuple(hold) for hold in order.holds)
