"""The loss of a host: a command of the site's switches it off, and its agent falls silent."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from contextlib import suppress
from typing import Any

from chaos.errors import EffectNotSeen, InjectionError, TargetNotFound
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import Act, FaultContext
from chaos.host.inherited import why
from chaos.language.target import ResolvedTarget
from mecefo_runtime.system.reason import Reason

COMMAND_SECONDS = 120.0
# An agent speaks every second: a host that says nothing for so long is gone, or cut off.
SILENT_SECONDS = 3.5
_POLL_SECONDS = 0.05
_SAID_CHARACTERS = 300


class PowerLoss:
    """Of the hosts that are the nodes of one incident, by `command`."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._hosts: dict[int, str] = {}
        self._ended_seconds = 0.0

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """The ranks on the hosts.

        Raises:
            TargetNotFound: a node is no host with an agent, such as the one that chaos itself runs on.
        """
        hosts = context.hosts
        for node in target.nodes:
            if hosts is None or hosts.silent_seconds(node) is None:
                raise TargetNotFound(Reason("no_agent_on_node", node=node))
            self._hosts[node] = hosts.name_of(node)
        processes = () if hosts is None else hosts.processes_on(target.nodes)
        return Act(processes, ProcessesRecord.of(()).to_json())

    async def apply(self) -> None:
        """Run the command, once for each host.

        Raises:
            InjectionError: it cannot be run, or does not end with exit code 0.
        """
        for node, host in self._hosts.items():
            command = self._command.replace("{host}", host).replace("{node}", str(node))
            try:
                process = await asyncio.create_subprocess_shell(
                    command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise InjectionError(Reason("power_command_failed", command=command, said=why(error))) from error
            try:
                said, _ = await asyncio.wait_for(process.communicate(), COMMAND_SECONDS)
            except TimeoutError:
                # It leads a session: what it started goes with it.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.communicate()
                late = f"it has not ended within {COMMAND_SECONDS:g} s"
                raise InjectionError(Reason("power_command_failed", command=command, said=late)) from None
            if process.returncode:
                text = said.decode(errors="replace").strip()[-_SAID_CHARACTERS:]
                told = f"exit code {process.returncode}" + (f": {text}" if text else "")
                raise InjectionError(Reason("power_command_failed", command=command, said=told))
        self._ended_seconds = time.monotonic()

    async def verify(self, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Wait until the hosts are silent.

        Raises:
            EffectNotSeen: one of them still speaks.
        """
        assert context.hosts is not None
        deadline = time.monotonic() + timeout_seconds
        while True:
            silent = {node: context.hosts.silent_seconds(node) or 0.0 for node in self._hosts}
            if min(silent.values()) >= SILENT_SECONDS:
                break
            if time.monotonic() > deadline:
                speaking = [self._hosts[node] for node, seconds in silent.items() if seconds < SILENT_SECONDS]
                raise EffectNotSeen(Reason("host_still_speaks", hosts=speaking, seconds=timeout_seconds))
            await asyncio.sleep(_POLL_SECONDS)
        names = ", ".join(self._hosts.values())
        shown = {self._hosts[node]: None if math.isinf(one) else round(one, 3) for node, one in silent.items()}
        return {
            "summary": f"the power command ended with exit code 0, and nothing came from {names} any more",
            "command": self._command,
            "silent_seconds": shown,
        }
