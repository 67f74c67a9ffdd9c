"""The links between this host and others, changed without any right: through the run's own TCP connections.

Each host acts at its own end of a link; see `chaos.host.links.connections` for how, and for what escapes it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from chaos.errors import EffectNotSeen, InjectionError
from chaos.faults.base import End
from chaos.host.links.check import COORDINATOR, Link, name_of
from chaos.host.links.connections import (
    NOT_COVERED,
    Action,
    ConnectionsRecord,
    NamedProcess,
    RuleWatch,
    connections_of,
    options_before,
)
from chaos.host.links.process_sockets import (
    OPEN_STATES,
    ConnectionGone,
    Refusal,
    canonical,
    duplicate,
)
from harness.network.connection_probe import ConnectionProbe, TrafficMeter
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

_MARK_BYTES = 4
_POLL_SECONDS = 0.02
# Keepalive sends its first probe after a second without traffic; then an answer is waited for.
_PROBE_SECONDS = 2.5
# What was under way when the rate was limited arrives in this time, and connections share the rate by then.
_SETTLE_SECONDS = 0.5
# The least share of what is to be measured that tells a rate.
_ENOUGH_RATIO = 0.1
_SCOPE_FILE = Path("/proc/sys/kernel/yama/ptrace_scope")


class ConnectionLinks:
    """See `chaos.faults.base.LinkHost`, `ConnectionHost` and `EndHost`.

    `run` is the mark of the run's processes, and `ranks` are all ranks of the job. `here` gives those of this host,
    `processes` the process of each of them that runs, and `addresses` the IP addresses of the host of any rank.
    """

    def __init__(
        self,
        run: str,
        *,
        ranks: Iterable[int],
        here: Callable[[], Collection[int]],
        processes: Callable[[], Mapping[int, ProcessId]],
        addresses: Callable[[int], Iterable[str]],
    ) -> None:
        self._run = run
        self._ranks = tuple(ranks)
        self._here = here
        self._processes = processes
        self._addresses = addresses
        self._mark = os.urandom(_MARK_BYTES).hex()
        self._num_planned = 0
        # A probe that is under way answers all who ask for the same meanwhile.
        self._probing: dict[tuple[str, ...], asyncio.Task[dict[str, Any]]] = {}

    # ---- which links ----

    def ends(self) -> tuple[End, ...]:
        """The ranks: the coordinator is on the host of rank 0."""
        return self._ranks

    def sharing_network(self, rank: int) -> tuple[int, ...]:
        """The ranks of its host."""
        here = self._here()
        if rank in here:
            return tuple(sorted(here))
        peers = self._peers_of(rank)
        return tuple(other for other in self._ranks if other not in here and self._peers_of(other) == peers)

    def ranks_here(self) -> tuple[int, ...]:
        """The ranks of this host."""
        return tuple(sorted(self._here()))

    def links_here(self, links: tuple[Link, ...]) -> tuple[Link, ...]:
        """Those of `links` with an end on this host, over which a connection of the run goes.

        Raises:
            InjectionError: one has both ends on this host, or there is no connection on any of them.
        """
        peers = {link: self._peers(link) for link in links if self._far(link) is not None}
        found = connections_of(self._run, sorted({address for of_link in peers.values() for address in of_link}))
        connected = {connection.row.peer_address for connection in found.connections}
        carrying = tuple(link for link, of_link in peers.items() if connected & set(of_link))
        if peers and not carrying:
            link, others = next(iter(peers.items()))
            raise InjectionError(Reason("no_connections", link=name_of(link), peers=", ".join(others)))
        return carrying

    def _far(self, link: Link) -> End | None:
        """The end that is on another host; None: this host has none of the two.

        Raises:
            InjectionError: both are on this host.
        """
        here = self._here()
        inside = [end for end in link if (0 if end == COORDINATOR else end) in here]
        if len(inside) == len(link):
            raise InjectionError(Reason("link_within_host", link=name_of(link)))
        return next(end for end in link if end not in inside) if inside else None

    def _peers(self, link: Link) -> tuple[str, ...]:
        far = self._far(link)
        return () if far is None else self._peers_of(far)

    def _peers_of(self, end: End) -> tuple[str, ...]:
        rank = 0 if end == COORDINATOR else end
        if not isinstance(rank, int):
            raise InjectionError(Reason("no_link", target=end))
        return tuple(sorted({canonical(address) for address in self._addresses(rank)}))

    # ---- rules ----

    def plan_rules(self, links: tuple[Link, ...], rule: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One record for all other hosts, of a rate one for each; `rule` as in `harness.network.links.NamespaceLinks`.

        Raises:
            InjectionError: it is a delay or a loss, or the processes' connections may not be changed.
        """
        if any(rule.get(key) for key in ("delay_seconds", "jitter_seconds", "loss_ratio")):
            raise InjectionError(Reason("delay_needs_net_admin"))
        of_host: dict[tuple[str, ...], set[Action]] = {}
        for link in links:
            if (far := self._far(link)) is not None:
                action = _action_of(str(rule["action"]), str(rule.get("way", "both")), is_first_far=far == link[0])
                of_host.setdefault(self._peers_of(far), set()).add(action)
        # Links of several ranks are one between their hosts, of which some may concern the other end only.
        actions: dict[tuple[str, ...], Action] = {
            peers: next((action for action in found if action != "observe"), "observe")
            for peers, found in of_host.items()
        }
        return [self._plan(peers, action, rule) for action, peers in _grouped(actions)]

    def _plan(self, peers: tuple[str, ...], action: Action, rule: Mapping[str, Any]) -> dict[str, Any]:
        self._num_planned += 1
        found = connections_of(self._run, peers)
        processes = tuple(self._processes().values())
        self._refuse_if_forbidden(found.refused, processes)
        rate = rule.get("rate_bytes_per_second")
        record = ConnectionsRecord(
            id=f"{self._mark}:{self._num_planned}",
            at=", ".join(f"rank {rank}" for rank in self.ranks_here()),
            run=self._run,
            action=action,
            peers=peers,
            rate_bytes_per_second=None if rate is None else max(1, int(rate)),
            processes=tuple(NamedProcess(pid=one.pid, start_ticks=one.start_ticks) for one in processes),
        )
        return ConnectionsRecord.from_json(
            {**record.to_json(), "before": [kept.to_json() for kept in options_before(record, found.connections)]}
        ).to_json()

    def _refuse_if_forbidden(self, refused: Iterable[Refusal], processes: Collection[ProcessId]) -> None:
        for one in refused:
            if one.process in processes:
                raise InjectionError(_forbidden(one.error))
        for process in processes:
            # Where only pidfd_getfd is forbidden, the process can still be looked at.
            try:
                _try_on(process)
            except ConnectionGone:
                continue
            except OSError as error:
                raise InjectionError(_forbidden(error.strerror)) from error

    async def apply_rules(self, records: list[dict[str, Any]]) -> float:
        """Apply the planned rules; returns when, right before the first connection was changed.

        Raises:
            InjectionError: a connection may not be changed.
        """
        applying = asyncio.create_task(
            asyncio.to_thread(self._apply, [ConnectionsRecord.from_json(r) for r in records])
        )
        try:
            return await asyncio.shield(applying)
        except OSError as error:
            raise InjectionError(_forbidden(error.strerror)) from error
        finally:
            # A thread continues, and whoever gives up undoes: no rule may come after that.
            with suppress(OSError):
                await applying

    def _apply(self, records: list[ConnectionsRecord]) -> float:
        return min((RuleWatch.apply(record).changed_seconds for record in records), default=time.monotonic())

    def describe(self, records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The evidence of rules that were applied: the mechanism, how real it is, its numbers, and what escapes it."""
        rules = []
        for record in map(ConnectionsRecord.from_json, records):
            if (watch := RuleWatch.of(record.id)) is not None:
                rules.append(
                    {"rule": record.id, "action": record.action, "peers": list(record.peers), **watch.numbers()}
                )
        return {"mechanism": "connections", "fidelity": "shaped", "rules": rules, "not_covered": list(NOT_COVERED)}

    # ---- connections ----

    async def connections(self, link: tuple[End, End], timeout_seconds: float) -> list[str]:
        """See `chaos.faults.base.ConnectionHost`: those of this host's end that can still carry data."""
        found = await asyncio.to_thread(connections_of, self._run, self._peers(link))
        return [str(connection) for connection in found.connections if connection.row.state in OPEN_STATES]

    async def end_connections(self, link: tuple[End, End], timeout_seconds: float) -> list[str]:
        """Those that the rule has shut down: it does so when it is applied."""
        peers = self._peers(link)
        return [name for watch in self._active(peers) for name in watch.ended(peers)]

    def _active(self, peers: tuple[str, ...]) -> list[RuleWatch]:
        return [watch for watch in RuleWatch.on(self._run, peers) if watch.is_active]

    # ---- looking ----

    async def probe(self, link: tuple[End, End], timeout_seconds: float) -> dict[str, Any]:
        """Whether the other host answers on the connections of the link, by acknowledgements of what is sent on them.

        Where nothing is sent, TCP keepalive is on for the probe; it sends after a second of silence at the earliest, so
        that `timeout_seconds` is extended to 2.5 s.
        """
        peers = self._peers(link)
        task = self._probing.get(peers)
        if task is None or task.done():
            task = self._probing[peers] = asyncio.create_task(self._probe(peers, timeout_seconds))
        return await asyncio.shield(task)

    async def _probe(self, peers: tuple[str, ...], timeout_seconds: float) -> dict[str, Any]:
        probe = ConnectionProbe(self._run, peers, timeout_seconds)
        deadline = time.monotonic() + max(timeout_seconds, _PROBE_SECONDS)
        try:
            while (answer := await asyncio.to_thread(probe.look)) is None:
                if time.monotonic() > deadline:
                    return probe.at_end()
                await asyncio.sleep(_POLL_SECONDS)
            return answer
        except OSError as error:
            raise InjectionError(_forbidden(error.strerror)) from error
        finally:
            await asyncio.shield(asyncio.to_thread(probe.close))

    async def measure_rate(self, link: tuple[End, End], num_bytes: int, timeout_seconds: float) -> float:
        """Bytes per second that the job's own traffic on the link reaches: nothing is sent.

        Without a rule it is what the kernel has measured last. While a rule limits it, what is acknowledged or
        received, in the time in which data waits to be sent, until it is `num_bytes`.

        Raises:
            EffectNotSeen: too little was sent within the time.
        """
        peers = self._peers(link)
        meter = TrafficMeter(self._run, peers)
        if not (active := self._active(peers)):
            return await asyncio.to_thread(meter.last_rate)
        settled_seconds = max(watch.changed_seconds for watch in active) + _SETTLE_SECONDS
        await asyncio.sleep(max(0.0, settled_seconds - time.monotonic()))
        deadline = time.monotonic() + timeout_seconds
        while await asyncio.to_thread(meter.look) < num_bytes and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        if meter.num_bytes < _ENOUGH_RATIO * num_bytes:
            moved = meter.num_bytes
            raise EffectNotSeen(Reason("too_little_traffic", link=name_of(link), bytes=moved, seconds=timeout_seconds))
        return meter.rate()

    async def close(self) -> None:
        """End what is under way. Rules that are still there are undone from their records."""
        for task in self._probing.values():
            task.cancel()
        await asyncio.gather(*self._probing.values(), return_exceptions=True)


def _grouped(actions: Mapping[tuple[str, ...], Action]) -> list[tuple[Action, tuple[str, ...]]]:
    """The addresses to which each action applies: of all hosts together, where it need not be counted for each."""
    shaped: list[tuple[Action, tuple[str, ...]]] = []
    others: dict[Action, list[str]] = {}
    for peers, action in actions.items():
        if action == "shape":
            shaped.append((action, peers))
        else:
            others.setdefault(action, []).extend(peers)
    return [*shaped, *((action, tuple(dict.fromkeys(peers))) for action, peers in others.items())]


def _action_of(action: str, way: str, *, is_first_far: bool) -> Action:
    """What this host does: a packet is dropped where it arrives."""
    if action == "reset":
        return "reset"
    if action == "shape":
        return "shape"
    arrives_here = way == "both" or way == ("out" if is_first_far else "in")
    return "drop" if arrives_here else "observe"


# ---- rights ----


def why_no_connections() -> Reason | None:
    """Why connections of other processes of this user cannot be changed on this host; None: they can.

    Tried out on a process of our own that is no descendant of this one, as the ranks of a job are none: Yama allows
    more with descendants.
    """
    try:
        process, release = _start_orphan()
    except OSError as error:
        return _forbidden(error.strerror)
    try:
        _try_on(process)
    except OSError as error:
        return _forbidden(error.strerror)
    finally:
        release.close()
    return None


def _try_on(process: ProcessId) -> None:
    """Duplicate a descriptor of a process, and close it.

    Raises:
        ConnectionGone: the process is gone, or has no descriptor.
        OSError: this process may not do that, or the kernel cannot.
    """
    for path in Path(f"/proc/{process.local_pid}/fd").iterdir():
        with suppress(ConnectionGone):
            os.close(duplicate(process, int(path.name)))
            return
    raise ConnectionGone(errno.EBADF, "no descriptor")


# The shell ends at once; what it has started waits until its input is closed.
_ORPHAN = "exec 3<&0; { read line; } <&3 3<&- >/dev/null & echo $!"


def _start_orphan() -> tuple[ProcessId, BinaryIO]:
    """A process whose parent is gone; it ends when what is returned with it is closed."""
    with subprocess.Popen(
        ["/bin/sh", "-c", _ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as shell:
        assert shell.stdin is not None and shell.stdout is not None
        release = os.fdopen(os.dup(shell.stdin.fileno()), "wb")
        try:
            return ProcessId.of(int(shell.stdout.readline())), release
        except ValueError:
            release.close()
            raise OSError(errno.ENOEXEC, "no process could be started") from None


def _forbidden(error: str | None) -> Reason:
    scope = None
    with suppress(OSError):
        scope = _SCOPE_FILE.read_text(encoding="ascii").strip()
    return Reason("connections_forbidden", error=error or "unknown", ptrace_scope=scope)
