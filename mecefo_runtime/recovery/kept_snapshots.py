"""What snapshot processes hold now and held before, as they told the coordinator. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mecefo_runtime.job.protection import Group, ParityHeld, SnapshotOffers, rebuildable
from mecefo_runtime.job.state_source import Offer, SnapshotSource, Source, Version


class KeptSnapshots:
    """The last report of each node's process.

    `newest_agreed` is the newest version that all ranks ever had, None: none.
    """

    def __init__(self) -> None:
        self._kept: dict[int, SnapshotOffers] = {}
        self.newest_agreed: Version | None = None
        # In the order in which they were heard of: after a return, steps of another course of training begin lower.
        self._lineages: dict[str, int] = {}
        # Of each version that is not older than the newest agreed one: who ever had of it, and who protected whom.
        self._nodes: dict[Version, set[int]] = {}
        self._groups: dict[Version, set[Group]] = {}
        # After nodes were lost, a version is protected again by those who are left, as another generation.
        self._generations: dict[Version, int] = {}

    def learn(self, node: int, kept: SnapshotOffers | None) -> None:
        """The process of `node` reports what it keeps; None: the process is lost."""
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
        """The address of each node's process."""
        return {node: kept.address for node, kept in sorted(self._kept.items())}

    @property
    def by_node(self) -> Mapping[int, SnapshotOffers]:
        """The last report of each connected process, by node."""
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
        """The nodes that hold snapshots of `version`."""
        return {node for node, kept in self._kept.items() if any(offer.version == version for offer in kept.offers)}

    def _protects(self, node: int, group: Group, version: Version) -> bool:
        kept = self._kept.get(node)
        return kept is not None and any(one.group == group and one.version == version for one in kept.parities)


def offers_of(
    kept: Mapping[int, SnapshotOffers], refused: Collection[tuple[Version, Source]] = (), *, are_agreed: bool = True
) -> tuple[Offer, ...]:
    """All that can be had from living nodes, by what each has `kept`, of versions up to the newest agreed on, or newer.

    A newer version may contain state that was corrupted while it was copied. Sources that were `refused` offer
    nothing.
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
