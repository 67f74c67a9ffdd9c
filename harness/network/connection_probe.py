"""What goes over the connections of a link, from what the kernel knows of them (TCP_INFO): answers and rates."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from socket import IPPROTO_TCP, TCP_USER_TIMEOUT, socket
from typing import Any

from chaos.host.links.connections import PROBING, Keepalive, RuleWatch, connections_of, usual_keepalive
from chaos.host.links.process_sockets import CLOSE_WAIT, ESTABLISHED, Connection, ConnectionGone, TcpInfo

_SEARCH_SECONDS = 0.1
# An answer that is not older shows that the link works.
_RECENT_SECONDS = 1.0
# How long nothing must come after something was sent. Acknowledgements are late by at most 40 ms in Linux.
_SILENCE_SECONDS = 0.2
_SILENT_ROUND_TRIPS = 4
# Ages in TCP_INFO are counted in the kernel's ticks, of 10 ms at most.
_AGE_ERROR_SECONDS = 0.02
# Bytes that arrive with longer pauses between them are not one flow: so many segments at the limited rate.
_FLOW_PAUSE_SECONDS = 0.1
_FLOW_PAUSE_UNITS = 6
# How much more a connection receives than it sends, for its own rate to say nothing of the link.
_RECEIVES_RATIO = 10
_CONNECTED = (ESTABLISHED, CLOSE_WAIT)


class _Connections:
    """The connections of a run to `peers`, looked for again every 0.1 s."""

    def __init__(self, run: str, peers: tuple[str, ...]) -> None:
        self._run = run
        self._peers = peers
        self._searched_seconds = 0.0
        self._connections: tuple[Connection, ...] = ()

    def connections(self, now: float) -> tuple[Connection, ...]:
        if now - self._searched_seconds >= _SEARCH_SECONDS:
            found = connections_of(self._run, self._peers, max_age_seconds=_SEARCH_SECONDS)
            self._connections = found.connections
            self._searched_seconds = now
        return self._connections

    def active(self) -> list[RuleWatch]:
        return [watch for watch in RuleWatch.on(self._run, self._peers) if watch.is_active]

    def changed_seconds(self) -> float:
        """When a rule was last applied or removed."""
        return max((watch.changed_seconds for watch in RuleWatch.on(self._run, self._peers)), default=0.0)


class ConnectionProbe:
    """Whether the other host answers on at least one connection.

    Without a rule an answer within the last second counts. Under a rule the link is cut when each connection has sent
    something since, or has dropped what came, and nothing was acknowledged. One that has nothing to send is waited for
    only for `patience_seconds`, if others have.
    """

    def __init__(self, run: str, peers: tuple[str, ...], patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._where = _Connections(run, peers)
        self._began_seconds = time.monotonic()
        self._lock = threading.Lock()
        self._is_closed = False
        self._kept: dict[int, tuple[Connection, Keepalive]] = {}
        # By inode: since when an answer would count, how the connection was then, and when it was seen to have sent
        # something since, or to have dropped what came.
        self._since: dict[int, tuple[float, TcpInfo]] = {}
        self._asked: dict[int, float] = {}

    def look(self) -> dict[str, Any] | None:
        """The answer of `chaos.faults.base.LinkHost.probe`; None: it is not known yet."""
        with self._lock:
            return None if self._is_closed else self._look()

    def _look(self) -> dict[str, Any] | None:
        watches = self._where.active()
        for watch in watches:
            # What has just been connected is not taken for an answer.
            watch.look()
        now = time.monotonic()
        is_cut = any(watch.record.action in ("drop", "observe") for watch in watches)
        read: list[tuple[Connection, TcpInfo]] = []
        for connection in self._where.connections(now):
            with suppress(ConnectionGone), connection.opened() as opened:
                info = TcpInfo.read(opened)
                if info.state in _CONNECTED:
                    read.append((connection, info))
                    if is_cut or not self._is_recent(info, now):
                        self._keep_alive(connection, opened)
        if any(watch.record.action == "reset" for watch in watches):
            return _answer(read[0][1] if read else None)
        if is_cut:
            return self._silence(watches, read, now)
        answered = next((info for _, info in read if self._is_recent(info, now)), None)
        return None if answered is None else _answer(answered)

    def at_end(self) -> dict[str, Any]:
        """The answer when nothing more is waited for: under a rule, what was not seen to be cut is not."""
        is_cut = any(watch.record.action in ("drop", "observe") for watch in self._where.active())
        return {"reached": is_cut, "round_trip_seconds": 0.0 if is_cut else None}

    def close(self) -> None:
        """Give the connections the options of keepalive back that they had; a look in another thread is waited for."""
        with self._lock:
            self._is_closed = True
            for connection, before in self._kept.values():
                with suppress(ConnectionGone), connection.opened() as opened:
                    before.set_on(opened)

    def _is_recent(self, info: TcpInfo, now: float) -> bool:
        age_seconds = min(info.ack_age_seconds, info.data_age_seconds)
        oldest = max(self._where.changed_seconds() + _AGE_ERROR_SECONDS, self._began_seconds - _RECENT_SECONDS)
        return now - age_seconds > oldest

    def _keep_alive(self, connection: Connection, opened: socket) -> None:
        # A program that has set a time after which it gives its connection up must not lose it by our probes.
        if connection.inode in self._kept or opened.getsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT):
            return
        before = Keepalive.of(opened)
        # Of a probe that did not end in order.
        self._kept[connection.inode] = (connection, usual_keepalive() if before == PROBING else before)
        PROBING.set_on(opened)

    def _silence(
        self, watches: list[RuleWatch], read: list[tuple[Connection, TcpInfo]], now: float
    ) -> dict[str, Any] | None:
        if not read:
            return _answer(None)
        is_waiting = now - self._began_seconds < self._patience_seconds
        num_silent = 0
        for connection, info in read:
            if self._is_silent(watches, connection, info, now):
                num_silent += 1
            elif connection.inode in self._asked or is_waiting:
                return None
        return _answer(None) if num_silent else None

    def _is_silent(self, watches: list[RuleWatch], connection: Connection, info: TcpInfo, now: float) -> bool:
        inode = connection.inode
        if inode not in self._since:
            known = next((since for watch in watches if (since := watch.covers_since(inode)) is not None), None)
            self._since[inode] = known or (now, info)
        since_seconds, before = self._since[inode]
        answered_seconds = now - info.ack_age_seconds
        if answered_seconds > since_seconds + _AGE_ERROR_SECONDS:
            # What was sent before the answer is no question any more.
            self._since[inode] = (answered_seconds, info)
            self._asked.pop(inode, None)
            return False
        has_sent = info.data_segments_out > before.data_segments_out or info.num_unanswered_probes > 0
        # Without a rule here, what is dropped may have come twice.
        is_dropping = any(watch.record.action == "drop" for watch in watches)
        if has_sent or (is_dropping and info.packets_dropped > before.packets_dropped):
            asked_seconds = self._asked.setdefault(inode, now)
            return now - asked_seconds >= max(_SILENCE_SECONDS, _SILENT_ROUND_TRIPS * info.round_trip_seconds)
        return False


def _answer(info: TcpInfo | None) -> dict[str, Any]:
    return {"reached": info is not None, "round_trip_seconds": None if info is None else info.round_trip_seconds}


class TrafficMeter:
    """How quickly the job's own traffic goes over the connections of a link."""

    def __init__(self, run: str, peers: tuple[str, ...]) -> None:
        self._where = _Connections(run, peers)
        self._last: dict[int, TcpInfo] = {}
        self._sent_bytes = self._arrived_bytes = 0
        self._busy_seconds = self._flow_seconds = 0.0
        self._arrived_seconds: float | None = None

    @property
    def num_bytes(self) -> int:
        """What has gone over it, in the direction in which more has."""
        return max(self._sent_bytes, self._arrived_bytes)

    def last_rate(self) -> float:
        """Bytes per second that the quickest connection reached when it last had much to carry, as the kernel knows."""
        rates = [0.0]
        for connection in self._where.connections(time.monotonic()):
            with suppress(ConnectionGone), connection.opened() as opened:
                info = TcpInfo.read(opened)
                round_trip_seconds = max(info.round_trip_seconds, info.receiver_round_trip_seconds)
                if info.bytes_received > _RECEIVES_RATIO * info.bytes_acknowledged and round_trip_seconds:
                    # It hardly sends: what its program took in a round trip is all that the kernel has measured.
                    rates.append(info.receiver_window_bytes / round_trip_seconds)
                else:
                    rates.append(float(info.delivery_rate))
        return max(rates)

    def rate(self) -> float:
        """Bytes per second while there was something to carry; 0.0: there was nothing."""
        is_sent = self._sent_bytes >= self._arrived_bytes
        seconds = self._busy_seconds if is_sent else self._flow_seconds
        return self.num_bytes / seconds if seconds else 0.0

    def look(self) -> int:
        """Add what has gone over it since the last look; returns `num_bytes`."""
        now = time.monotonic()
        sent_bytes = arrived_bytes = 0
        busy_seconds, unit_bytes = 0.0, 0
        for connection in self._where.connections(now):
            with suppress(ConnectionGone), connection.opened() as opened:
                info = TcpInfo.read(opened)
                last = self._last.get(connection.inode, info)
                self._last[connection.inode] = info
                sent_bytes += info.bytes_acknowledged - last.bytes_acknowledged
                arrived_bytes += info.bytes_received - last.bytes_received
                busy_seconds = max(busy_seconds, info.busy_seconds - last.busy_seconds)
                unit_bytes = max(unit_bytes, info.receive_unit_bytes)
        self._sent_bytes += sent_bytes
        # Several are busy at the same time. The kernel's time is that of its bytes; ours may be late on a busy machine.
        self._busy_seconds += busy_seconds
        if arrived_bytes:
            self._add_arrived(arrived_bytes, unit_bytes, now)
        return self.num_bytes

    def _add_arrived(self, num_bytes: int, unit_bytes: int, now: float) -> None:
        rates = [watch.record.rate_bytes_per_second or 0 for watch in self._where.active()]
        pause_seconds = max(_FLOW_PAUSE_SECONDS, _FLOW_PAUSE_UNITS * unit_bytes / max([1, *rates]))
        last_seconds, self._arrived_seconds = self._arrived_seconds, now
        if last_seconds is not None and now - last_seconds <= pause_seconds:
            # What began a flow came in an unknown time.
            self._arrived_bytes += num_bytes
            self._flow_seconds += now - last_seconds
