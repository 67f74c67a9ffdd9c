"""The backend of somebody else's job: runs a command, learns from the agents in it who its ranks are.

The agents come by the environment (`chaos/foreign/site` at the front of PYTHONPATH). Every process that the command
starts carries CHAOS_RUN: by that mark, its pid and its start time it is known to be this run's.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import chaos
from chaos.command_job import CommandConfig, command_text
from chaos.errors import EnvironmentFailure
from chaos.faults.base import OwnedProcess
from chaos.faults.crash import JOB_LOG
from chaos.foreign.network import NCCL_LOG_VARIABLE
from chaos.links.nccl_transport import LOG_NAME
from chaos.residue.processes import RUN_VARIABLE
from harness.backends.base import AnyConfig, Outcome
from harness.backends.command_networks import CommandLinks, CommandNetworks
from harness.backends.exits import exit_of
from harness.backends.marked import listener_on, marked_processes, read_environment
from harness.hub import Hub
from harness.launcher_log import LauncherLog
from harness.words import count, exit_text
from mecefo_runtime.events import Emitter, Event
from mecefo_runtime.layout import Cluster
from mecefo_runtime.process import ProcessId
from mecefo_runtime.wire import Message

SITE_FOLDER = Path(chaos.__file__).parent / "foreign" / "site"
STOP_TIMEOUT_SECONDS = 5.0
# What the command started may end on its own after it; and what it said last may still be on the way.
FAREWELL_SECONDS = 3.0
# Each look goes through all processes of the machine.
POLL_SECONDS = 0.1
# How soon a launcher's word on who failed is heard: a line of its log.
BLAME_POLL_SECONDS = 0.05
_LOG_TAIL_BYTES = 4096
_LOG_TAIL_LINES = 8
_PR_SET_PDEATHSIG = 1
# Resolved before any fork: afterwards, in the child, only the call itself is safe.
_PRCTL = ctypes.CDLL(None).prctl

NO_STEP = (
    "no optimizer step of PyTorch was seen. A loop that takes its steps otherwise tells them by calling "
    "chaos.agent.step() once a step"
)
NO_AGENT = (
    f"{NO_STEP}. No process of the command reported at all: Python's options -I, -E and -S keep our agent out, and so "
    "does whatever replaces PYTHONPATH, or another machine or container"
)


class CommandBackend:
    """Runs commands on this machine; `token` is the run's, `logs` takes what the command prints.

    Of `networked`, whoever starts the ranks and every rank get networks of their own; None: they have the machine's.
    """

    # What a launcher starts does not die with it, nor with us.
    may_outlive: ClassVar[bool] = True

    def __init__(self, hub: Hub, token: str, logs: Path, emitter: Emitter, networked: Cluster | None = None) -> None:
        self._networked = networked
        self.has_networks = networked is not None
        self._hub = hub
        self._token = token
        self._logs = logs
        self._emitter = emitter
        self.jobs: list[CommandRun] = []

    async def open(self) -> None:
        """There is nothing to get ready: the command brings its own processes."""

    async def prepare_job(self, name: str, job: AnyConfig, *, with_agents: bool) -> CommandRun:
        """Everything but the start."""
        assert isinstance(job, CommandConfig)
        # By its name all that the command starts is known, whoever watches over the run.
        run_id = os.environ[RUN_VARIABLE]
        environment = {**os.environ, **job.environment, RUN_VARIABLE: run_id, "PYTHONUNBUFFERED": "1"}
        if with_agents:
            path = [str(SITE_FOLDER), environment.get("PYTHONPATH", "")]
            environment |= {
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
                "CHAOS_AGENT": self._hub.address,
                "CHAOS_TOKEN": self._token,
            }
        if self._networked is not None:
            environment[NCCL_LOG_VARIABLE] = str(self._logs.resolve() / LOG_NAME)
        running = CommandRun(self._hub, name, job, run_id, environment, self._logs / JOB_LOG, self._emitter)
        self.jobs.append(running)
        if self._networked is not None:
            await running.make_networks(self._networked)
            message = "the command's ranks have networks of their own, from which nothing outside can be reached"
            self._emitter.emit("warning", message=message)
        return running

    async def close(self) -> None:
        """Stop what runs."""
        for job in self.jobs:
            await job.stop()


class CommandRun:
    """One command under way, with all that it started."""

    def __init__(
        self,
        hub: Hub,
        name: str,
        job: CommandConfig,
        run_id: str,
        environment: dict[str, str],
        log: Path,
        emitter: Emitter,
    ) -> None:
        self._hub = hub
        self.name = name
        self._job = job
        self._run_id = run_id
        self._environment = environment
        self._log = log
        self._emitter = emitter
        self._child: asyncio.subprocess.Process | None = None
        self._launcher: OwnedProcess | None = None
        self._ranks: dict[int, OwnedProcess] = {}
        self._rank_attempts: dict[int, int] = {}
        self._attempt = 0
        self._num_steps = 0
        self._exits: dict[int, asyncio.Task[None]] = {}
        self._waiting: asyncio.Task[None] | None = None
        self._launcher_log = LauncherLog(log)
        # Of all starts: a launcher blames by pid, when the rank may have been started again.
        self._rank_of_pid: dict[int, int] = {}
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._is_stopping = False
        self._networks: CommandNetworks | None = None
        self.links: CommandLinks | None = None

    async def make_networks(self, cluster: Cluster) -> None:
        """Make a network for each rank of `cluster`, and have the command wait in its own until it is started.

        Raises:
            EnvironmentFailure: they cannot be made.
        """
        with CommandNetworks(cluster) as networks:
            self._child = await self._spawn([*networks.prefix(), *self._job.command], networks.descriptors)
            held = await networks.wait_for(self._child, self._log)
        self._networks, self.links = networks, CommandLinks(held, self.rank_processes)

    async def start(self) -> None:
        """Start the command in a session of its own.

        Raises:
            EnvironmentFailure: it cannot be started.
        """
        self._hub.on_agent = self.on_agent
        if self._networks is None:
            self._child = await self._spawn(self._job.command)
        else:
            self._networks.let_go()
        assert self._child is not None
        with suppress(ProcessLookupError):
            self._launcher = OwnedProcess("launcher", ProcessId.of(self._child.pid))
            self._emit_start(self._launcher)
        self._waiting = asyncio.create_task(self._wait_for_end(self._child))

    async def _spawn(self, words: Sequence[str], descriptors: Sequence[int] = ()) -> asyncio.subprocess.Process:
        parent = os.getpid()

        def end_with_us() -> None:
            # SIGTERM, upon which launchers end their ranks.
            _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        try:
            with self._log.open("ab") as log:
                return await asyncio.create_subprocess_exec(
                    *words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._job.folder,
                    env=self._environment,
                    start_new_session=True,
                    pass_fds=descriptors,
                    preexec_fn=end_with_us,
                )
        except OSError as error:
            command = command_text(self._job.command)
            raise EnvironmentFailure(f"the command {command!r} cannot be started: {error.strerror}") from error

    # ---- what injectors ask ----

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The processes of `ranks`, each the one that reported last."""
        return tuple(self._ranks[rank] for rank in ranks if rank in self._ranks)

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """All ranks of `nodes`; with node 0, on which it was started, the command's own process."""
        launcher = (self._launcher,) if self._launcher is not None and 0 in nodes else ()
        ranks = tuple(owned for owned in self._ranks.values() if owned.node in nodes)
        return launcher + tuple(owned for owned in ranks if owned.process not in [one.process for one in launcher])

    def role_processes(self, role: str) -> tuple[OwnedProcess, ...]:
        """The launcher is the command's own process, the store whoever of us listens on MASTER_PORT."""
        if role == "launcher":
            return () if self._launcher is None else (self._launcher,)
        if role != "store":
            return ()
        marked = marked_processes(self._run_id)
        ports = {read_environment(process.pid).get("MASTER_PORT") for process in marked} - {None, "", "0"}
        for port in sorted(port for port in ports if port is not None and port.isdecimal()):
            if (process := listener_on(int(port), marked)) is not None:
                known = (owned for owned in self._ranks.values() if owned.process == process)
                return (next(known, OwnedProcess("launcher", process)),)
        return ()

    # ---- what happens ----

    def on_agent(self, hello: Message, process: ProcessId) -> int:
        """A rank reports for the first time; returns which of its starts this is, from 1.

        What the launcher counts is believed as long as it counts at all: a shell loop around a script does not.
        """
        rank, node = int(hello["rank"]), int(hello["node"])
        attempt = max(int(hello["attempt"]), self._rank_attempts.get(rank, 0) + 1)
        if read_environment(process.pid).get(RUN_VARIABLE) != self._run_id:
            self._emitter.emit("warning", message=f"rank {rank} (pid {process.pid}) carries no mark of this run")
            return attempt
        self._rank_attempts[rank] = attempt
        world_size = int(hello.get("world_size") or 1)
        if attempt > self._attempt:
            if self._attempt == 0 and world_size != self._job.cluster().num_ranks:
                self._emitter.emit(
                    "warning",
                    message=f"the job has {world_size} ranks, and the plan counted on {self._job.cluster().num_ranks}: "
                    "say how many with --nodes and --gpus-per-node",
                )
            self._attempt = attempt
            self._emitter.emit("attempt_started", attempt_number=attempt, world_size=world_size)
        owned = OwnedProcess("rank", process, rank=rank, node=node)
        self._ranks[rank] = owned
        self._rank_of_pid[process.pid] = rank
        self._emit_start(owned, started_rank=rank, rank_attempt=attempt)
        if process.pid not in self._exits:
            self._exits[process.pid] = asyncio.create_task(self._tell_exit(owned, attempt))
        return attempt

    def note(self, event: Event) -> None:
        """Count the steps."""
        if event.kind == "step_committed":
            self._num_steps += 1

    async def ended(self) -> Outcome:
        """Wait until the command has ended, and what it had to say was heard."""
        return await asyncio.shield(self._outcome)

    def complaint_about_start(self) -> str:
        """Why it may be that no step was seen."""
        return NO_STEP if self._ranks else NO_AGENT

    def give_up(self) -> None:
        """The job hangs: it counts as failed."""
        self._finish("failed")

    def repair_node(self, node: int) -> None:
        """Nothing: the command's own launcher repairs, or nobody."""

    def repair_rank(self, rank: int) -> None:
        """Nothing: the command's own launcher repairs, or nobody."""

    async def _wait_for_end(self, child: asyncio.subprocess.Process) -> None:
        ending = asyncio.create_task(child.wait())
        while not ending.done():
            await asyncio.wait({ending}, timeout=BLAME_POLL_SECONDS)
            self._tell_culprits()
        code = await ending
        if self._launcher is not None:
            process = self._launcher.process
            self._emitter.emit("process_exited", role="launcher", exited_pid=process.pid, exit=code)
            self._launcher = None
        await self._until_gone(FAREWELL_SECONDS)
        if not self._is_stopping and (left := self._kill_marked()):
            message = f"the command is over: {count(left, 'process')} that it left running ended by chaos"
            self._emitter.emit("warning", message=message)
        await self._hub.drained(FAREWELL_SECONDS)
        if self._outcome.done():
            return
        if code == 0 and self._num_steps:
            self._finish("completed")
            return
        how = "was" if code < 0 else "ended with"
        why = f", and {self.complaint_about_start()}" if code == 0 else self._last_lines() if code > 0 else ""
        self._emitter.emit("job_failed", reason=f"the command {how} {exit_text(code)}{why}")
        self._finish("failed")

    def _last_lines(self) -> str:
        """The end of what it printed, for the message that it failed."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - _LOG_TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        # Launchers draw rulers.
        last = [line.strip() for line in lines if any(char.isalnum() for char in line)][-_LOG_TAIL_LINES:]
        return f"; the last lines of logs/{JOB_LOG}: {' | '.join(last)}" if last else ""

    def _finish(self, outcome: Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)

    async def _tell_exit(self, owned: OwnedProcess, attempt: int) -> None:
        """Say so when a rank ends."""
        code = await exit_of(owned.process)
        self._exits.pop(owned.process.pid, None)
        self._emitter.emit(
            "process_exited",
            role="rank",
            exited_pid=owned.process.pid,
            exit=code,
            exited_rank=owned.rank,
            rank_attempt=attempt,
        )

    def _tell_culprits(self) -> None:
        """Say whom the launcher blames; a process that has not reported as a rank is nobody whom a fault can strike."""
        for pid in self._launcher_log.new_culprits():
            if (rank := self._rank_of_pid.get(pid)) is not None:
                self._emitter.emit("culprit_named", ranks=[rank], how="torchrun")

    # ---- stopping ----

    async def stop(self) -> None:
        """SIGTERM to the launcher, so that it can end its ranks in order; then SIGKILL to all that is left."""
        self._is_stopping = True
        self._finish("stopped")
        if self._launcher is not None and self._launcher.process.is_running():
            self._launcher.process.signal(signal.SIGTERM)
            # A stopped process takes no SIGTERM.
            self._launcher.process.signal(signal.SIGCONT)
            await self._until_gone(STOP_TIMEOUT_SECONDS)
        deadline = asyncio.get_running_loop().time() + STOP_TIMEOUT_SECONDS
        while self._kill_marked() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        if self._waiting is not None:
            await self._waiting
        elif self._child is not None and self._networks is not None:
            # It was made ready and never started.
            self._networks.close()
            await self._child.wait()
        if exits := list(self._exits.values()):
            await asyncio.wait(exits, timeout=STOP_TIMEOUT_SECONDS)
        for task in exits:
            task.cancel()

    def leftovers(self) -> tuple[OwnedProcess, ...]:
        """What of the command is still running, by its mark."""
        known = {owned.process: owned for owned in self._ranks.values()}
        return tuple(
            known.get(process, OwnedProcess("launcher", process)) for process in marked_processes(self._run_id)
        )

    def _kill_marked(self) -> int:
        """SIGKILL to all that carries our mark; returns how many there were."""
        left = marked_processes(self._run_id)
        for process in left:
            process.signal(signal.SIGKILL)
        return len(left)

    async def _until_gone(self, timeout_seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while marked_processes(self._run_id) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(POLL_SECONDS)

    def _emit_start(self, owned: OwnedProcess, **fields: Any) -> None:
        process = owned.process
        self._emitter.emit(
            "process_started", role=owned.role, started_pid=process.pid, start_ticks=process.start_ticks, **fields
        )
