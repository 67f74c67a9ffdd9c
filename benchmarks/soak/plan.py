"""What a soak does to each of its runs: values drawn from (seed, number of the run), nothing else."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.planners import with_fixed_settings

NUM_STEPS, QUICK_NUM_STEPS = 150, 100
NUM_BLOWS, QUICK_NUM_BLOWS = 6, 3
# One run in so many loses what it cannot do without, and must say so.
FATAL_EVERY = 12
# Of the steps, how many a run trains in peace, for the ranks to have something to lose.
FIRST_BLOW_STEPS = 5
MAX_GAP_STEPS = 15
MAX_REPAIR_STEPS = 12
# A rank that hangs is lost after the heartbeat time-out (2 s): hangs end before, about then, and after.
HANG_SECONDS = (1.0, 4.0)
MAX_FLAPS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes x ranks, and how they make up replicas and stages."""

    nodes: int
    gpus_per_node: int
    data_parallel: int
    pipeline: int

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node} D={self.data_parallel} P={self.pipeline}"


SHAPES = (Shape(4, 2, 4, 2), Shape(2, 2, 2, 2), Shape(3, 1, 3, 1), Shape(2, 3, 2, 3), Shape(4, 1, 2, 2))
# Nobody can be spared: only the coordinator can be lost.
SINGLE_REPLICA = Shape(2, 1, 1, 2)
# Whether their losses must be those of a run without faults.
STRATEGIES: Mapping[str, bool] = {
    "exact": True,
    "mecefo": False,
    "ndb": False,
    "oobleck-like": True,
    "mecefo-paper": False,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """How a blow falls: `first` at a moment of its own, `second` after an event that follows from it.

    Targets: `rank`, `node`, `supervisor`, `coordinator`, `hung-rank`, `hung-coordinator`; `same` is the first target
    again, `newcomer` whoever asks to rejoin; `holders` all holders of a unit, `everybody` all ranks.
    """

    first: tuple[str, ...]
    second: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    is_at_end: bool = False


IN_REGROUP = ("detected", "isolated", "layout", "regrouped")
IN_REJOIN = ("rejoin_requested", "layout")
KINDS: Mapping[str, Kind] = {
    "rank": Kind(("rank",)),
    "node": Kind(("node",)),
    "supervisor": Kind(("supervisor",)),
    "two ranks at once": Kind(("rank", "rank")),
    "rank and node at once": Kind(("rank", "node")),
    "coordinator": Kind(("coordinator",)),
    "coordinator and rank": Kind(("coordinator", "rank")),
    "rank and coordinator": Kind(("rank", "coordinator")),
    "hung rank": Kind(("hung-rank",)),
    "hung coordinator": Kind(("hung-coordinator",)),
    "hung coordinator and rank": Kind(("hung-coordinator", "rank")),
    "rank during regroup": Kind(("rank",), ("rank",), IN_REGROUP),
    "rank during regroup of a node": Kind(("node",), ("rank",), IN_REGROUP),
    "coordinator during regroup": Kind(("rank",), ("coordinator",), IN_REGROUP),
    "hung rank during regroup": Kind(("rank",), ("hung-rank",), IN_REGROUP),
    "rank during rejoin": Kind(("rank",), ("rank",), IN_REJOIN),
    "newcomer during rejoin": Kind(("node",), ("newcomer",), IN_REJOIN),
    "coordinator during rejoin": Kind(("rank",), ("coordinator",), IN_REJOIN),
    "flapping node": Kind(("node",), ("same",), ("rejoined", "rejoin_requested")),
    "rank at the end": Kind(("rank",), is_at_end=True),
    "coordinator at the end": Kind(("coordinator",), is_at_end=True),
}
SINGLE_REPLICA_KINDS = ("coordinator", "hung coordinator", "coordinator at the end")
FATAL_KINDS: Mapping[str, Kind] = {
    "all holders": Kind(("holders",)),
    "all ranks": Kind(("everybody",)),
}


@dataclass(frozen=True, slots=True)
class Blow:
    """One blow: `gap_steps` after the one before and `delay_seconds` more, then `second_delay_seconds` after `event`.

    `num_times` is how often the second part falls. What is lost is repaired `repair_steps` later.
    """

    name: str
    gap_steps: int
    delay_seconds: float
    event: str | None
    second_delay_seconds: float
    num_times: int
    repair_steps: int
    hang_seconds: float

    @property
    def kind(self) -> Kind:
        """What its name stands for."""
        return KINDS.get(self.name) or FATAL_KINDS[self.name]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run. `is_fatal`: it must end with a clear stop; every other one must complete."""

    seed: int
    number: int
    shape: Shape
    strategy: str
    num_steps: int
    blows: tuple[Blow, ...]
    is_fatal: bool

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"run-{self.seed}-{self.number:03}"

    @property
    def is_exact(self) -> bool:
        """Whether its losses must be those of a run without faults."""
        return STRATEGIES[self.strategy] and not self.is_fatal

    def job(self) -> JobConfig:
        """A tiny job of this shape, the same for all runs of one shape but for the strategy."""
        job = JobConfig(
            nodes=self.shape.nodes,
            gpus_per_node=self.shape.gpus_per_node,
            data_parallel=self.shape.data_parallel,
            pipeline=self.shape.pipeline,
            steps=self.num_steps,
            strategy=self.strategy,
            sequence_length=16,
            microbatch_size=1,
            microbatches_per_replica=2,
            # Training on so little data is chaotic: at ten times this rate it makes 1e-7 into 1e-2 within 60 steps.
            learning_rate=3e-4,
        )
        return with_fixed_settings(job)


def plan_run(seed: int, number: int, *, quick: bool) -> RunPlan:
    """Draw a run."""
    draw = random.Random(f"{seed}/{number}")
    is_fatal = number % FATAL_EVERY == FATAL_EVERY - 1
    shape = SINGLE_REPLICA if number % FATAL_EVERY == FATAL_EVERY // 2 else draw.choice(SHAPES)
    strategy = tuple(STRATEGIES)[number % len(STRATEGIES)]
    if is_fatal:
        names = [draw.choice(sorted(FATAL_KINDS))]
    else:
        kinds = SINGLE_REPLICA_KINDS if shape == SINGLE_REPLICA else tuple(KINDS)
        names = draw.choices(kinds, k=QUICK_NUM_BLOWS if quick else NUM_BLOWS)
        # At the end only once, and last.
        at_end = [name for name in names if KINDS[name].is_at_end][:1]
        names = [name for name in names if not KINDS[name].is_at_end] + at_end
    num_steps = QUICK_NUM_STEPS if quick else NUM_STEPS
    return RunPlan(seed, number, shape, strategy, num_steps, tuple(_draw_blow(draw, n) for n in names), is_fatal)


def _draw_blow(draw: random.Random, name: str) -> Blow:
    kind = KINDS.get(name) or FATAL_KINDS[name]
    return Blow(
        name=name,
        gap_steps=draw.randint(0, MAX_GAP_STEPS),
        delay_seconds=round(draw.choice((0.0, draw.uniform(0.0, 0.05))), 4),
        event=draw.choice(kind.events) if kind.events else None,
        # At once, or at some moment of the tens of milliseconds that a regroup takes.
        second_delay_seconds=round(draw.choice((0.0, draw.uniform(0.0, 0.04))), 4),
        num_times=draw.randint(1, MAX_FLAPS) if kind.second == ("same",) else 1,
        repair_steps=draw.randint(1, MAX_REPAIR_STEPS),
        hang_seconds=round(draw.uniform(*HANG_SECONDS), 2),
    )
