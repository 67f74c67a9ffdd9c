"""Whether the replicas of an external job still agree, by the checksums that the ranks report.

Which ranks hold the same is not known of a script that was not changed. It is found out: what was equal, bit by bit, in
every look before the first fault is expected to stay so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mecefo_runtime.system.command_records import StateChecksums

_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor of which `ranks` held something else than the ranks they were equal to before the fault.

    Seen first after `since_step`; `until_step` is the step after which all were seen equal again, None: never.
    """

    tensor: str
    ranks: tuple[int, ...]
    since_step: int
    until_step: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """`differences` in the order in which they were seen; `last_step` is that of the last look at several ranks.

    `unknown` says why a value that one rank alone has wrong could not have been seen, None where it could.
    """

    differences: tuple[Difference, ...] = ()
    last_step: int | None = None
    unknown: str | None = None

    @property
    def lasting(self) -> tuple[Difference, ...]:
        """Those that were still there at the last look."""
        return tuple(one for one in self.differences if one.until_step is None)


@dataclass(frozen=True, slots=True)
class _Look:
    """What several ranks held after one step: by rank, by tensor. `at_seconds` is when the last of them told."""

    step: int
    at_seconds: float
    held: Mapping[int, Mapping[str, str]]


def compare_replicas(
    records: Iterable[StateChecksums], injected_seconds: float, struck: Sequence[int]
) -> ReplicaComparison:
    """Compare what ranks held after the first fault with what they had in common before.

    `records` are by time, times are CLOCK_MONOTONIC seconds. `struck` are the ranks of the faults: of two ranks that
    differ such a one is named.
    """
    looks = list(_looks(records))
    before = [look for look in looks if look.at_seconds < injected_seconds]
    after = [look for look in looks if look.at_seconds >= injected_seconds]
    if not looks:
        return ReplicaComparison(unknown="no two ranks reported their state after the same step")
    if not before:
        return ReplicaComparison(
            unknown="the fault came before the first checksum of the ranks' state: choose a later step"
        )
    groups = _held_in_common(before)
    last = after[-1].step if after else None
    if not groups:
        return ReplicaComparison(
            last_step=last, unknown="no two ranks hold the same tensors, as where a model is sharded over all of them"
        )
    if not after:
        return ReplicaComparison(unknown="the ranks' state was not checked after the fault")
    return ReplicaComparison(tuple(_differences(after, groups, struck)), last)


def _looks(records: Iterable[StateChecksums]) -> Iterator[_Look]:
    names: dict[int, tuple[str, ...]] = {}
    found: dict[tuple[int, int], dict[int, Mapping[str, str]]] = {}
    at: dict[tuple[int, int], float] = {}
    # A rank that was started again, or went back, may do steps again that another one has behind it.
    newest: dict[int, tuple[int, int]] = {}
    num_returns = 0
    for record in records:
        if record.rank is None or record.step is None:
            continue
        if record.tensors:
            names[record.pid] = record.tensors
        own = names.get(record.pid, ())
        if len(record.sums) != _DIGITS * len(own):
            continue
        sums = (record.sums[start : start + _DIGITS] for start in range(0, len(record.sums), _DIGITS))
        pid, step = newest.get(record.rank, (record.pid, 0))
        num_returns += record.pid != pid or record.step < step
        newest[record.rank] = record.pid, record.step
        key = num_returns, record.step
        found.setdefault(key, {})[record.rank] = dict(zip(own, sums, strict=True))
        at[key] = record.monotonic_seconds
    return (_Look(key[1], at[key], held) for key, held in found.items() if len(held) > 1)


def _held_in_common(looks: Sequence[_Look]) -> dict[str, list[frozenset[int]]]:
    """Of each tensor the groups of ranks that were equal in every look at all ranks; groups of one are left out."""
    num_ranks = max(len(look.held) for look in looks)
    groups: dict[str, list[frozenset[int]]] = {}
    for look in (look for look in looks if len(look.held) == num_ranks):
        for tensor in {name for held in look.held.values() for name in held}:
            by_sum: dict[str, set[int]] = {}
            for rank, held in look.held.items():
                if tensor in held:
                    by_sum.setdefault(held[tensor], set()).add(rank)
            known = groups.get(tensor, [frozenset(look.held)])
            groups[tensor] = [group & ranks for group in known for ranks in by_sum.values()]
    common = {tensor: [group for group in found if len(group) > 1] for tensor, found in groups.items()}
    return {tensor: found for tensor, found in common.items() if found}


def _differences(
    looks: Sequence[_Look], groups: Mapping[str, Sequence[frozenset[int]]], struck: Sequence[int]
) -> Iterator[Difference]:
    for tensor, group in ((tensor, group) for tensor, found in groups.items() for group in found):
        since: tuple[int, tuple[int, ...]] | None = None
        for look in looks:
            sums = {rank: look.held[rank][tensor] for rank in group & look.held.keys() if tensor in look.held[rank]}
            if len(sums) < 2:
                continue
            odd = _odd_ones(sums, struck)
            if odd and since is None:
                since = look.step, odd
            elif not odd and since is not None:
                yield Difference(tensor, since[1], since[0], look.step)
                since = None
        if since is not None:
            yield Difference(tensor, since[1], since[0])


def _odd_ones(sums: Mapping[int, str], struck: Sequence[int]) -> tuple[int, ...]:
    """The ranks that hold something else than most do; where as many do, than those that no fault struck."""
    if len(set(sums.values())) < 2:
        return ()
    votes = list(sums.values())
    usual = max(sums, key=lambda rank: (votes.count(sums[rank]), rank not in struck, -rank))
    return tuple(sorted(rank for rank in sums if sums[rank] != sums[usual]))
