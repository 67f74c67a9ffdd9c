"""Two passes of one step, or two states, compared: what differs, and what could not be compared."""

from __future__ import annotations

import base64
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isclose
from operator import eq
from typing import Any, Literal

from mecefo_runtime.system.command_records import CheckpointBegun, StepSeen, TrainingEntered

Kind = Literal[
    "batches",
    "batch_size",
    "content",
    "rates",
    "groups",
    "random",
    "loss",
    "parameters",
    "buffers",
    "optimizer",
    "optimizer_steps",
    "scaler",
]
OF_STATE: tuple[Kind, ...] = ("parameters", "buffers", "optimizer", "optimizer_steps", "scaler")
FOLLOWS: tuple[Kind, ...] = ("loss", "parameters")
"""What differs after a step because something else did."""
_BYTES = 8
# A schedule that is computed again may differ in the last bits.
_RATE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that differs first at `step`, in `ranks`; at `load` it is the state before that step.

    `is_judged`: by itself it makes another training. Of the others it is not known whether they do, or what they
    follow from. `before` and `after` are the values where they say something: learning rates, counts, losses,
    names of random generators; `same_as_step` is the step whose batch it was before.
    """

    kind: Kind
    step: int
    ranks: tuple[int, ...]
    moment: Literal["step", "load"] = "step"
    is_judged: bool = True
    before: Any = None
    after: Any = None
    same_as_step: int | None = None
    num_steps: int = 1


@dataclass(slots=True)
class Compared:
    """The result of a comparison so far."""

    kinds: set[Kind] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)
    found: dict[tuple[Kind, bool], list[Difference]] = field(default_factory=dict)

    def saw(self, kind: Kind, difference: Difference | None) -> None:
        """`kind` was compared."""
        self.kinds.add(kind)
        if difference is not None:
            self.found.setdefault((difference.kind, difference.is_judged), []).append(difference)

    def differences(self) -> tuple[Difference, ...]:
        """Of each kind the first one, with the ranks in which it was there and the number of steps that differ."""
        firsts = []
        for some in self.found.values():
            first = min(one.step for one in some)
            at_first = [one for one in some if one.step == first]
            ranks = tuple(sorted({rank for one in at_first for rank in one.ranks}))
            number = len({one.step for one in some})
            lead = at_first[0]
            firsts.append(
                Difference(
                    lead.kind,
                    first,
                    ranks,
                    lead.moment,
                    lead.is_judged,
                    lead.before,
                    lead.after,
                    lead.same_as_step,
                    number,
                )
            )
        return tuple(sorted(firsts, key=lambda one: (not one.is_judged, one.kind in FOLLOWS, one.step, one.kind)))


class History:
    """Batches seen before, by which other samples are told from other content of the same samples.

    `varies`: some rows of a batch are as before and others are not. The same samples have other content then, and rows
    that were seen before say nothing of an order. Each part is computed when a batch differs, and not before.
    """

    def __init__(self, seen: Sequence[StepSeen], passes: Sequence[tuple[StepSeen, StepSeen]]) -> None:
        """`seen` are all steps before, `passes` the two of each step that was taken twice."""
        self._seen = [one for one in seen if one.step is not None and is_complete(one)]
        self._passes = passes

    @cached_property
    def steps_of(self) -> Mapping[tuple[str, ...], int]:
        """The first step with these batches."""
        found: dict[tuple[str, ...], int] = {}
        for one in self._seen:
            found.setdefault(one.batches, one.step or 0)
        return found

    @cached_property
    def rows(self) -> frozenset[bytes]:
        """The digests of all rows."""
        return frozenset(row for one in self._seen for row in rows_in(one))

    @cached_property
    def varies(self) -> bool:
        """See the class."""
        return any(_is_like_in_part(one, other) for one, other in self._passes)


def is_complete(seen: StepSeen) -> bool:
    """Whether all of its batches were seen."""
    return bool(seen.batches) and all(seen.batches)


def rows_in(seen: StepSeen) -> list[bytes]:
    """The digests of the rows of all its batches, in their order; empty where they cannot be read."""
    found: list[bytes] = []
    for text in seen.batches:
        try:
            raw = base64.b64decode(text, validate=True)
        except ValueError:
            return []
        found += [raw[start : start + _BYTES] for start in range(0, len(raw), _BYTES)]
    return found


def _is_like_in_part(before: StepSeen, after: StepSeen) -> bool:
    if before.batches == after.batches or sizes_of(before) != sizes_of(after):
        return False
    return any(map(eq, rows_in(before), rows_in(after)))


def sizes_of(seen: StepSeen) -> tuple[int, ...]:
    """How many rows each of its batches has."""
    return tuple(len(text.rstrip("=")) * 3 // 4 // _BYTES for text in seen.batches)


def compare_steps(
    rank: int, before: StepSeen, after: StepSeen, groups: tuple[str, str], history: History | None, into: Compared
) -> None:
    """Compare the batches, rates, groups and random states of a step that was taken twice.

    `groups` are the settings of the parameter groups then; `history` is of the passes before `after`'s. None: by
    another number of ranks, so that its batches and random states are others in any case.
    """
    step = after.step or 0
    into.steps.add(step)

    saw = into.saw
    for found in () if history is None else _batches(rank, step, before, after, history):
        saw(*found)
    if before.rates and after.rates:
        is_same = len(before.rates) == len(after.rates) and all(
            isclose(one, two, rel_tol=_RATE_TOLERANCE) for one, two in zip(before.rates, after.rates, strict=True)
        )
        saw("rates", None if is_same else Difference("rates", step, (rank,), before=before.rates, after=after.rates))
    if all(groups):
        saw("groups", None if groups[0] == groups[1] else Difference("groups", step, (rank,)))
    if history is not None and before.random and after.random:
        saw("random", _random(rank, step, before, after))


def _batches(
    rank: int, step: int, before: StepSeen, after: StepSeen, history: History
) -> Iterator[tuple[Kind, Difference | None]]:
    if not (is_complete(before) and is_complete(after)):
        return
    old, new = sizes_of(before), sizes_of(after)
    yield "batch_size", None if old == new else Difference("batch_size", step, (rank,), before=old, after=new)
    if old != new:
        return
    if before.batches == after.batches:
        yield "batches", None
        return
    if before.indices and after.indices:
        same = history.steps_of.get(after.batches)
        is_other = before.indices != after.indices
        yield "batches", Difference("batches", step, (rank,), same_as_step=same) if is_other else None
        if not is_other:
            yield "content", Difference("content", step, (rank,), is_judged=False, after="same_samples")
        return
    rows = rows_in(after)
    if not history.varies and not history.rows.isdisjoint(rows):
        yield "batches", Difference("batches", step, (rank,), same_as_step=history.steps_of.get(after.batches))
    else:
        # Other samples, or the same ones augmented anew.
        yield "content", Difference("content", step, (rank,), is_judged=False)


def _random(rank: int, step: int, before: StepSeen, after: StepSeen) -> Difference | None:
    names = [name for name in before.random if after.random.get(name, before.random[name]) != before.random[name]]
    if not names:
        return None
    drawn = {*(before.draws or ()), *(after.draws or ())}
    judged = [name for name in names if name in drawn]
    is_known = before.draws is not None and after.draws is not None
    return Difference("random", step, (rank,), is_judged=bool(judged) and is_known, after=tuple(judged or names))


def compare_states(
    rank: int,
    own: CheckpointBegun | None,
    others: Iterable[CheckpointBegun],
    entered: TrainingEntered,
    step: int,
    into: Compared,
    replicated: Container[Kind] = OF_STATE,
) -> None:
    """Compare what was saved with what a rank has before its first step, which is `step`, after the load.

    `own` is what this rank held when it saved, None where it saved nothing; `others` what all ranks that saved held
    then. What is different in each of them, as buffers are under data parallelism, may come from any. A rank that
    saved nothing is compared only by the kinds in `replicated`: of shards the others' digests say nothing.
    """
    every = [one for one in ([own] if own is not None else []) + list(others) if one.is_whole and one.parameters]
    if not every or not entered.is_whole:
        return
    is_sharded = len({one.parameters for one in every}) > 1
    for kind in OF_STATE:
        saved = every
        if kind != "buffers" and own is not None and own in every and (is_sharded or kind != "parameters"):
            saved = [own]
        values = [getattr(one, kind) for one in saved]
        after = getattr(entered, kind)
        if not any(values) and not after:
            continue
        if own is None and (is_sharded or kind == "buffers" or kind not in replicated):
            continue
        is_same = after in values
        shown = kind in ("optimizer_steps", "scaler")
        into.saw(
            kind,
            None
            if is_same
            else Difference(
                kind,
                step,
                (rank,),
                "load",
                before=values[0] if shown else bool(values[0]),
                after=after if shown else bool(after),
            ),
        )
