"""Real runs of the product in which more and more is lost: from where the state came, and what that cost.

The rungs of the ladder are a living peer, snapshots as they are, snapshots rebuilt from parity, a durable checkpoint,
and a clear stop. Each is asked for by a fault of its own; eight nodes of which some are drawn by the seed are asked for
whatever is the highest that is left.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

import numpy as np

from chaos.experiment.experiment import Experiment
from chaos.experiment.reading import from_mapping
from harness.judging.stored import judge
from harness.judging.summary import Summary
from harness.run.execute import execute
from mecefo_chaos.studies.papers.reft.sampling import Memory, draw_losses
from mecefo_chaos.studies.papers.reft.schemes import NUM_NODES, SMALL
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.job_records import JobFailed, SnapshotsProtected
from mecefo_runtime.system.records import parse

Rung = Literal["peer", "snapshot", "parity", "checkpoint", "stop"]
RUNGS: tuple[Rung, ...] = ("peer", "snapshot", "parity", "checkpoint", "stop")
WORDS = {
    "peer": "kill-process: a rank, whose layers a peer holds",
    "snapshot": "kill-job: every training process at once",
    "parity": "kill-node: all holders of a stage with their nodes, P+Q",
    "checkpoint": "the same with XOR, which bears one of the two, and a checkpoint on disk",
    "stop": "the same without a checkpoint",
}
RUNS_FOLDER = "runs"
_STEPS, _EVERY_STEPS, _REPAIR = 60, 10, "8steps"
# Long enough after a checkpoint that snapshots are newer, which would serve.
_FIRST_STEP, _NUM_STRIKES = 24, 5
_NODES_STEPS, _NODES_STEP = 40, 14
_PIPELINE = 4
_FAST = {"dilation": "off", "strategy": "exact", "device": "cpu"}


@dataclass(frozen=True, slots=True)
class RungRun:
    """One run: `expected` to be served by that rung, and `served` by this one; None: it did not come to either.

    `lost` are nodes, where the seed chose them. `steps_lost` had been committed and were trained again,
    `recovery_seconds` is from the injection until the first step after it, `state_seconds` how long of that the
    slowest rank moved or read state. `max_loss_deviation_ratio` is that of the losses from those of a run without a
    fault. `unprotected_seconds` is from the loss of a node's snapshots until the newest version was protected again, by
    encoding it again or because a newer one was. `reason` is why nothing better served, as the log has it.
    """

    rung: str
    seed: int
    expected: Rung
    served: str | None
    lost: tuple[int, ...] = ()
    steps_lost: int | None = None
    recovery_seconds: float | None = None
    state_seconds: float | None = None
    max_loss_deviation_ratio: float | None = None
    unprotected_seconds: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """A run to be made."""

    rung: str
    seed: int
    expected: Rung
    experiment: Experiment
    lost: tuple[int, ...] = ()


def asked_rung(rung: Rung, seed: int) -> Asked:
    """Four nodes of one rank, two replicas of two stages; a seed strikes at another step."""
    step = _FIRST_STEP + seed % _NUM_STRIKES
    protection = "pq" if rung == "parity" else "xor"
    target = {"peer": {"on": f"rank={seed % 4}"}, "snapshot": {}}.get(rung, {"on": f"stage={seed % 2}"})
    kind = {"peer": "kill-process", "snapshot": "kill-job"}.get(rung, "kill-node")
    job: dict[str, object] = {
        **_FAST,
        **_shape(4, pipeline=2),
        "steps": _STEPS,
        "snapshots": {"every": 1, "protection": protection, "memory": "64MiB"},
    }
    if rung != "stop":
        job["checkpoint"] = {"every_steps": _EVERY_STEPS}
    fault = {"kind": kind, **target, "at": {"step": step, "phase": "backward"}}
    if kind != "kill-job":
        fault["repair"] = _REPAIR
    return Asked(rung, seed, rung, from_mapping({"name": f"reft-{rung}", "seed": seed, "job": job, "faults": [fault]}))


def asked_nodes(seed: int) -> Asked:
    """Eight nodes of one rank, two replicas of four stages, and up to four of them lost at once; no checkpoint.

    With odd seeds both nodes of a stage are among them, which is when peers are not enough.
    """
    generator = np.random.default_rng([seed, NUM_NODES])
    scheme = SMALL[1 + seed % (len(SMALL) - 1)]
    lost = set(draw_losses(NUM_NODES, int(generator.integers(1, 3 if seed % 2 else 5)), generator))
    if seed % 2:
        lost |= _holders()[int(generator.integers(_PIPELINE))]
    job: dict[str, object] = {
        **_FAST,
        **_shape(NUM_NODES, pipeline=_PIPELINE),
        "steps": _NODES_STEPS,
        "snapshots": {
            "every": 1,
            "protection": scheme.protection,
            "group": max(2, scheme.group_size),
            "memory": "64MiB",
        },
    }
    fault = {
        "kind": "kill-node",
        "on": f"node={'+'.join(map(str, sorted(lost)))}",
        "at": {"step": _NODES_STEP, "phase": "backward"},
        "repair": _REPAIR,
    }
    experiment = from_mapping(
        {"name": f"reft-{scheme.name}", "seed": seed, "job": job, "faults": [fault], "twin": False}
    )
    return Asked(f"eight nodes, {scheme.name}", seed, _highest_left(scheme.name, lost), experiment, tuple(sorted(lost)))


def _shape(nodes: int, pipeline: int) -> dict[str, object]:
    return {"nodes": nodes, "gpus_per_node": 1, "data_parallel": nodes // pipeline, "pipeline": pipeline}


def _holders() -> list[set[int]]:
    """By stage, the nodes that hold it."""
    cluster = Cluster(NUM_NODES, 1, NUM_NODES // _PIPELINE, _PIPELINE, _PIPELINE, NUM_NODES)
    replicas = range(cluster.data_parallel)
    return [{cluster.rank_at(replica, stage) for replica in replicas} for stage in range(_PIPELINE)]


def _highest_left(scheme: str, lost: Collection[int]) -> Rung:
    if not any(holders <= set(lost) for holders in _holders()):
        return "peer"
    groups = next(one for one in SMALL if one.name == scheme).groups(NUM_NODES)
    return "parity" if Memory(groups).survives(lost) else "stop"


def run_asked(asked: Asked, folder: Path, stream: TextIO) -> RungRun:
    """Run it below `folder`.

    Raises:
        ChaosError: it could not be run.
        KeyboardInterrupt: it was interrupted.
    """
    summary, run_folder = execute(asked.experiment, folder / RUNS_FOLDER, stream)
    if summary.status == "interrupted":
        raise KeyboardInterrupt
    _, events = judge(run_folder)
    records = [parse(event) for event in events]
    failed = next((one.reason for one in records if isinstance(one, JobFailed)), "")
    protected = next((one.seconds for one in records if isinstance(one, SnapshotsProtected)), None)
    return read_run(asked, summary, failed, protected)


def read_run(asked: Asked, summary: Summary, failure: str, unprotected_seconds: float | None = None) -> RungRun:
    """What a run came to; `failure` is why the job could not continue, empty: it could."""
    incident = next(iter(summary.incidents), None)
    restored = None if incident is None else incident.state_restored
    served = None
    if failure:
        served = "stop"
    elif restored is not None and summary.steps_committed == summary.steps_planned:
        served = restored.rung
    return RungRun(
        rung=asked.rung,
        seed=asked.seed,
        expected=asked.expected,
        served=served,
        lost=asked.lost,
        steps_lost=None if restored is None else restored.steps_lost,
        recovery_seconds=None if incident is None else _rounded(incident.recovery_seconds),
        state_seconds=None if restored is None else _rounded(restored.seconds),
        max_loss_deviation_ratio=_rounded(summary.loss_curve_max_deviation_ratio),
        unprotected_seconds=_rounded(unprotected_seconds),
        reason=failure or ("" if restored is None else "; ".join(restored.passed_over.values())),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def all_asked(num_runs: int, num_of_nodes: int, seed: int) -> tuple[Asked, ...]:
    """Every rung so often, and so many runs of eight nodes."""
    return (
        *(asked_rung(rung, seed + number) for number in range(num_runs) for rung in RUNGS),
        *(asked_nodes(seed + number) for number in range(num_of_nodes)),
    )
