"""The comparison itself: every round runs every way once, each round beginning with another."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks._machine import OtherLoad
from benchmarks._runs import progress
from benchmarks.peers import torchft_ddp, torchrun_ddp
from benchmarks.peers.comparison import Outcome, Way, name_recovery, outcome_of
from benchmarks.peers.job import Peer, PeerJob
from benchmarks.peers.processes import run_peer
from chaos.experiment.experiment import Experiment
from harness.run.preparation import check
from mecefo_runtime.job.config import JobConfig

NOTES = (
    "the same for all: the model, whole on every rank (data parallel, one stage, no dilation), the ranks, "
    "microbatches, samples, recipe and seed, one thread per rank, gloo on loopback, the two cores; SIGKILL of the same "
    "rank as it begins the forward pass of the same step; the end is the first commit of a new step that began after "
    "the kill",
    "not the same: our ranks fork from a process that has torch imported; ours go on with all samples of a step, "
    "torchft's survivors with their own shares only, torchrun's start anew with all ranks; ours has the injector "
    "and the event log beside it; a peer's first commit is that of its quickest rank, ours that of the leader",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A way, and how to run it: round number, which is the seed, and folder -> outcome, all but its `others_cores`."""

    way: Way
    run: Callable[[int, Path], Outcome]


def peer_entries(experiment_of: Callable[[int], Experiment], checkpoint_steps: int) -> tuple[list[Entry], list[str]]:
    """(the peers that are installed, lines about those that are not); `experiment_of` a seed is our run with it."""
    entries: list[Entry] = []
    missing: list[str] = []
    if torchft_ddp.is_installed():
        for name, settings in {"recommended": torchft_ddp.RECOMMENDED, "quick": torchft_ddp.QUICK}.items():
            way = Way(f"torchft, {name}", "torchft", str(settings))
            entries.append(_entry(way, torchft_ddp.peer(way.name, settings), experiment_of))
    else:
        missing.append(f"torchft is not installed and was left out: {torchft_ddp.INSTALL}")
    for number in (1, checkpoint_steps):
        settings_text = f"torchrun --max-restarts={torchrun_ddp.MAX_RESTARTS}, rank 0 saves after every {number}. step"
        way = Way(f"torchrun, checkpoint every {number}", "torchrun", settings_text)
        entries.append(_entry(way, torchrun_ddp.peer(way.name, number), experiment_of))
    return entries, missing


def run_rounds(entries: Sequence[Entry], num_rounds: int, folder: Path, cores: Sequence[int]) -> list[Outcome]:
    """All outcomes, in the order in which they were measured."""
    outcomes: list[Outcome] = []
    for round_number in range(num_rounds):
        first = round_number % len(entries)
        for entry in [*entries[first:], *entries[:first]]:
            with OtherLoad(cores) as others:
                outcome = entry.run(round_number, folder)
            outcome = replace(outcome, others_cores=others.num_cores)
            outcomes.append(outcome)
            said = f"FAILED: {outcome.failure}" if outcome.failure else name_recovery(outcome)
            progress(f"round {round_number + 1} of {num_rounds}, {entry.way.name}, {outcome.target}: {said}")
    return outcomes


def _entry(way: Way, peer: Peer, experiment_of: Callable[[int], Experiment]) -> Entry:
    def run(round_number: int, folder: Path) -> Outcome:
        config, incidents = check(experiment_of(round_number))
        assert isinstance(config, JobConfig)
        (victim,) = incidents[0].target.ranks
        fault_step = incidents[0].trigger.step
        assert fault_step is not None, "the kill is at a step"
        place = folder.absolute() / "peers" / way.name.replace(", ", "-").replace(" ", "-")
        place.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix=f"{round_number}-", dir=place))
        job = PeerJob(config, victim, fault_step, own, peer.settings)
        return outcome_of(way, round_number, *run_peer(peer, job))

    return Entry(way, run)
