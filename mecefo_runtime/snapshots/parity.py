"""Parity that one node keeps of its group's snapshots, and what is rebuilt from it.

Every member computes its own parities of a version, from stripes that it reads of the others; nothing of the version
before is touched meanwhile. So a loss in the middle leaves the older version as well protected as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from mecefo_runtime.job.protection import Group, ParityHeld
from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.snapshots.codes import BLOCK_BYTES, Stripe, add_stripe, rebuild
from mecefo_runtime.snapshots.messages import Describe, Described, KeptPart, Read, ReadParity
from mecefo_runtime.snapshots.peer import SnapshotPeer
from mecefo_runtime.snapshots.shelf import NotHeld, check
from mecefo_runtime.system.wire import WireError


@dataclass(frozen=True, slots=True)
class Parity:
    """What one member of `group` keeps of `version`: `stripes` of `length` bytes, by (row, index of the parity).

    `members` says what each of them had, `addresses` where their processes are. Of a later `generation` all of that
    counts when it `is_settled`.
    """

    version: Version
    group: Group
    length: int
    stripes: Mapping[tuple[int, int], Stripe]
    members: Mapping[int, Described]
    addresses: Mapping[int, str]
    generation: int = 0
    is_settled: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes of all its stripes."""
        return self.length * len(self.stripes)

    def held(self) -> ParityHeld:
        """As it is told."""
        shares: dict[int, dict[str, frozenset[Share]]] = {}
        for node, described in self.members.items():
            of_node = shares[node] = {}
            for part in described.parts:
                of_node[part.unit] = of_node.get(part.unit, frozenset()) | {part.share}
        return ParityHeld(self.version, self.group, shares, self.generation, self.is_settled)


# What is rebuilt at a time, with as much of every member.
REBUILD_BYTES = 8 << 20
# Whoever did not answer in time is not asked again for so long: a restore asks for one piece after the other.
UNREACHABLE_SECONDS = 10.0


@dataclass(slots=True)
class Members:
    """The members of a group, as one of them, `node`, reads from them: itself by `own`, the others by `addresses`.

    `unreachable` is shared by all of them: when each node did not answer the last time, on the monotonic clock.
    """

    node: int
    addresses: Mapping[int, str]
    token: str
    own: Callable[[Read | ReadParity], Sequence[memoryview]]
    unreachable: dict[int, float]
    _stack: ExitStack = field(default_factory=ExitStack)
    _peers: dict[int, SnapshotPeer] = field(default_factory=dict)

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def peer(self, node: int) -> SnapshotPeer:
        """A connection to `node`, made once.

        Raises:
            OSError: it cannot be reached.
        """
        if node not in self._peers:
            if time.monotonic() - self.unreachable.get(node, -UNREACHABLE_SECONDS) < UNREACHABLE_SECONDS:
                raise WireError(f"node {node}'s snapshot process could not be reached")
            try:
                self._peers[node] = self._stack.enter_context(SnapshotPeer(self.addresses[node], self.token))
            except OSError as error:
                # To be refused takes no time.
                if not isinstance(error, ConnectionRefusedError):
                    self.unreachable[node] = time.monotonic()
                raise WireError(f"node {node}'s snapshot process cannot be reached: {error}") from None
        return self._peers[node]

    def read(self, node: int, wanted: Read | ReadParity, into: Stripe) -> None:
        """Fill `into` with what is `wanted` of `node`.

        Raises:
            OSError: it is gone, or does not have it.
            NotHeld: this node does not have it.
        """
        if node == self.node:
            first = 0
            for piece in self.own(wanted):
                into[first : first + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
                first += len(piece)
        else:
            self.peer(node).read_into(into.data, wanted)


def stripe_length(group: Group, members: Mapping[int, Described]) -> int:
    """Bytes of a stripe: as many as it takes for the member that keeps most."""
    most = max(described.num_bytes for described in members.values())
    return -(-most // group.num_data)


def encode(
    version: Version,
    group: Group,
    own: Described,
    members: Members,
    room: Callable[[int, int], Sequence[Stripe]],
    meanwhile: Callable[[], None] = lambda: None,
    generation: int = 0,
) -> Parity:
    """Compute one node's parities of `version`, which all members of `group` have, or will have in a moment.

    `room` gives the memory for so many stripes of that length, whatever is in it. `meanwhile` is called once,
    when the first bytes are read, and the parity is not complete.

    Raises:
        OSError: a member is gone, or does not have that version.
        NotHeld: this node does not.
    """
    described = {
        node: own if node == members.node else members.peer(node).describe(Describe(version, generation))
        for node in group.nodes
    }
    length = stripe_length(group, described)

    def stripe_of(node: int, row: int, first: int, num_bytes: int) -> Read:
        return Read(version, group.stripe_of(node, row) * length + first, num_bytes, generation)

    rows = group.rows_of_parity(members.node)
    stripes = dict(zip(rows, room(len(rows), length), strict=True))
    has_begun = False
    incoming = np.empty(min(BLOCK_BYTES, length), dtype=np.uint8)
    for (row, index), stripe in stripes.items():
        last, *others = reversed(group.data_nodes(row))
        # A block at a time: it is still in the cache when the next member's comes.
        for first in range(0, length, BLOCK_BYTES):
            parity = stripe[first : first + BLOCK_BYTES]
            members.read(last, stripe_of(last, row, first, len(parity)), parity)
            if not has_begun:
                has_begun = True
                meanwhile()
            for node in others:
                part = incoming[: len(parity)]
                members.read(node, stripe_of(node, row, first, len(parity)), part)
                add_stripe(parity, part, doubles=index == 1)
    return Parity(version, group, length, stripes, described, dict(members.addresses), generation)


def find_part(parity: Parity, unit: str, share: Share) -> tuple[int, KeptPart] | None:
    """(the member that had it, where) `share` of `unit`; None: no member had."""
    for node, described in parity.members.items():
        for part in described.parts:
            if (part.unit, part.share) == (unit, share):
                return node, part
    return None


def rebuild_part(parity: Parity, node: int, part: KeptPart, members: Members) -> bytearray:
    """What `node`, which is lost, had of `part`, from what the living members of the group have.

    Raises:
        NotHeld: too many are lost, or what was rebuilt is not what it was.
    """
    found = bytearray(part.num_bytes)
    length = parity.length
    position = part.first
    while position < part.first + part.num_bytes:
        stripe, offset = divmod(position, length)
        end = min(length, offset + part.first + part.num_bytes - position, offset + REBUILD_BYTES)
        content = _rebuild_range(parity, node, stripe, (offset, end), members)
        first = position - part.first
        found[first : first + end - offset] = content
        position += end - offset
    check(memoryview(found), part.checksums, f"{part.unit} of step {parity.version.step}, rebuilt for node {node},")
    return found


def _rebuild_range(parity: Parity, node: int, stripe: int, extent: tuple[int, int], members: Members) -> memoryview:
    """Bytes `extent` of a stripe of the lost `node`."""
    group, version, length = parity.group, parity.version, parity.length
    row = group.row_of(node, stripe)
    first, num_bytes = extent[0], extent[1] - extent[0]
    data: dict[int, Stripe] = {}
    for index, member in enumerate(group.data_nodes(row)):
        if member != node:
            position = group.stripe_of(member, row) * length + first
            # What is damaged counts as lost: what is rebuilt from it would be damaged, too.
            asked = Read(version, position, num_bytes, parity.generation, is_checked=True)
            found = _try(members, member, asked)
            if found is not None:
                data[index] = found
    parities: list[Stripe | None] = [None, None]
    # As many as it takes: Q is read only where P is not enough.
    for index, member in enumerate(group.parity_nodes(row)):
        num_parities = sum(one is not None for one in parities)
        if num_parities < group.num_data - len(data):
            wanted = ReadParity(version, group.nodes, row, index, first, num_bytes, parity.generation)
            parities[index] = _try(members, member, wanted)
    rebuilt = rebuild(data, group.num_data, *parities)[group.data_nodes(row).index(node)]
    return rebuilt.data


def _try(members: Members, node: int, wanted: Read | ReadParity) -> Stripe | None:
    found = np.empty(wanted.num_bytes, dtype=np.uint8)
    try:
        members.read(node, wanted, found)
    except (OSError, NotHeld):
        # Lost as well.
        return None
    return found
