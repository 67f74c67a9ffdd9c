"""Real draws: snapshot processes of eight nodes with real memory and sockets, of which some are killed, and a restore.

A draw is one such cluster with a new state, protected. Which nodes are lost follows from the seed, and so does whether
the product's own code says that the state survives; both must come to the same, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mecefo_chaos.studies.papers.reft.real.nodes import ForkServer, Nodes
from mecefo_chaos.studies.papers.reft.sampling import Memory, Sample, draw_losses, draw_short_lived
from mecefo_chaos.studies.papers.reft.schemes import NUM_NODES, SMALL, Scheme
from mecefo_runtime.job.state_source import Version
from mecefo_runtime.state.stored import StoredStateRefused

# Lifetimes by Weibull, each node lost with a probability of about a fifth.
SHAPE, TIME_RATIO = 0.78, 0.15
# Every so many draws the one is by lifetimes; and every so many, survivors encode again before the next are lost.
_LIFETIMES_EVERY, _SECOND_EVERY = 3, 10
Kind = Literal["at once", "lifetimes", "after re-encoding"]
Outcome = Literal["restored", "refused", "wrong"]


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw: `lost` nodes of eight under the protection `scheme`, and what came of it.

    `kind`: `at once` so many nodes, any set equally likely; `lifetimes`: those whose lifetimes were too short; `after
    re-encoding`: `lost` after the nodes `before` were lost and the others had made a new snapshot among each other.
    `survives` is what the product's pure code says of it. `restored`: the state came back bit for bit; `refused`: it
    was said that it cannot be had, and `reason` why; `wrong`: anything else.
    """

    number: int
    kind: Kind
    scheme: str
    lost: tuple[int, ...]
    survives: bool
    outcome: Outcome
    reason: str = ""
    before: tuple[int, ...] = ()
    state_bytes: int = 0
    protect_seconds: float = 0.0
    restore_seconds: float | None = None

    @property
    def is_right(self) -> bool:
        """Whether what came of it is what had to."""
        return self.outcome == ("restored" if self.survives else "refused")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a draw does."""

    number: int
    kind: Kind
    scheme: Scheme
    lost: tuple[int, ...]
    before: tuple[int, ...] = ()


def plan_draw(number: int, seed: int) -> Plan:
    """The draw `number` of a `seed`; schemes take turns."""
    generator = np.random.default_rng([seed, number])
    scheme = SMALL[number % len(SMALL)]
    turn = number // len(SMALL)
    if scheme.protection != "none" and turn % _SECOND_EVERY == _SECOND_EVERY - 1:
        before = draw_losses(NUM_NODES, 1, generator)
        others = [node for node in range(NUM_NODES) if node not in before]
        lost = tuple(sorted(int(node) for node in generator.choice(others, int(generator.integers(1, 4)), False)))
        return Plan(number, "after re-encoding", scheme, lost, before)
    if turn % _LIFETIMES_EVERY == _LIFETIMES_EVERY - 1:
        return Plan(number, "lifetimes", scheme, draw_short_lived(NUM_NODES, TIME_RATIO, SHAPE, generator))
    num_lost = int(generator.choice(num_lost_at_once(scheme)))
    return Plan(number, "at once", scheme, draw_losses(NUM_NODES, num_lost, generator))


def num_lost_at_once(scheme: Scheme) -> range:
    """So many nodes are lost at once: as many as all groups together can bear, and more."""
    # Without protection one is too many.
    return range(3) if scheme.protection == "none" else range(1, 6)


def run_draw(server: ForkServer, plan: Plan, seed: int) -> Draw:
    """Do it.

    Raises:
        chaos.errors.EnvironmentFailure: processes did not do in time what they do when nothing is lost.
    """
    is_borne = survives(plan)
    state_seed = seed * 1_000_003 + plan.number
    version = Version(1, f"draw {plan.number}")
    with Nodes(server, plan.scheme) as nodes:
        values, seconds = nodes.snapshot(version, state_seed)
        if plan.before:
            nodes.lose(plan.before)
            version = Version(2, version.lineage)
            values, seconds = nodes.snapshot(version, state_seed + 500_000)
        nodes.lose(plan.lost)
        began = time.monotonic()
        outcome, reason = _restore(nodes, plan, version, values)
        restore_seconds = time.monotonic() - began
    return Draw(
        number=plan.number,
        kind=plan.kind,
        scheme=plan.scheme.name,
        lost=plan.lost,
        survives=is_borne,
        outcome=outcome,
        reason=reason,
        before=plan.before,
        state_bytes=sum(value.nbytes for value in values.values()),
        protect_seconds=round(seconds, 4),
        restore_seconds=round(restore_seconds, 4) if outcome == "restored" else None,
    )


def survives(plan: Plan) -> bool:
    """Whether the coordinator would find the state, by its own code, in what the lost nodes leave."""
    groups = plan.scheme.groups(NUM_NODES)
    if not plan.before:
        return Memory(groups).survives(plan.lost)
    # Those who are left form groups among each other.
    left = [node for node in range(NUM_NODES) if node not in plan.before]
    return Memory(plan.scheme.groups_among(left)).survives(plan.lost)


def _restore(nodes: Nodes, plan: Plan, version: Version, values: Mapping[str, Tensor]) -> tuple[Outcome, str]:
    try:
        found = nodes.restore()
    except StoredStateRefused as error:
        return "wrong", f"was offered and could not be had: {error}"
    if found is None:
        if plan.before:
            return "refused", "no version can be put together"
        reason = nodes.demand(version, plan.lost)
        return ("wrong", "was given out though too much is lost") if reason is None else ("refused", reason)
    chosen, units = found
    if chosen != version:
        return "wrong", f"step {chosen.step} was chosen"
    if set(units) != set(values) or not all(_is_same(units[name], values[name]) for name in values):
        return "wrong", "what came back is not what was stored"
    return "restored", ""


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def run_draws(numbers: range, seed: int, logs: Path, done: Callable[[Draw], None]) -> None:
    """All of `numbers`, one after the other; `done` hears of each."""
    with ForkServer(logs) as server:
        for number in numbers:
            done(run_draw(server, plan_draw(number, seed), seed))


def sample_of(draws: Sequence[Draw], scheme: str, num_lost: int | None) -> Sample:
    """Of the draws with so many nodes lost at once, None: of those by lifetimes; restored bit for bit of all."""
    some = [
        draw
        for draw in draws
        if draw.scheme == scheme
        and (draw.kind == "lifetimes" if num_lost is None else draw.kind == "at once" and len(draw.lost) == num_lost)
    ]
    return Sample(len(some), sum(draw.outcome == "restored" for draw in some))
