"""Changes the links of a run's networks from outside: firewall rules at one end of each link.

Rules are planned as records first, from which alone they can be removed again (`chaos.host.links.firewall`).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from chaos.errors import EnvironmentFailure
from chaos.faults.base import End
from chaos.host import python_module
from chaos.host.links.firewall import (
    FirewallRecord,
    HolderRecord,
    enter,
    environment,
    find_tool,
    inside,
    read_time,
    restore_text,
    telling_time,
)
from chaos.host.run_processes import HELPER_VARIABLE, RUN_VARIABLE
from harness.network.link_queries import LinkQueries
from harness.network.plan import HeldNetworks
from mecefo_runtime.system.own_network import OwnNetwork

# A process has to start, on a machine that may be busy.
TOOL_TIMEOUT_SECONDS = 30.0
# Enough to tell the rules of runs that go on at the same time apart.
_MARK_BYTES = 4


def new_mark() -> str:
    """A mark that identifies the rules of one run."""
    return os.urandom(_MARK_BYTES).hex()


@dataclass(slots=True)
class _Helper:
    """A process of ours in the networks' user namespace, which ends with us."""

    process: asyncio.subprocess.Process

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class NamespaceLinks(LinkQueries):
    """The links among ranks that have networks of their own; see `chaos.faults.base.LinkHost`.

    `mark` tells this run's rules from all others.
    """

    def __init__(self, held: HeldNetworks, mark: str) -> None:
        self._held = held
        self._mark = mark
        self._num_planned = 0
        self._shapers: list[_Helper] = []
        self._prober: _Helper | None = None
        self._answers: asyncio.Task[None] | None = None
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._num_asked = 0
        self._starting = asyncio.Lock()

    # ---- rules ----

    def ends(self) -> tuple[End, ...]:
        """The coordinator, the nodes' supervisors, and the ranks."""
        return self._held.networks.ends()

    def sharing_network(self, rank: int) -> tuple[int, ...]:
        """The rank itself: each has its own network."""
        return (rank,)

    def plan_rules(self, links: tuple[tuple[End, End], ...], rule: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One record for each end at which something is to be done.

        `rule`: `action` is drop, reset or shape (see `link.SlowLink`); `way`, of each link, is out (what
        goes from the first end to the second), in, or both, which it is when nothing is said.
        """
        at: dict[End, list[tuple[str, End]]] = {}
        for near, far in links:
            for end, chain, peer in places_of(near, far, str(rule["action"]), str(rule.get("way", "both"))):
                at.setdefault(end, []).append((chain, peer))
        return [self._plan(end, places, rule) for end, places in at.items()]

    def _plan(self, end: End, places: list[tuple[str, End]], rule: Mapping[str, Any]) -> dict[str, Any]:
        self._num_planned += 1
        number = self._num_planned
        comment = f"chaos:{self._mark}:{number}"
        networks, holder, action = self._held.networks, self._held.holder, str(rule["action"])
        is_shaped = action == "shape"
        return FirewallRecord(
            at=f"rank {end}" if isinstance(end, int) else end,
            holder=HolderRecord(pid=holder.pid, start_ticks=holder.start_ticks),
            descriptor=networks.of(end).descriptor,
            comment=comment,
            rules=tuple(
                tuple(words)
                for chain, peer in places
                for words in rules_for(chain, networks.of(peer).address, action, number, comment)
            ),
            queue=number if is_shaped else None,
            shape={key: rule[key] for key in rule if key not in ("action", "way")} if is_shaped else None,
        ).to_json()

    async def apply_rules(self, records: list[dict[str, Any]]) -> float:
        """Add the planned rules, those of one rank all at once; returns when the first of them took effect."""
        return min(await all_over(*(self._apply(FirewallRecord.from_json(record)) for record in records)))

    async def _apply(self, record: FirewallRecord) -> float:
        if record.queue is not None:
            await self._start_shaper(record)
        text = restore_text("-I", record.rules)
        began = time.monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                *inside(record, telling_time([find_tool("iptables-restore"), "--noflush"])),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment(),
            )
            try:
                async with asyncio.timeout(TOOL_TIMEOUT_SECONDS):
                    printed, said = await process.communicate(text.encode())
            finally:
                # Whoever gives up undoes: no rule may come after that, and what is in the kernel is over only when the
                # process is.
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        except (OSError, TimeoutError) as error:
            raise EnvironmentFailure(f"rules cannot be added at {record.at}: {error!r}") from error
        if process.returncode:
            raise EnvironmentFailure(f"rules cannot be added at {record.at}: {said.decode().strip()}")
        return read_time(printed.decode(), began)

    async def _start_shaper(self, record: FirewallRecord) -> None:
        words = (str(os.getpid()), str(record.queue), json.dumps(record.shape))
        process = await asyncio.create_subprocess_exec(
            *inside(record, python_module.command("harness.network.shaper", *words)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_own_environment(),
            start_new_session=True,
        )
        self._shapers.append(_Helper(process))
        assert process.stdout is not None and process.stderr is not None
        try:
            async with asyncio.timeout(TOOL_TIMEOUT_SECONDS):
                if await python_module.has_begun(process.stdout):
                    return
                said = (await process.stderr.read()).decode().strip().splitlines()
        except TimeoutError:
            said = [f"it did not start within {TOOL_TIMEOUT_SECONDS:g} s"]
        reason = said[-1] if said else "it ended immediately"
        raise EnvironmentFailure(f"packets at {record.at} cannot be queued: {reason}")

    # ---- looking ----

    async def _ask(self, link: tuple[End, End], timeout_seconds: float, question: Mapping[str, Any]) -> dict[str, Any]:
        async with self._starting:
            if self._prober is None:
                self._prober = await self._start_prober()
                self._answers = asyncio.create_task(self._read_answers(self._prober.process))
        self._num_asked += 1
        number = self._num_asked
        told = self._asked[number] = asyncio.get_running_loop().create_future()
        near, far = (_to_list(self._held.networks.of(end)) for end in link)
        whole = {**question, "id": number, "from": near, "to": far, "timeout_seconds": timeout_seconds}
        stdin = self._prober.process.stdin
        assert stdin is not None
        stdin.write(json.dumps(whole).encode() + b"\n")
        try:
            async with asyncio.timeout(timeout_seconds + TOOL_TIMEOUT_SECONDS):
                answer = await told
        except TimeoutError:
            raise EnvironmentFailure("the process that sends probes does not answer") from None
        finally:
            self._asked.pop(number, None)
        if "error" in answer:
            raise EnvironmentFailure(f"link {link[0]}-{link[1]} cannot be probed: {answer['error']}")
        return {key: value for key, value in answer.items() if key != "id"}

    async def _start_prober(self) -> _Helper:
        pid = self._held.holder.local_pid
        anywhere = self._held.networks.coordinator.descriptor
        words = python_module.command("harness.network.prober", str(os.getpid()), str(pid))
        return _Helper(
            await asyncio.create_subprocess_exec(
                *enter(pid, anywhere, words),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=_own_environment(),
                start_new_session=True,
            )
        )

    async def _read_answers(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        await python_module.has_begun(process.stdout)
        while line := await process.stdout.readline():
            answer = json.loads(line)
            told = self._asked.get(int(answer["id"]))
            if told is not None and not told.done():
                told.set_result(answer)

    async def close(self) -> None:
        """End our processes in the networks. Rules that are still there go with the networks."""
        helpers = [*self._shapers, *([] if self._prober is None else [self._prober])]
        await asyncio.gather(*(helper.end() for helper in helpers))
        if self._answers is not None:
            await self._answers


def _own_environment() -> dict[str, str]:
    """Of our helpers: with a mark of their own, since they are none of the processes of the run's job."""
    others = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
    run = os.environ.get(RUN_VARIABLE)
    return others if run is None else {**others, HELPER_VARIABLE: run}


def _to_list(network: OwnNetwork) -> list[Any]:
    return [network.descriptor, network.address]


async def all_over(*adding: Awaitable[float]) -> list[float]:
    """Wait for all of them, even if one fails: the failure triggers the undo, and no rule may be added after that."""
    times = []
    for told in await asyncio.gather(*adding, return_exceptions=True):
        if isinstance(told, BaseException):
            raise told
        times.append(told)
    return times


def places_of(near: End, far: End, action: str, way: str) -> list[tuple[End, str, End]]:
    """The places of a link's rules: (end, chain, peer)."""
    if action == "shape":
        # Where packets arrive: those that wait where they leave count as unsent, and TCP sends no more until they go.
        places = {"out": [(far, "INPUT", near)], "in": [(near, "INPUT", far)]}
    else:
        places = {"out": [(near, "OUTPUT", far)], "in": [(near, "INPUT", far)]}
    return [*places["out"], *places["in"]] if way == "both" else places[way]


def rules_for(chain: str, address: str, action: str, queue: int, comment: str) -> list[list[str]]:
    """The rules, each a chain and its words, that do `action` to what goes to `address` or comes from it."""
    marked = ["-m", "comment", "--comment", comment]
    where = [chain, "-d" if chain == "OUTPUT" else "-s", f"{address}/32"]
    match action:
        case "drop":
            return [[*where, *marked, "-j", "DROP"]]
        case "reset":
            # Two rules that answered resets too would take each other's for packets of the link.
            reject = ["-j", "REJECT", "--reject-with", "tcp-reset"]
            not_a_reset = ["-p", "tcp", "-m", "tcp", "--tcp-flags", "RST", "NONE"]
            return [[*where, *not_a_reset, *marked, *reject], [*where, "!", "-p", "tcp", *marked, "-j", "DROP"]]
        case "shape":
            return [[*where, *marked, "-j", "NFQUEUE", "--queue-num", str(queue), "--queue-bypass"]]
        case _:
            raise ValueError(f"there is no operation {action} on a link")
