"""The backend of an external job on this machine: a command whose agents identify its ranks."""

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

from chaos.errors import EnvironmentFailure
from chaos.experiment.command_job import CommandConfig, command_text
from chaos.host import inherited
from chaos.host.join_network import NCCL_LOG_VARIABLE
from chaos.host.links.nccl_transport import LOG_NAME
from chaos.host.run_files import JOB_LOG
from chaos.host.run_processes import RUN_VARIABLE
from harness.backends.base import AnyConfig, OnThisHost
from harness.backends.command.networks import CommandLinks, CommandNetworks
from harness.backends.command.reset import reset
from harness.backends.command.run import CommandRun
from harness.backends.command.start import agent_environment, with_site
from harness.control.control_server import ControlServer
from harness.node.processes_by_env import session_processes
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import MAIN_JOB
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.run_records import Warned

_PR_SET_PDEATHSIG = 1
# Resolved before any fork: afterwards, in the child, only the call itself is safe.
_PRCTL = ctypes.CDLL(None).prctl


class CommandBackend(OnThisHost):
    """Runs commands on this machine; `logs` takes what the command prints.

    Of `networked`, whoever starts the ranks and every rank get networks of their own; None: they have the machine's.
    """

    # What a launcher starts does not die with it, nor with us.
    may_outlive: ClassVar[bool] = True
    # Both would have half of the machine, and the same files.
    can_run_beside: ClassVar[bool] = False

    def __init__(self, control: ControlServer, logs: Path, emitter: Emitter, networked: Cluster | None = None) -> None:
        self._networked = networked
        self._control = control
        self._logs = logs
        self._emitter = emitter
        self.jobs: list[LocalCommand] = []

    async def open(self) -> None:
        """Nothing to prepare: the command starts its own processes."""
        if inherited.children_were_ignored():
            message = "SIGCHLD was ignored here, and is not for the command: its launcher must know how its ranks ended"
            self._emitter.emit(Warned(message=message))

    async def prepare_job(self, name: str, job: AnyConfig, *, with_agents: bool) -> LocalCommand:
        """Prepare a job without starting it."""
        assert isinstance(job, CommandConfig)
        # By its name all that the command starts is known, whoever watches over the run.
        run_id = os.environ[RUN_VARIABLE]
        environment = {**os.environ, **job.environment, RUN_VARIABLE: run_id, "PYTHONUNBUFFERED": "1"}
        await reset(job, {**os.environ, **job.environment}, self._logs, self._emitter.of_job(name))
        if with_agents:
            environment = with_site(environment) | agent_environment(self._address(), name)
        if self._networked is not None:
            environment[NCCL_LOG_VARIABLE] = str(self._logs.resolve() / LOG_NAME)
        log = self._logs / (JOB_LOG if name == MAIN_JOB else f"{name}-{JOB_LOG}")
        running = self._command(self._control, name, job, run_id, environment, log, self._emitter.of_job(name))
        self.jobs.append(running)
        if self._networked is not None:
            await running.make_networks(self._networked)
            message = "the command's ranks have separate networks, from which nothing outside can be reached"
            self._emitter.emit(Warned(message=message))
        return running

    def _address(self) -> str:
        """Where the processes of the job report."""
        return self._control.address

    def _command(self, *arguments: Any) -> LocalCommand:
        return LocalCommand(*arguments)

    async def close(self) -> None:
        """Stop what runs."""
        for job in self.jobs:
            await job.stop()


class LocalCommand(CommandRun):
    """One command on this machine."""

    def __init__(
        self,
        control: ControlServer,
        name: str,
        job: CommandConfig,
        run_id: str,
        environment: dict[str, str],
        log: Path,
        emitter: Emitter,
    ) -> None:
        super().__init__(control, name, job, run_id, {0: log}, emitter)
        self._environment = environment
        self._log = log
        self._child: asyncio.subprocess.Process | None = None
        self._reaping: asyncio.Task[None] | None = None
        # It began a session: what it starts is in that, even where it is given an environment without our mark.
        self._leader: ProcessId | None = None
        self._networks: CommandNetworks | None = None

    async def make_networks(self, cluster: Cluster) -> None:
        """Make a network for each rank of `cluster`, and have the command wait in its own until it is started.

        Raises:
            EnvironmentFailure: they cannot be made.
        """
        with CommandNetworks(cluster) as networks:
            words = [*networks.prefix(), *self._job.command]
            self._child = await self._spawn(words, networks.descriptors, has_own_limits=False)
            held = await networks.wait_for(self._child, self._log)
        self._networks, self.links = networks, CommandLinks(held, self.rank_processes)

    async def start(self) -> None:
        """Start the command in a session of its own.

        Raises:
            EnvironmentFailure: it cannot be started.
        """
        self._control.on_agent, self._control.on_launch = self.on_agent, self.on_launch
        if self._networks is None:
            self._child = await self._spawn(self._job.command)
        else:
            self._networks.let_go()
        assert self._child is not None
        self._watch_over(self._child)
        self._follow()

    def _watch_over(self, child: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            self._leader = ProcessId.of(child.pid)
            self._has_begun(0, self._leader)
        self._reaping = asyncio.create_task(self._reap(child))

    async def _start_again(self) -> None:
        """See `CommandRun`. Networks that were made for its ranks cannot be used again."""
        if self._networks is not None:
            raise EnvironmentFailure("a command whose ranks have networks of their own cannot be started again")
        self._child = await self._spawn(self._job.command)
        self._watch_over(self._child)

    async def _spawn(
        self, words: Sequence[str], descriptors: Sequence[int] = (), *, has_own_limits: bool = True
    ) -> asyncio.subprocess.Process:
        """`has_own_limits`: those that the user has set; else it is still us who need ours."""
        parent, open_files = os.getpid(), inherited.open_file_limits()[0]

        def begin() -> None:
            if has_own_limits:
                inherited.give_back_open_files(open_files)
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
                    preexec_fn=begin,
                )
        except OSError as error:
            command = command_text(self._job.command)
            raise EnvironmentFailure(f"the command {command!r} cannot be started: {inherited.why(error)}") from error

    async def _reap(self, child: asyncio.subprocess.Process) -> None:
        self._has_ended(0, await child.wait())

    def _own_processes(self) -> list[ProcessId]:
        """By our mark, and by its session."""
        session = [] if self._leader is None else session_processes(self._leader)
        return sorted({*super()._own_processes(), *session}, key=lambda process: process.pid)

    def _is_own(self, pid: int) -> bool:
        if super()._is_own(pid):
            return True
        with suppress(OSError):
            return self._leader is not None and self._leader.is_running() and os.getsid(pid) == self._leader.local_pid
        return False

    def _start_setting(self, name: str) -> str | None:
        return self._environment.get(name)

    async def _bury(self) -> None:
        if self._waiting is not None:
            await self._waiting
        elif self._child is not None and self._networks is not None:
            # It was made ready and never started.
            self._networks.close()
            await self._child.wait()
