"""A rank's side of membership: the control connection, and the coordinator's last request.

One thread reads the connection and one sends heartbeats; the training thread never waits on the network here without
a deadline. Without a coordinator training continues, and the rank reconnects as soon as there is one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from mecefo_runtime.comm.link_watch import LinkWatch
from mecefo_runtime.comm.messages import (
    Alive,
    CutOff,
    Evicted,
    Form,
    FromCoordinator,
    FromRank,
    Goodbye,
    Hello,
    Join,
    Parked,
    Peers,
    PeersLost,
    Probe,
    Probed,
    Regroup,
    Stop,
    Value,
    from_coordinator,
    to_wire,
)
from mecefo_runtime.comm.operations import EpochOver
from mecefo_runtime.comm.participant import CoordinatorAddress, Participant
from mecefo_runtime.comm.probe import find_unreachable, find_unsteady
from mecefo_runtime.comm.rendezvous import PeerValues
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.system.wire import Connection, WireError, parse_address

RECONNECT_SECONDS = 0.02
CONNECT_TIMEOUT_SECONDS = 1.0
ABORT_AGAIN_SECONDS = 0.02
LINK_CHECK_SECONDS = 0.25


class Stopped(RuntimeError):
    """The coordinator ended the job; the text says why."""


class CoordinatorLost(RuntimeError):
    """No coordinator was reachable for the job's time-out, and this rank cannot continue without one."""


class CoordinatorClient:
    """What this rank knows of the job's membership. `hello` is its first one.

    A rank that needs a coordinator waits for `coordinator_timeout_seconds`; None: without a limit.
    """

    def __init__(
        self,
        coordinator: CoordinatorAddress,
        hello: Hello,
        heartbeat_timeout_seconds: float,
        participant: Participant,
        coordinator_timeout_seconds: float | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._participant = participant
        self._first_hello = hello
        self._heartbeat_seconds = heartbeat_timeout_seconds / 4
        self._link_timeout_seconds = heartbeat_timeout_seconds / 2
        self._steady_seconds = 2 * heartbeat_timeout_seconds
        self._coordinator_timeout_seconds = coordinator_timeout_seconds
        self._connection: Connection | None = None
        self._away_since_seconds = time.monotonic()
        self._closed = False
        self._abort_thread: threading.Thread | None = None
        self.changed = threading.Condition()
        self.epoch = 0
        self.target = 0
        self.must_leave = False
        # Over whose loss; nobody's: for another reason.
        self.lost: frozenset[int] = frozenset()
        self._leave_for = 0
        self._is_parked = False
        self.is_evicted = False
        # Evicted because of its links: not to come back before it can reach the others.
        self.is_cut_off = False
        self._cut_off_from: set[int] = set()
        self._peers: Mapping[int, str] | None = None
        # The epoch that this rank is in or on its way into.
        self._formed: Form | None = None
        self._link_watch = LinkWatch(
            heartbeat_timeout_seconds,
            self._progress,
            self._other_members,
            self._report_lost,
            parse_address(hello.address)[0],
        )
        self._next_form: Form | None = None
        self.farewell: Goodbye | Stop | None = None
        self.values = PeerValues(self.send, self.changed)

    def start(self) -> None:
        """Connect, retrying without a limit, and start listening."""
        threading.Thread(target=self._listen, name="membership", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        self._link_watch.start()

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._link_watch.close()
        if self._connection is not None:
            self._connection.close()

    # ---- for the training thread ----

    @property
    def wants_boundary(self) -> bool:
        """Whether the members are asked to park at the next step boundary."""
        return self.target > self.epoch

    def check(self) -> None:
        """Raise EpochOver when the epoch must be left at once."""
        if self.must_leave:
            raise EpochOver("the coordinator started a new epoch")

    def require_coordinator(self) -> None:
        """Call this repeatedly while waiting for the coordinator.

        Raises:
            CoordinatorLost: it has been away for too long.
        """
        limit_seconds = self._coordinator_timeout_seconds
        if limit_seconds is None or self._connection is not None:
            return
        # Read after the connection, and written before it: that of this absence, or of none.
        if time.monotonic() - self._away_since_seconds > limit_seconds:
            raise CoordinatorLost(
                f"there has been no coordinator at {self._coordinator.address} for {limit_seconds:g} s"
            )

    def send(self, message: FromRank) -> bool:
        """Send to the coordinator; returns False when there is none. The next hello repeats everything that matters."""
        connection = self._connection
        if connection is None:
            return False
        try:
            connection.send(to_wire(message))
        except OSError:
            return False
        return True

    def park(self) -> Form | Goodbye | Evicted:
        """Report this rank's state for the new epoch, and again for each newer one, until the coordinator answers.

        Raises:
            Stopped: the job is over for a reason that is not success.
            CoordinatorLost: nobody is there to tell.
        """
        parked_for, self._formed = None, None
        while True:
            self.require_coordinator()
            with self.changed:
                self.must_leave = False
                self._is_parked = True
                if self.farewell is not None:
                    return self._take_farewell()
                if self.is_evicted:
                    return Evicted()
                if self._next_form is not None and self._next_form.epoch >= self.target:
                    form, self._next_form = self._next_form, None
                    self._is_parked, self._formed = False, form
                    return form
                target = self.target
                if parked_for == target:
                    self.changed.wait(timeout=1.0)
                    continue
            # Outside the lock: the listener may need it while the coordinator takes its time.
            if target > self.epoch and not self.send(Parked(target, self._participant.report())):
                time.sleep(RECONNECT_SECONDS)
                continue
            parked_for = target

    def agree_on(self, costs: Costs) -> None:
        """Keep the costs that all ranks agreed on; a new coordinator learns them from the next hello."""
        with self.changed:
            self._first_hello = replace(self._first_hello, costs=costs)

    def enter(self, epoch: int) -> None:
        """The training thread is in `epoch` now."""
        with self.changed:
            self.epoch = epoch
            self.must_leave = self._leave_for > epoch

    def wait_farewell(self) -> bool:
        """After the last step: wait for the end of the job; False when the coordinator asks for a regroup first.

        Raises:
            Stopped: the job is over for a reason that is not success.
            CoordinatorLost: nobody is there to say it.
        """
        with self.changed:
            while self.farewell is None and not self.wants_boundary:
                self.require_coordinator()
                self.changed.wait(timeout=1.0)
            if self.farewell is None:
                return False
            self._take_farewell()
            return True

    def wait_until(self, is_done: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait until `is_done` or the epoch must be left; False when neither came in time.

        Raises:
            EpochOver: it must be left.
        """
        with self.changed:
            arrived = self.changed.wait_for(lambda: is_done() or self.must_leave, timeout_seconds)
        self.check()
        return arrived

    def notify(self) -> None:
        """Wake all waiting threads."""
        with self.changed:
            self.changed.notify_all()

    def find_unreachable(self) -> list[int]:
        """The members of the epoch that accept no connection from this rank within the links' time-out.

        The search stops as soon as the epoch must be left.
        """
        return find_unreachable(self._other_members(), self._link_timeout_seconds, lambda: self.must_leave)

    def _other_members(self) -> dict[int, str]:
        form = self._formed
        return {} if form is None else self._others(form.addresses)

    def _others(self, addresses: Mapping[int, str]) -> dict[int, str]:
        return {rank: address for rank, address in addresses.items() if rank != self._first_hello.rank}

    def _progress(self) -> tuple[object, ...]:
        """What changes as long as anything continues."""
        return self.epoch, self._is_parked, self._participant.committed_step

    def _report_lost(self, unreachable: list[int]) -> None:
        """From the link watch's thread."""
        if (form := self._formed) is not None:
            self.send(PeersLost(form.epoch, tuple(unreachable)))

    def _answer(self, probe: Probe) -> None:
        others = self._others(probe.addresses)
        stalled = set(self._link_watch.find_stalled()) & set(others)
        unreachable = sorted({*find_unreachable(others, self._link_timeout_seconds), *stalled})
        self.send(Probed(probe.check, tuple(unreachable)))

    def _await_links(self) -> None:
        """While cut off: wait until all whom the coordinator names can be reached, or the job is over.

        Where they can be from the first moment, the link comes and goes: then it has to stay for a while.
        """

        def is_over() -> bool:
            return self.farewell is not None

        must_stay: bool | None = None
        while self.is_cut_off and not is_over():
            self.require_coordinator()
            self._peers = None
            self.send(CutOff())
            with self.changed:
                self.changed.wait_for(lambda: self._peers or self.farewell, self._link_timeout_seconds)
                peers = self._peers
            if peers is not None:
                others = self._others(peers)
                can_reach = not find_unreachable(others, self._link_timeout_seconds, is_over)
                must_stay = can_reach if must_stay is None else must_stay
                lost = {rank: others[rank] for rank in sorted(self._cut_off_from & set(others))}
                if can_reach and not (must_stay and find_unsteady(lost, self._steady_seconds, is_over)):
                    return
            time.sleep(LINK_CHECK_SECONDS)

    def start_over(self) -> None:
        """After an eviction: register again as a new rank; after an eviction for its links, once they work again."""
        self._await_links()
        with self.changed:
            self.is_evicted = self.is_cut_off = False
            self._next_form = None
            self.epoch = self.target = self._leave_for = 0
            self.must_leave = False
        self.send(self._hello())

    # ---- threads ----

    def _take_farewell(self) -> Goodbye:
        assert self.farewell is not None
        if isinstance(self.farewell, Stop):
            raise Stopped(self.farewell.reason)
        return self.farewell

    def _hello(self) -> Hello:
        return replace(
            self._first_hello,
            report=self._participant.report(),
            target=self.target,
            # Later its node's process has told the coordinator.
            snapshots=None if self.target else self._first_hello.snapshots,
            is_done=isinstance(self.farewell, Goodbye),
            is_cut_off=self.is_cut_off,
        )

    def _listen(self) -> None:
        # Whoever has been told to stop has nothing more to say.
        while not self._closed and not isinstance(self.farewell, Stop):
            hello = self._hello()
            try:
                said = {"token": self._coordinator.token, **to_wire(hello)}
                connection = Connection.open(self._coordinator.address, said, CONNECT_TIMEOUT_SECONDS)
            except OSError:
                time.sleep(RECONNECT_SECONDS)
                continue
            self._connection = connection
            if _moment(now := self._hello()) != _moment(hello):
                # The training thread went on meanwhile, and had no connection to say so.
                self.send(now)
            with suppress(WireError):
                while True:
                    self._on_message(from_coordinator(connection.receive()))
            self._away_since_seconds, self._connection = time.monotonic(), None
            connection.close()

    def _on_message(self, message: FromCoordinator) -> None:
        with self.changed:
            match message:
                case Value(key, value):
                    self.values.receive(key, value)
                case Join(epoch):
                    self.target = max(self.target, epoch)
                case Regroup(epoch, _, lost):
                    self.target = self._leave_for = max(self.target, epoch)
                    self._leave(lost)
                case Form():
                    self._next_form = message
                    if message.ratings is not None:
                        self.agree_on(message.ratings)
                    self.target = max(self.target, message.epoch)
                    if not self._is_parked:
                        # On its way into an epoch of a coordinator that is no more.
                        self._leave_for = self.target
                        self._leave()
                case Evicted():
                    self.is_evicted, self.is_cut_off = True, message.is_cut_off
                    self._cut_off_from = set(message.cut_off_from)
                    self._leave()
                case Peers(addresses):
                    self._peers = addresses
                case Probe():
                    threading.Thread(target=self._answer, args=(message,), name="probing", daemon=True).start()
                case Goodbye():
                    self.farewell = message
                case Stop():
                    self.farewell = message
                    self._leave()
            self.changed.notify_all()

    def _leave(self, lost: tuple[int, ...] = ()) -> None:
        # First this: whoever sees that it must leave asks how.
        self.lost = frozenset(lost)
        self.must_leave = True
        if self._abort_thread is None:
            self._abort_thread = threading.Thread(target=self._keep_aborting, name="abort", daemon=True)
            self._abort_thread.start()

    def _keep_aborting(self) -> None:
        # Again and again: an operation that starts after the sockets were shut down fails by itself, but one on sockets
        # that come up meanwhile would block.
        while True:
            with self.changed:
                if not self.must_leave:
                    # Under the lock: whoever has to leave next must not count on a thread that is about to end.
                    self._abort_thread = None
                    return
            self._participant.abort()
            time.sleep(ABORT_AGAIN_SECONDS)

    def _beat(self) -> None:
        while not self._closed:
            self.send(Alive())
            time.sleep(self._heartbeat_seconds)


def _moment(hello: Hello) -> tuple[object, ...]:
    """What in a hello says where a rank is in the life of its epoch."""
    return hello.report.status, hello.report.epoch, hello.target
