"""The messages between a node's snapshot process and its ranks, those of other nodes, and the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mecefo_runtime.job.protection import SnapshotOffers
from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.system.wire import Message
from mecefo_runtime.system.wire_messages import reader


@dataclass(frozen=True, slots=True)
class Part:
    """`share` of `unit` lies in a buffer, `num_bytes` from byte `first` on."""

    unit: str
    share: Share
    first: int
    num_bytes: int


# ---- to a snapshot process ----


@dataclass(frozen=True, slots=True)
class Reserve:
    """A rank asks for two buffers of `num_bytes` each."""

    rank: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Store:
    """A rank has written a snapshot of `version` into `buffer` of the memory `region`, as its `sequence`.

    `ranks` are those of its node that write one of this version, `processes` the addresses of the nodes' snapshot
    processes among whom all of it is.
    """

    region: int
    buffer: int
    sequence: int
    version: Version
    parts: tuple[Part, ...]
    ranks: tuple[int, ...]
    processes: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Keep:
    """All ranks have `version`: older versions, and those of another lineage, are no longer needed."""

    version: Version


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send `share` of `unit` at `version`."""

    version: Version
    unit: str
    share: Share


@dataclass(frozen=True, slots=True)
class Describe:
    """Say what the node keeps at `version`, as soon as it is complete: its ranks' snapshots, in `generation` 0.

    In a later one, also what it has taken over from lost nodes.
    """

    version: Version
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """Send `num_bytes` from byte `first` on of what the node keeps at `version`; behind its end there are zeros.

    `is_checked`: not if they were changed since they were stored.
    """

    version: Version
    first: int
    num_bytes: int
    generation: int = 0
    is_checked: bool = False


@dataclass(frozen=True, slots=True)
class ReadParity:
    """Send `num_bytes` from byte `first` on of a parity of `version`: of `row` that with `index`, of these nodes."""

    version: Version
    nodes: tuple[int, ...]
    row: int
    index: int
    first: int
    num_bytes: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Offers:
    """Ask what this process can provide; the answer is `SnapshotOffers`."""


ToSnapshots = Offers | Reserve | Store | Keep | Fetch | Describe | Read | ReadParity


# ---- from a snapshot process ----


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first message to a client with the token: the process of `node` is alive, not only its listener."""

    node: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The memory `region`: `descriptor` of the process `pid` is its file."""

    region: int
    pid: int
    descriptor: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What the node keeps of `version` is complete, and protected as it should be; `unprotected` says why it is not."""

    version: Version
    unprotected: str | None = None


@dataclass(frozen=True, slots=True)
class NotStored:
    """What a rank has written of `version` is not kept; the text says why."""

    version: Version
    reason: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """The requested bytes follow: `num_bytes` with this CRC-32."""

    num_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is refused; the text says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class KeptPart:
    """`share` of `unit` is among the bytes that a node keeps, `num_bytes` from `first` on.

    `checksums` are the CRC-32 of its chunks.
    """

    unit: str
    share: Share
    first: int
    num_bytes: int
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """All that a node keeps at a version: so many bytes, in these parts."""

    num_bytes: int
    parts: tuple[KeptPart, ...]


FromSnapshots = Welcome | Reserved | Stored | NotStored | Fetched | Refused | Described | SnapshotOffers

to_snapshots: Callable[[Message], ToSnapshots] = reader(ToSnapshots)
from_snapshots: Callable[[Message], FromSnapshots] = reader(FromSnapshots)


# ---- from a snapshot process to the coordinator ----


@dataclass(frozen=True, slots=True)
class SnapshotsHello:
    """The snapshot process of `node` registers."""

    node: int


FromSnapshotProcess = SnapshotsHello | SnapshotOffers


# ---- from the coordinator to a snapshot process ----


@dataclass(frozen=True, slots=True)
class Reencode:
    """Protect `version` among `processes`, by node, as a new `generation`: nodes of the generation `base` are lost.

    `holders` have all that they had in `base`; what the other members of their groups had is rebuilt, and kept, by
    `rebuilders`, who have their parities. Nothing of `base` goes before a `Settle`.
    """

    version: Version
    base: int
    generation: int
    processes: Mapping[int, str]
    holders: tuple[int, ...]
    rebuilders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Every node has its parities of this `generation` of `version`: other generations are not needed any more."""

    version: Version
    generation: int


ToSnapshotProcess = Reencode | Settle

to_snapshot_process: Callable[[Message], ToSnapshotProcess] = reader(ToSnapshotProcess)
from_snapshot_process: Callable[[Message], FromSnapshotProcess] = reader(FromSnapshotProcess)
