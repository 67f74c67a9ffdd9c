"""What snapshot processes keep, as they told the coordinator, and kept once; and what they are to do about a loss.

When nodes with snapshots are lost, the others protect the newest version anew, before another one of them is. The next
snapshot is protected among those who are there then, but until all ranks have it, what they would go back to has one
protection less. So the coordinator asks for that version to be encoded again, once the next epoch has begun: until then
ranks may be restoring from it, and nobody is to compute for anything else. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from mecefo_runtime.job.protection import Group, ParityHeld, SnapshotOffers, rebuildable, standing
from mecefo_runtime.job.state_source import Offer, SnapshotSource, Source, Version
from mecefo_runtime.membership.member_table import Effects
from mecefo_runtime.snapshots.messages import Reencode, Settle

# Until it is clear what is lost: with a snapshot process most likely its node goes, and a coordinator that was started
# again has to be found by all processes that are there.
SETTLING_SECONDS = 0.5


class KeptSnapshots:
    """What each node's process said last. `newest_agreed` is the newest version that all ranks ever had, None: none."""

    def __init__(self) -> None:
        self._kept: dict[int, SnapshotOffers] = {}
        self.newest_agreed: Version | None = None
        # In the order in which they were heard of: after a return, steps of another course of training begin lower.
        self._lineages: dict[str, int] = {}
        # Of each version that is not older than the newest agreed one: who ever had of it, and who protected whom.
        self._nodes: dict[Version, set[int]] = {}
        self._groups: dict[Version, set[Group]] = {}
        # After nodes were lost, a version is protected anew by those who are left, as another generation.
        self._generations: dict[Version, int] = {}

    def learn(self, node: int, kept: SnapshotOffers | None) -> None:
        """The process of `node` keeps this; None: it is gone."""
        if kept is None:
            self._kept.pop(node, None)
            return
        self._kept[node] = kept
        for offer in kept.offers:
            self._nodes.setdefault(offer.version, set()).add(node)
        for parity in kept.parities:
            self._learn_group(parity)
        agreed = kept.agreed
        if agreed is None or (self.newest_agreed is not None and self._age(agreed) <= self._age(self.newest_agreed)):
            return
        self.newest_agreed = agreed
        for known in (self._nodes, self._groups, self._generations):
            for older in [version for version in known if self._age(version) < self._age(agreed)]:
                del known[older]

    def _learn_group(self, parity: ParityHeld) -> None:
        version, generation = parity.version, parity.generation
        if not parity.counts or generation < self._generations.get(version, 0):
            return
        if generation > self._generations.get(version, 0):
            # What was lost before is among what these nodes keep.
            self._generations[version] = generation
            self._groups[version], self._nodes[version] = set(), set()
        self._groups.setdefault(version, set()).add(parity.group)
        self._nodes.setdefault(version, set()).update(node for node, units in parity.shares.items() if units)

    def _age(self, version: Version) -> tuple[int, int]:
        return self._lineages.setdefault(version.lineage, len(self._lineages)), version.step

    @property
    def addresses(self) -> dict[int, str]:
        """Where the process of each node that has one is reached."""
        return {node: kept.address for node, kept in sorted(self._kept.items())}

    @property
    def by_node(self) -> Mapping[int, SnapshotOffers]:
        """What each node's process that is there said last."""
        return self._kept

    def offers(self, refused: Collection[tuple[Version, Source]] = (), *, are_agreed: bool = True) -> tuple[Offer, ...]:
        """All that can be had of versions up to the newest agreed on, or, if not `are_agreed`, of newer ones.

        What is `refused` of a node is rebuilt from the parity of its group, if it has one.
        """
        return offers_of(self._kept, refused, are_agreed=are_agreed)

    # ---- why not ----

    def why_no_snapshot(self) -> str | None:
        """Why the newest agreed version cannot be had as it was copied, in words; None: nothing of it is gone."""
        version = self.newest_agreed
        if version is None:
            return "there was none yet that all ranks had"
        lost = self._nodes.get(version, set()) - self.holders(version)
        return f"that of step {version.step} lacks what {_words(lost)} kept" if lost else None

    def why_no_parity(self) -> str | None:
        """Why what is lost of it cannot be rebuilt, in words; None: it can, or nothing is lost."""
        version = self.newest_agreed
        if version is None or self.why_no_snapshot() is None:
            return None
        reasons, protected = [], set[int]()
        for group in sorted(self._groups.get(version, ()), key=lambda group: group.nodes):
            lost = [node for node in group.nodes if not self._protects(node, group, version)]
            if len(lost) > group.num_parities:
                were = "were" if len(lost) > 1 else "was"
                reasons.append(
                    f"{_words(lost)} {were} lost, and their group of {len(group.nodes)} bears {group.num_parities}"
                )
            protected.update(group.nodes)
        if alone := self._nodes.get(version, set()) - self.holders(version) - protected:
            reasons.append(f"{_words(alone)} had none of step {version.step}")
        return "; ".join(reasons) or None

    def holders(self, version: Version) -> set[int]:
        """The nodes that have something of `version` as it is."""
        return {node for node, kept in self._kept.items() if any(offer.version == version for offer in kept.offers)}

    def _protects(self, node: int, group: Group, version: Version) -> bool:
        kept = self._kept.get(node)
        return kept is not None and any(one.group == group and one.version == version for one in kept.parities)


def offers_of(
    kept: Mapping[int, SnapshotOffers], refused: Collection[tuple[Version, Source]] = (), *, are_agreed: bool = True
) -> tuple[Offer, ...]:
    """All that can be had from living nodes, by what each has `kept`, of versions up to the newest agreed on, or newer.

    What went wrong with the state while a newer one was copied would be in it. Of sources that were `refused` nothing
    can be had.
    """
    as_they_are = [offer for node in sorted(kept) for offer in kept[node].offers]
    parities = {node: of_node.parities for node, of_node in kept.items()}
    damaged = {(version, source.node) for version, source in refused if isinstance(source, SnapshotSource)}
    addresses = {node: of_node.address for node, of_node in kept.items()}
    all_of_them = (*as_they_are, *rebuildable(parities, addresses, damaged))
    found = [offer for offer in all_of_them if (offer.version, offer.source) not in refused]
    agreed = [of_node.agreed for of_node in kept.values() if of_node.agreed is not None]
    newest = {version.lineage: version.step for version in sorted(agreed, key=lambda version: version.step)}
    return tuple(offer for offer in found if are_agreed == (offer.version.step <= newest.get(offer.version.lineage, 0)))


def _words(nodes: Collection[int]) -> str:
    *others, last = map(str, sorted(nodes))
    return f"nodes {', '.join(others)} and {last}" if others else f"node {last}"


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
        """A snapshot process is gone: what it kept is protected by one less."""
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
            self._tell("snapshots_unprotected", version, nodes=sorted(now.lost), losses_left=now.losses_left)
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
            self._effects.emit("warning", message=message)
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
            self._tell("snapshots_protected", version, seconds=seconds, is_reencoded=is_reencoded)

    def _tell(self, kind: str, version: Version, **fields: Any) -> None:
        self._effects.emit(kind, step=version.step, **fields)
