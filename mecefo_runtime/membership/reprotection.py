"""What snapshot processes do after a loss.

When nodes with snapshots are lost, the others protect the newest version again, before another one of them is. The next
snapshot is protected among those who are there then, but until all ranks have it, what they would go back to has one
protection less. So the coordinator asks for that version to be encoded again, once the next epoch has begun: until then
ranks may be restoring from it, and nobody is to compute for anything else. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from mecefo_runtime.job.protection import standing
from mecefo_runtime.job.state_source import Version
from mecefo_runtime.membership.member_table import Effects
from mecefo_runtime.recovery.kept_snapshots import KeptSnapshots
from mecefo_runtime.snapshots.messages import Reencode, Settle
from mecefo_runtime.system.job_records import SnapshotsProtected, SnapshotsUnprotected
from mecefo_runtime.system.run_records import Warned

# Until it is clear what is lost: with a snapshot process most likely its node goes, and a coordinator that was started
# again has to be found by all processes that are there.
SETTLING_SECONDS = 0.5


class Reprotection:
    """Of the newest version that all ranks have, as nodes say what is `kept`."""

    def __init__(self, kept: KeptSnapshots, effects: Effects, clock: Callable[[], float]) -> None:
        self._kept = kept
        self._effects = effects
        self._clock = clock
        # Whether something was lost that may not be made good yet; and from when on that is looked at. Under the
        # coordinator before this one, if there was one, it may have been.
        self._is_open = True
        self._begin_seconds = clock() + SETTLING_SECONDS
        self._unprotected_seconds: float | None = None
        self._order: Reencode | None = None
        self._tried: tuple[Version, frozenset[int]] | None = None

    def open(self) -> None:
        """A snapshot process is lost: what it kept has one protection less."""
        self._is_open = True
        self._begin_seconds = self._clock() + SETTLING_SECONDS
        # Whatever was under way counts on it.
        self._order = self._tried = None

    def look(self, is_whole: Callable[[Version], bool]) -> None:
        """Ask for what is to be done next. `is_whole`: all of the state at that version can be had."""
        version = self._kept.newest_agreed
        if not self._is_open or version is None or self._clock() < self._begin_seconds:
            return
        nodes = self._kept.by_node
        order, self._order = self._order, None
        if order is not None and order.version == version and self._is_under_way(order):
            self._order = order
            return
        holders = self._kept.holders(version)
        now = standing(version, {node: kept.parities for node, kept in nodes.items()}, holders)
        unsure = [node for node in now.unprotected if node in nodes and nodes[node].agreed != version]
        # Whoever was started again knows of nothing.
        if any(nodes[node].agreed is not None or node in holders for node in unsure):
            # What it has of this version is on its way.
            return
        if now.is_protected:
            self._close(version, is_reencoded=order is not None and order.version == version)
            return
        if now.lost and self._unprotected_seconds is None:
            self._unprotected_seconds = self._clock()
            lost = tuple(sorted(now.lost))
            self._effects.emit(SnapshotsUnprotected(nodes=lost, losses_left=now.losses_left), step=version.step)
        tried = (version, frozenset(nodes))
        if tried != self._tried and len(nodes) > 1 and is_whole(version):
            self._tried = tried
            addresses = {node: kept.address for node, kept in sorted(nodes.items())}
            self._order = Reencode(
                version,
                base=now.generation,
                generation=self._next(version),
                processes=addresses,
                holders=tuple(sorted(holders | now.rebuilders)),
                rebuilders=tuple(sorted(now.rebuilders)),
            )
            for node in addresses:
                self._effects.tell_snapshots(node, self._order)

    def _next(self, version: Version) -> int:
        """A generation that nobody has begun."""
        kept = self._kept.by_node.values()
        known = [parity.generation for of_node in kept for parity in of_node.parities if parity.version == version]
        known += [one.failed.generation for one in kept if one.failed is not None and one.failed.version == version]
        return 1 + max(known, default=0)

    def _is_under_way(self, order: Reencode) -> bool:
        """Whether some have yet to say what became of it; if all have their parities, the older ones may go."""
        nodes = self._kept.by_node
        have, reasons = set[int](), dict[int, str]()
        for node in order.processes:
            kept = nodes[node]
            if any((one.version, one.generation) == (order.version, order.generation) for one in kept.parities):
                have.add(node)
            failed = kept.failed
            if failed is not None and (failed.version, failed.generation) == (order.version, order.generation):
                reasons[node] = failed.reason
        if reasons:
            node, reason = min(reasons.items())
            message = f"the snapshot of step {order.version.step} stays as protected as it is: node {node}: {reason}"
            self._effects.emit(Warned(message=message))
            return False
        if have < set(order.processes):
            return True
        if not all(one.is_settled for node in have for one in nodes[node].parities if one.version == order.version):
            for node in order.processes:
                self._effects.tell_snapshots(node, Settle(order.version, order.generation))
            return True
        return False

    def _close(self, version: Version, *, is_reencoded: bool) -> None:
        self._is_open = False
        began, self._unprotected_seconds = self._unprotected_seconds, None
        if began is not None:
            seconds = self._clock() - began
            self._effects.emit(SnapshotsProtected(seconds=seconds, is_reencoded=is_reencoded), step=version.step)
