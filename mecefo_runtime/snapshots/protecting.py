"""How a node protects what it keeps: its parities of each snapshot, and again when nodes of its group are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from mecefo_runtime.job.config import SnapshotConfig
from mecefo_runtime.job.protection import EncodingFailed, groups_of
from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.snapshots.codes import Stripe, Unrecoverable
from mecefo_runtime.snapshots.contents import Contents, TakenOver
from mecefo_runtime.snapshots.messages import KeptPart, Read, ReadParity, Reencode
from mecefo_runtime.snapshots.parity import Members, Parity, encode, find_part, rebuild_part
from mecefo_runtime.snapshots.shelf import NotHeld, ShelfFull


class Protector:
    """Of `node`, what is in `contents`, which are used behind `lock`. One version at a time.

    `announce` hears when the parity of a snapshot is begun: its step, and `encode`. Nodes that are `apart` are in
    different groups as far as that can be.
    """

    def __init__(
        self,
        node: int,
        token: str,
        config: SnapshotConfig,
        contents: Contents,
        lock: threading.Condition,
        announce: Callable[[int, str], None],
        apart: Sequence[Collection[int]] = (),
    ) -> None:
        self._node = node
        self.token = token
        self._config = config
        self._contents = contents
        self._lock = lock
        self._announce = announce
        self._apart = apart
        self._unreachable: dict[int, float] = {}
        # The newest generation that came to nothing here.
        self.failed: EncodingFailed | None = None

    def read(self, wanted: Read | ReadParity) -> Sequence[memoryview]:
        """What another member of the group needs of this one.

        Raises:
            NotHeld: it is not here, or not what it was, where that is checked.
        """
        if not isinstance(wanted, Read):
            with self._lock:
                # Not checked here: what is rebuilt from it is.
                return [self._contents.stripe(wanted).data[wanted.first : wanted.first + wanted.num_bytes]]
        extent = wanted.version, wanted.generation, wanted.first, wanted.num_bytes
        with self._lock:
            pieces = self._contents.pieces(*extent)
            chunks = self._contents.chunks(*extent) if wanted.is_checked else []
        for chunk in chunks:
            chunk.checked()
        return pieces

    def rebuilt(self, version: Version, unit: str, share: Share) -> memoryview | None:
        """A share of a unit that another node had, None: that no parity here knows of.

        Raises:
            Unrecoverable: too many are lost.
            NotHeld: what was rebuilt is not what it was.
        """
        tried, reason = set[int](), None
        while (found := self._find(version, unit, share, tried)) is not None:
            parity, node, part = found
            tried.add(parity.generation)
            try:
                return self._rebuild(parity, node, part)
            except Unrecoverable as error:
                # Others may have settled on a later generation meanwhile, and let go of what this one consists of.
                reason = reason or error
        if reason is not None:
            raise reason
        return None

    def _find(
        self, version: Version, unit: str, share: Share, tried: Collection[int]
    ) -> tuple[Parity, int, KeptPart] | None:
        """The first parity, but for generations that were `tried`, that says what this share was: (it, node, part)."""
        with self._lock:
            for parity in self._contents.parities(version):
                if parity.generation not in tried and (found := find_part(parity, unit, share)) is not None:
                    return parity, *found
        return None

    def _rebuild(self, parity: Parity, node: int, part: KeptPart) -> memoryview:
        """What the lost `node` had of `part`.

        Raises:
            Unrecoverable: too many are lost.
            NotHeld: what was rebuilt is not what it was.
        """

        def rebuild() -> memoryview:
            with self._members(parity.addresses) as members:
                return memoryview(rebuild_part(parity, node, part, members))

        try:
            return rebuild()
        except Unrecoverable:
            if not self._unreachable:
                raise
        # Who was not asked because it was slow a moment ago may answer by now.
        self._unreachable.clear()
        return rebuild()

    def protect(self, version: Version, processes: Mapping[int, str]) -> str | None:
        """Compute this node's parities of a snapshot among `processes`; returns why there are none that should be."""
        if self._config.protection == "none":
            return None
        try:
            self._encode(version, 0, {**processes, self._node: ""})
        except (OSError, NotHeld, ShelfFull) as error:
            return str(error) or type(error).__name__
        return None

    def protect_again(self, order: Reencode) -> None:
        """Take over what is to be rebuilt of lost nodes, and compute this node's parities of all it keeps then.

        What there was before stays. When it comes to nothing, `failed` says why.
        """
        version, generation = order.version, order.generation
        try:
            self._take_over(order)
            self._encode(version, generation, order.processes)
        except (OSError, NotHeld, ShelfFull, Unrecoverable) as error:
            with self._lock:
                self._contents.drop_all_but(version, {order.base})
                self.failed = EncodingFailed(version, generation, str(error) or type(error).__name__)
                self._lock.notify_all()

    def _take_over(self, order: Reencode) -> None:
        version, base = order.version, order.base
        with self._lock:
            # Of an attempt that came to nothing because a further node was lost.
            self._contents.drop_all_but(version, {base})
            if self._node in order.holders:
                self._contents.describe(version, base)
            parity = self._contents.parity(version, base)
            taken = list(self._contents.taken_over(version, base))
            parts = () if parity is None else parts_to_take_over(parity, order, self._node)
            self._contents.check_room(sum(part.num_bytes for _, part in parts), "what lost nodes had")
        for node, part in parts:
            assert parity is not None
            taken.append(TakenOver(node, part, self._rebuild(parity, node, part)))
        with self._lock:
            self._contents.take_over(version, order.generation, taken)
            self._lock.notify_all()

    def _encode(self, version: Version, generation: int, processes: Mapping[int, str]) -> None:
        config = self._config
        groups = groups_of(processes, config.protection, config.group_size, config.nodes_per_rack, self._apart)
        group = next(group for group in groups if self._node in group.nodes)
        if not group.num_parities:
            raise NotHeld("no other node has a snapshot process")
        # Those that are named now are there, whatever was found before.
        self._unreachable.clear()
        with self._lock:
            own = self._contents.describe(version, generation)
        with self._members(processes) as members:
            tell = partial(self._announce, version.step, "encode")
            parity = encode(version, group, own, members, self._room_for_parity, tell, generation)
        with self._lock:
            self._contents.protect(parity)

    def _members(self, addresses: Mapping[int, str]) -> Members:
        return Members(self._node, addresses, self.token, self.read, self._unreachable)

    def _room_for_parity(self, num_stripes: int, length: int) -> list[Stripe]:
        with self._lock:
            return self._contents.room_for_parity(num_stripes, length)


def parts_to_take_over(parity: Parity, order: Reencode, node: int) -> tuple[tuple[int, KeptPart], ...]:
    """What of the lost members of its group `node` is to rebuild and keep: (the member, the part).

    All that can rebuild get about as much of it. The same input gives the same parts, on whichever node.
    """
    rebuilders = [member for member in parity.group.nodes if member in order.rebuilders]
    load = dict.fromkeys(rebuilders, 0)
    own = []
    for lost in parity.group.nodes:
        if lost in order.holders:
            continue
        for part in parity.members[lost].parts:
            chosen = min(rebuilders, key=load.__getitem__)
            load[chosen] += part.num_bytes
            if chosen == node:
                own.append((lost, part))
    return tuple(own)
