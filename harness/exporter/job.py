"""A run's endpoint for Prometheus, from before its first process until its verdict has been scraped."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from chaos.errors import EnvironmentFailure, UsageError, shown
from harness.analysis.state import RunState
from harness.exporter.families import RunCollector
from harness.exporter.figures import Figures
from harness.exporter.targets import Targets, reachable
from harness.judging.summary import Summary
from harness.live.live import RunView
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.metrics_server import PATH, MetricsServer, split_address
from mecefo_runtime.system.wire import LOOPBACK
from mecefo_runtime.training.exporter import AUTO

OFF = "off"
# What reads a run more seldom than this does not hold it up.
MAX_LAST_READ_SECONDS = 20.0
# On a busy machine the next reading comes late by something that has nothing to do with the interval.
LATE_SECONDS = 1.0
_LAST_READ_POLL_SECONDS = 0.05


class JobExporter:
    """Takes in the events of a run and serves what they come to, from `publish` on while it is entered.

    `where`, said with `option`, is `auto`, PORT or HOST:PORT. `is_live` tells a run that continues from one that is
    only looked at. What cannot be served or written is never the run's trouble once it has begun.
    """

    def __init__(self, where: str, *, option: str = "--metrics", is_live: bool = True) -> None:
        """Listen.

        Raises:
            UsageError: `where` is no address.
            EnvironmentFailure: the port is in use, or the address is none of this machine's.
        """
        host, port = address_of(where, option)
        self.figures = Figures()
        clock: Callable[[], float] = time.monotonic if is_live else lambda: self.figures.state.newest_seconds
        try:
            self._server = MetricsServer(RunCollector(self.figures, clock), host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise EnvironmentFailure(f"port {port} is in use: choose another with {option}") from error
            # Python adds to the reason what we say ourselves.
            reason = str(error.strerror or error).partition(" (while")[0]
            raise EnvironmentFailure(
                f"cannot serve metrics on {host}:{port} ({reason}): choose another address with {option}"
            ) from error
        # Where the ranks are to serve theirs: beside the job's.
        self.ranks_where = AUTO if host == LOOPBACK else host if ":" not in host else f"[{host}]"
        self._targets: Targets | None = None
        self._judged_seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._targets is not None:
            self._targets.close()
        self._server.close()

    @property
    def url(self) -> str:
        """Where the metrics are."""
        return f"http://{reachable(self._server.address)}{PATH}"

    def publish(self, out: Path, experiment: str) -> str:
        """Serve, and list the endpoint in the file of targets in `out`; returns what to say of it."""
        # Not earlier: what is checked before a run is looked at in forks, which threads make unsafe.
        self._server.start()
        self._targets = Targets(out, experiment, self._server.address)
        self._targets.open()
        return f"metrics: {self.url} ({self._targets.violation or f'targets for Prometheus: {self._targets.path}'})"

    @property
    def state(self) -> RunState:
        """What is known of the run: whoever has its events feeds it."""
        return self.figures.state

    def feed(self, event: Event) -> None:
        """Take in one event, in the order of arrival."""
        self.state.feed(event)
        self.note(event)

    def note(self, event: Event) -> None:
        """Take in one event that the state has been fed: ranks come and go."""
        if self._targets is not None:
            self._targets.on_event(event)

    def judge(self, summary: Summary) -> None:
        """The run is judged."""
        with self.state.lock:
            self.figures.judge(summary)
        self._judged_seconds = time.monotonic()

    def wait_for_last_read(self, stream: TextIO) -> None:
        """Wait until a regular reader has scraped the verdict, for a little more than one interval; Ctrl-C ends it.

        A run that nobody reads, or only seldom, does not wait, nor one that was interrupted.
        """
        interval, served = self._server.interval_seconds, self._server.served_seconds
        summary = self.figures.summary
        if interval is None or interval > MAX_LAST_READ_SECONDS or summary is None:
            return
        if summary.status == "interrupted":
            return
        deadline = served[-1] + 1.5 * interval + LATE_SECONDS
        if served[-1] >= self._judged_seconds or time.monotonic() >= deadline:
            return
        try:
            stream.write("waiting for Prometheus to read the verdict (Ctrl-C: stop waiting)\n")
            stream.flush()
            while served[-1] < self._judged_seconds and time.monotonic() < deadline:
                time.sleep(_LAST_READ_POLL_SECONDS)
        except (KeyboardInterrupt, OSError, ValueError):
            return


class ExportedView:
    """A view of a run in `out` whose events are exported too; it says where."""

    def __init__(self, view: RunView, exporter: JobExporter, out: Path, experiment: str) -> None:
        self._view = view
        self._exporter = exporter
        self._out = out
        self._experiment = experiment

    def __enter__(self) -> Self:
        self._view.__enter__()
        self._view.message(self._exporter.publish(self._out, self._experiment))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.__exit__(kind, error, trace)

    def feed(self, event: Event) -> None:
        """Show the event, which is exported with the state of the run."""
        self._exporter.note(event)
        self._view.feed(event)

    def message(self, text: str) -> None:
        """Show a sentence that is no event's."""
        self._view.message(text)


def exported(view: RunView, exporter: JobExporter | None, out: Path, experiment: str) -> RunView:
    """`view`, and where there is an exporter, one whose events are exported."""
    return view if exporter is None else ExportedView(view, exporter, out, experiment)


@contextmanager
def exporting(where: str) -> Iterator[JobExporter | None]:
    """While a run is exported at `where`; nothing where it is `off`.

    Raises:
        UsageError: `where` is no address.
        EnvironmentFailure: it cannot be served there.
    """
    if where == OFF:
        yield None
        return
    with JobExporter(where) as exporter:
        yield exporter


def address_of(where: str, option: str = "--metrics") -> tuple[str, int]:
    """(host, port) of `auto`, PORT or HOST:PORT; port 0 is a free one.

    Raises:
        UsageError: it is none of these.
    """
    if where == AUTO:
        return LOOPBACK, 0
    try:
        host, port = split_address(where if ":" in where else f"{LOOPBACK}:{where}")
        if not host or not where.rpartition(":")[2].isdigit() or where.startswith("[") != ("]:" in where):
            raise ValueError(f"{shown(where)} is no address")
    except ValueError as error:
        raise UsageError(f"{error}: write auto, PORT or HOST:PORT", key=option) from error
    return host, port
