"""Streams to the agent of a host: what an engine starts there is the agent, or passes its stream on to it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from chaos.errors import EnvironmentFailure
from chaos.host import python_module
from chaos.host.inherited import why
from harness.backends.cluster.asking import command_there, environment_here, last_line
from harness.backends.cluster.engine import Engine
from harness.node.facts import tool_version
from harness.node.messages import HELLO, Greeting
from mecefo_runtime.system.strangers import read_line
from mecefo_runtime.system.wire import WireError, decode

START_TIMEOUT_SECONDS = 60.0
_DISMISSAL_SECONDS = 1.0
_STREAM_BYTES = 1 << 22


class AgentStreams:
    """Those to the agent of `run` on `host`; what is printed there goes into a file in `logs`."""

    def __init__(self, host: str, engine: Engine, run: str, logs: Path) -> None:
        self._host = host
        self._engine = engine
        self._run = run
        self.log = logs / f"agent-{host}.log"
        # How many times something was started.
        self.num_starts = 0

    async def connect(self) -> tuple[asyncio.subprocess.Process, Greeting]:
        """Start a process on the host that is the agent, or speaks for it.

        Raises:
            EnvironmentFailure: it cannot be started.
        """
        command = command_there(self._engine, self._host, self._run)
        self.num_starts += 1
        try:
            with self.log.open("ab") as errors:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    limit=_STREAM_BYTES,
                    env=environment_here(self._engine),
                    # Neither Ctrl-C nor the end of the terminal is for it.
                    start_new_session=True,
                )
        except OSError as error:
            raise EnvironmentFailure(f"{self._host}: {command[0]} cannot be started: {why(error)}") from error
        try:
            async with asyncio.timeout(START_TIMEOUT_SECONDS):
                greeting = await self._greet(process)
        except (TimeoutError, OSError, ValueError) as error:
            code = await dismiss(process)
            raise EnvironmentFailure(f"{self._host}: {self._why_not(error, code)}") from error
        except asyncio.CancelledError:
            await dismiss(process)
            raise
        problem = greeting.problem
        if greeting.version != tool_version():
            problem = (
                f"version {greeting.version} of mecefo-chaos is installed there, and this is {tool_version()}: "
                f"type `pip install mecefo-chaos=={tool_version()}` there"
            )
        if problem:
            await dismiss(process)
            raise EnvironmentFailure(f"{self._host}: {problem}")
        return process, greeting

    async def _greet(self, process: asyncio.subprocess.Process) -> Greeting:
        assert process.stdout is not None
        if not await python_module.has_begun(process.stdout):
            raise WireError("it ended before it said anything")
        greeting = HELLO.read(decode(await read_line(process.stdout)))
        if not isinstance(greeting, Greeting):
            raise WireError("it is not an agent")
        return greeting

    def _why_not(self, error: Exception, code: int) -> str:
        """What the engine, or Python there, has said."""
        with suppress(OSError):
            if said := last_line(self.log.read_bytes()):
                return f"the agent cannot be started: {said} (exit code {code}; see {self.log})"
        slow = f"it did not answer within {START_TIMEOUT_SECONDS:g} s"
        return f"the agent cannot be started: {slow if isinstance(error, TimeoutError) else error} (exit code {code})"


async def dismiss(process: asyncio.subprocess.Process) -> int:
    """End what was started for an agent; the agent itself leaves when its input ends. Returns the exit code."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(TimeoutError):
        # A signal to one that has just ended would take its exit code (subprocess.Popen asks for it first).
        return await asyncio.wait_for(process.wait(), _DISMISSAL_SECONDS)
    for end in (process.terminate, process.kill):
        with suppress(ProcessLookupError):
            end()
        with suppress(TimeoutError):
            return await asyncio.wait_for(process.wait(), _DISMISSAL_SECONDS)
    return await process.wait()
