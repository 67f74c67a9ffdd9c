"""Runs a script under a real control server, with the agent inside, and says what came of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.in_process.protocol import (
    AgentSession,
    At,
    Began,
    Came,
    FromAgent,
    Holds,
    Refused,
    Release,
    Start,
    from_injector,
    to_wire,
)
from harness.backends.command.known_states import KnownStates
from harness.control.control_server import ControlServer
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.wire import Message

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
SITE = ROOT / "chaos/external/site"
# Much longer than a script takes on a busy machine, where torch alone is imported in half a minute.
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Held:
    """A rank was held, and what its job had printed by then."""

    rank: int
    step: int
    phase: str
    printed: tuple[str, ...]
    session: AgentSession

    @property
    def place(self) -> tuple[int, int, str]:
        return self.rank, self.step, self.phase


@dataclass
class Job:
    """A script that ran to its end."""

    exit_code: int = -1
    stdout: str = ""
    stderr: str = ""
    hellos: list[tuple[int, int, int]] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    answers: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    @property
    def steps(self) -> list[int | None]:
        """The numbers of the committed steps, in the order in which they were told."""
        return [event.step for event in self.of("step_committed")]


class TestAgents:
    """Holds whom it is told to, does `on_hold` then, and lets go."""

    __test__ = False

    def __init__(
        self,
        job: Job,
        holds: Sequence[tuple[int, int, str]],
        printed: Callable[[], tuple[str, ...]],
        on_hold: Callable[[Held], Sequence[Message]],
        dies_with: ControlServer | None,
    ) -> None:
        self._dies_with = dies_with
        self._job, self._holds, self._printed, self._on_hold = job, list(holds), printed, on_hold
        self._waiting: dict[int, int] = {}

    def _holds_of(self, rank: int) -> tuple[tuple[int, str], ...]:
        return tuple((step, phase) for wanted, step, phase in self._holds if wanted == rank)

    def connected(self, session: AgentSession) -> None:
        self._job.hellos.append((session.place, session.node, session.attempt))
        session.send(Holds(self._holds_of(session.place)))

    def on_message(self, session: AgentSession, message: FromAgent) -> None:
        if isinstance(message, Came):
            return
        if not isinstance(message, At):
            self._job.answers.append(to_wire(message))
            self._waiting[session.place] = self._waiting.get(session.place, 0) - isinstance(message, Began | Refused)
            if not self._waiting[session.place]:
                session.send(Release(self._holds_of(session.place)))
            return
        held = Held(session.place, message.step, message.phase, self._printed(), session)
        self._job.held.append(held)
        # Once.
        self._holds = [place for place in self._holds if place != held.place]
        if self._dies_with is not None:
            self._dying = asyncio.get_running_loop().create_task(self._dies_with.close())
            return
        begins = self._on_hold(held)
        if begins is STAY:
            return
        begun = [session.send(from_injector(begin)) for begin in begins]
        self._waiting[session.place] = len(begun)
        if not begun:
            session.send(Release(self._holds_of(session.place)))

    def closed(self, session: AgentSession) -> None:
        return


# What `on_hold` returns for whom it does not let go.
STAY: Sequence[Message] = [{"type": "stay"}]


def nothing(held: Held) -> Sequence[Message]:
    return ()


def run_job(
    folder: Path,
    command: Sequence[str],
    *,
    holds: Sequence[tuple[int, int, str]] = (),
    on_hold: Callable[[Held], Sequence[Message]] = nothing,
    environment: Mapping[str, str] | None = None,
    site: Sequence[Path] = (),
    is_server_to_die: bool = False,
    states_of: Job | None = None,
) -> Job:
    """Run `command` to its end with the agent in it; `holds` are (rank, step, phase).

    `site` are folders that come after ours on PYTHONPATH. `is_server_to_die`: with the first hold.
    It is a later attempt of the job `states_of`.
    """
    job = Job()
    stdout, stderr = folder / "stdout", folder / "stderr"
    control = ControlServer(job.events.append)
    dies_with = control if is_server_to_die else None
    control.agents = TestAgents(job, holds, lambda: tuple(stdout.read_text().splitlines()), on_hold, dies_with)
    if states_of is not None:
        known = KnownStates()
        for event in states_of.events:
            known.note(event)
        control.start_of = lambda attempt: Start(True, known.steps_by_digest())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def do(coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(TIMEOUT_SECONDS)

    try:
        do(control.open())
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("CHAOS_")}
        paths = [SITE, *site]
        variables = {
            **inherited,
            # A name of its own: what carries it is looked for on the whole machine.
            "CHAOS_RUN": uuid.uuid4().hex,
            "CHAOS_AGENT": control.address,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        }
        with stdout.open("wb") as to_stdout, stderr.open("wb") as to_stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=to_stdout,
                stderr=to_stderr,
                cwd=folder,
                env=variables,
                start_new_session=True,
            )
            try:
                job.exit_code = process.wait(TIMEOUT_SECONDS)
            finally:
                process.kill()
                process.wait()
        # What it said last may be on its way; to hang up waits for that for a second only.
        do(control.drained(TIMEOUT_SECONDS))
    finally:
        do(control.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    job.stdout, job.stderr = stdout.read_text(), stderr.read_text()
    return job


def counts_of(job: Job) -> dict[int | None, tuple[Any, ...]]:
    """Of each rank: the number of its first step, who kept the count, and after which step it continues."""
    return {
        event.rank: (event.step, event.fields["count_kept_by"], event.fields["resumed_after"])
        for event in job.of("steps_counted")
    }


def python(script: str, *arguments: str) -> list[str]:
    """The command that runs one of `scripts`."""
    return [sys.executable, str(SCRIPTS / script), *arguments]


def torchrun(num_ranks: int, script: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """The command that runs one of `scripts` in several ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    return [*launcher, *options, str(SCRIPTS / script), *arguments]
