"""Whether the replicas of an external job still agree, by the checksums that the ranks report.

Which ranks hold the same is not known of a script that was not changed. It is found out: what was equal, bit by bit, in
every look before the first fault is expected to stay so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.contained import charge
from mecefo_runtime.system.command_records import StateChecksums
from mecefo_runtime.system.reason import Reason

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

    `unknown` says why a value that one rank alone has wrong could not have been seen, None where it could; `failure`
    that the comparison itself failed.
    """

    differences: tuple[Difference, ...] = ()
    last_step: int | None = None
    unknown: Reason | None = None
    failure: Reason | None = None

    @property
    def lasting(self) -> tuple[Difference, ...]:
        """Those that were still there at the last look."""
        return tuple(one for one in self.differences if one.until_step is None)


@dataclass(frozen=True, slots=True)
class _Held:
    """What one rank held: the sums of all its tensors in one string, and by tensor where its own begins in it."""

    places: Mapping[str, int]
    sums: str

    def of(self, tensor: str) -> str | None:
        """The sum of one tensor; None: the rank has none of that name."""
        start = self.places.get(tensor)
        return None if start is None else self.sums[start : start + _DIGITS]


@dataclass(frozen=True, slots=True)
class _Look:
    """What several ranks held after one step, by rank. `at_seconds` is when the last of them told."""

    step: int
    at_seconds: float
    held: Mapping[int, _Held]

    @property
    def is_alike(self) -> bool:
        """Whether all of them hold the same: the usual case, in which no tensor has to be looked at by itself."""
        first, *others = self.held.values()
        return all(one.sums == first.sums and one.places == first.places for one in others)


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
        return ReplicaComparison(unknown=Reason("no_looks"))
    if not before:
        return ReplicaComparison(unknown=Reason("none_before_fault"))
    groups = _held_in_common(before)
    last = after[-1].step if after else None
    if not groups:
        return ReplicaComparison(last_step=last, unknown=Reason("sharded"))
    if not after:
        return ReplicaComparison(unknown=Reason("none_after_fault"))
    return ReplicaComparison(tuple(_differences(after, groups, frozenset(struck))), last)


def _looks(records: Iterable[StateChecksums]) -> Iterator[_Look]:
    names: dict[int, Mapping[str, int]] = {}
    # Ranks that tell the same names share what is made of them.
    places_of: dict[tuple[str, ...], Mapping[str, int]] = {(): {}}
    found: dict[tuple[int, int], dict[int, _Held]] = {}
    at: dict[tuple[int, int], float] = {}
    # A rank that was started again, or went back, may do steps again that another one has behind it.
    newest: dict[int, tuple[int, int]] = {}
    num_returns = 0
    for record in records:
        if record.rank is None or record.step is None:
            continue
        if record.tensors:
            known = places_of.get(record.tensors)
            if known is None:
                known = {name: _DIGITS * place for place, name in enumerate(record.tensors)}
                places_of[record.tensors] = known
            names[record.pid] = known
        own = names.get(record.pid, places_of[()])
        if len(record.sums) != _DIGITS * len(own):
            continue
        pid, step = newest.get(record.rank, (record.pid, 0))
        num_returns += record.pid != pid or record.step < step
        newest[record.rank] = record.pid, record.step
        key = num_returns, record.step
        found.setdefault(key, {})[record.rank] = _Held(own, record.sums)
        at[key] = record.monotonic_seconds
    return (_Look(key[1], at[key], held) for key, held in found.items() if len(held) > 1)


def _held_in_common(looks: Sequence[_Look]) -> dict[str, list[tuple[int, ...]]]:
    """Of each tensor the groups of ranks that were equal in every look at all ranks; groups of one are left out.

    A look only ever splits groups, so the ranks in the groups of a tensor never become more.
    """
    num_ranks = max(len(look.held) for look in looks)
    groups: dict[str, list[tuple[int, ...]]] = {}
    grouped: set[int] = set()
    # Ranks with the same names share one object, which is looked through once.
    named: set[int] = set()
    for look in (look for look in looks if len(look.held) == num_ranks):
        ranks = tuple(sorted(look.held))
        grouped.update(ranks)
        for held in look.held.values():
            if id(held.places) not in named:
                named.add(id(held.places))
                for tensor in held.places:
                    groups.setdefault(tensor, [ranks])
        if look.is_alike and grouped <= look.held.keys():
            continue
        charge(len(groups) + sum(len(held.places) for held in look.held.values()))
        for tensor, known in groups.items():
            if known and any(tensor in held.places for held in look.held.values()):
                groups[tensor] = [part for group in known for part in _equal(look, tensor, group)]
    return {tensor: found for tensor, found in groups.items() if found}


def _equal(look: _Look, tensor: str, group: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The parts of `group` that hold the same of `tensor`, as far as they have two ranks or more."""
    by_sum: dict[str, list[int]] = {}
    for rank in group:
        held = look.held.get(rank)
        own = None if held is None else held.of(tensor)
        if own is not None:
            by_sum.setdefault(own, []).append(rank)
    return (tuple(ranks) for ranks in by_sum.values() if len(ranks) > 1)


def _differences(
    looks: Sequence[_Look], groups: Mapping[str, Sequence[tuple[int, ...]]], struck: Collection[int]
) -> Iterator[Difference]:
    """In the order in which they were seen."""
    every = [(tensor, group) for tensor, found in groups.items() for group in found]
    # By the number of a group: since which step, and which ranks.
    since: dict[int, tuple[int, tuple[int, ...]]] = {}
    # By when it was seen, and of what it was.
    found: dict[tuple[int, int], Difference] = {}
    began: dict[int, int] = {}
    for number, look in enumerate(looks):
        # Where all hold the same, only what differed before can have changed.
        of = sorted(since) if look.is_alike else range(len(every))
        charge(sum(len(every[index][1]) for index in of))
        for index in of:
            tensor, group = every[index]
            told = ((rank, held.of(tensor)) for rank in group if (held := look.held.get(rank)) is not None)
            sums = {rank: own for rank, own in told if own is not None}
            if len(sums) < 2:
                continue
            odd = _odd_ones(sums, struck)
            if odd and index not in since:
                since[index], began[index] = (look.step, odd), number
            elif not odd and index in since:
                step, ranks = since.pop(index)
                found[began[index], index] = Difference(tensor, ranks, step, look.step)
    for index, (step, ranks) in since.items():
        found[began[index], index] = Difference(every[index][0], ranks, step)
    return (found[key] for key in sorted(found))


def _odd_ones(sums: Mapping[int, str], struck: Collection[int]) -> tuple[int, ...]:
    """The ranks that hold something else than most do; where as many do, than those that no fault struck."""
    votes = Counter(sums.values())
    if len(votes) < 2:
        return ()
    usual = max(sums, key=lambda rank: (votes[sums[rank]], rank not in struck, -rank))
    return tuple(sorted(rank for rank in sums if sums[rank] != sums[usual]))
