"""The paper's claims, each with our finding and the verdict; and open questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.papers.reft.claims import (
    LOADING_SPEEDUP,
    REDUNDANCY_OVERHEAD_RATIO,
    SAVING_SPEEDUP,
    SOURCE_WORDS,
)
from harness.papers.reft.odds import SchemeRow
from harness.papers.reft.real.draws import Draw
from harness.papers.reft.real.rungs import RungRun
from harness.papers.reft.sampling import Memory
from harness.papers.reft.saving import BUDGET_RATIO, COMMAND, WHOLE, Saving
from harness.papers.reft.schemes import IN_NODE, NUM_NODES, SMALL, XOR_4
from harness.papers.verdicts import Finding, Open, Verdict

# What is no further apart than this is the same.
_SAME_RATIO = 1.1


def findings(
    rows: Sequence[SchemeRow], draws: Sequence[Draw], runs: Sequence[RungRun], saving: Saving | None
) -> tuple[Finding, ...]:
    """All of them, with the source of each claim."""
    return (
        *_of_saving(saving),
        _of_survival(rows),
        *_of_nodes(draws),
        _of_software(runs),
        _of_memory(rows),
        *_of_later_versions(rows, draws),
    )


def _of_saving(saving: Saving | None) -> Iterator[Finding]:
    faster = f"more than {SAVING_SPEEDUP:g} times ({SOURCE_WORDS['abstract']})"
    claims = (
        "saving is faster than asynchronous checkpointing",
        "snapshots are more frequent for the same stopped time",
    )
    ours = None if saving is None else saving.snapshots.get("xor")
    if saving is None or ours is None or not saving.asynchronous:
        for claim, paper in zip(claims, (faster, f"yes ({SOURCE_WORDS['abstract']})"), strict=True):
            yield Finding(claim, paper, "not measured here", "cannot be decided here", f"`{COMMAND}` measures it")
        return
    stopped = {name: way.stopped_seconds / ours.stopped_seconds for name, way in saving.asynchronous.items()}
    often = {
        name: way.least_interval_seconds / ours.least_interval_seconds for name, way in saving.asynchronous.items()
    }
    why = (
        f"{saving.state_bytes / 2**20:.0f} MiB, no GPU, no network: whoever copies a share of the state into memory, "
        "in the background or not, stops training for as long; a whole state is copied by every rank that saves it"
    )
    yield Finding(
        claims[0], faster, f"training is stopped for less: {_times(stopped)}", _verdict(stopped, SAVING_SPEEDUP), why
    )
    yield Finding(
        claims[1],
        f"yes ({SOURCE_WORDS['abstract']})",
        f"as often as possible: {_times(often)}",
        _verdict(often, _SAME_RATIO),
        f"training may be stopped for {BUDGET_RATIO:.0%} of the time, one save after the other; for the rest as above",
    )


def _verdict(ratios: Mapping[str, float], least: float) -> Verdict:
    return "reproduced" if min(ratios.values()) > least else "not reproduced"


def _times(ratios: Mapping[str, float]) -> str:
    """How many times less, or more often, for a rank's share of the state and for all of it."""
    shares = [ratio for name, ratio in ratios.items() if not name.endswith(WHOLE)]
    wholes = [ratio for name, ratio in ratios.items() if name.endswith(WHOLE)]
    told = [
        f"{min(some):.1f} to {max(some):.1f} times ({words})"
        for some, words in ((shares, "a rank's share"), (wholes, "the whole state"))
        if some
    ]
    return ", ".join(told)


def _of_survival(rows: Sequence[SchemeRow]) -> Finding:
    xor = next(row for row in rows if row.scheme == XOR_4.name)
    alone = next(row for row in rows if row.scheme == IN_NODE.name)
    is_higher = all(xor.by_num_lost[k] > alone.by_num_lost[k] for k in (0, 1))
    return Finding(
        "parameters survive with a higher probability",
        f"yes ({SOURCE_WORDS['abstract']})",
        f"two of {xor.num_nodes} nodes at once: {xor.by_num_lost[1]:.3f} with {xor.scheme}, "
        f"{alone.by_num_lost[1]:g} without",
        "reproduced" if is_higher else "not reproduced",
        "closed form, the product's code and real processes agree: see the gates",
    )


def _of_nodes(draws: Sequence[Draw]) -> Iterator[Finding]:
    protected = [draw for draw in draws if draw.scheme != "none" and draw.lost]
    restored = [draw for draw in protected if draw.outcome == "restored"]
    borne = [draw for draw in protected if draw.survives]
    yield Finding(
        "the state of a lost node is rebuilt from the others",
        f"yes ({SOURCE_WORDS['abstract']})",
        f"bit for bit in {len(restored)} of {len(borne)} real draws that the code can bear",
        "cannot be decided here" if not borne else "reproduced" if len(restored) == len(borne) else "not reproduced",
        f"{len(protected) - len(borne)} more lost more than that: "
        f"{sum(draw.outcome == 'refused' for draw in protected if not draw.survives)} of them were refused",
    )
    again = [draw for draw in draws if draw.before]
    closed = [draw for draw in again if draw.outcome == "restored" and not _survives_at_once(draw)]
    yield Finding(
        "encoding again after a loss makes the next one bearable",
        f"- ({SOURCE_WORDS['summary']})",
        f"{len(closed)} of {len(again)} real draws were restored that all at once would have ended",
        "no claim",
        "the others form groups among each other with the next snapshot; our notes of the paper do not tell",
    )


def _survives_at_once(draw: Draw) -> bool:
    scheme = next(one for one in SMALL if one.name == draw.scheme)
    return Memory(scheme.groups(NUM_NODES)).survives({*draw.before, *draw.lost})


def _of_software(runs: Sequence[RungRun]) -> Finding:
    killed = [run for run in runs if run.rung == "snapshot"]
    served = [run for run in killed if run.served == "snapshot"]
    return Finding(
        "snapshots outlive the trainer when its software fails",
        f"always ({SOURCE_WORDS['abstract']})",
        f"{len(served)} of {len(killed)} jobs of which every training process was killed went on from memory",
        "cannot be decided here" if not killed else "reproduced" if len(served) == len(killed) else "not reproduced",
        "the process that owns the memory is of a session of its own",
    )


def _of_memory(rows: Sequence[SchemeRow]) -> Finding:
    ratios = {row.scheme: row.parity_ratio for row in rows if row.scheme.startswith("XOR")}
    wanted = {scheme: 1 / (int(scheme.rpartition("=")[2]) - 1) for scheme in ratios}
    return Finding(
        "RAIM5 of n nodes takes 1/(n - 1) more memory",
        f"1/(n - 1) ({SOURCE_WORDS['summary']})",
        ", ".join(f"{scheme}: {ratio:.1%}" for scheme, ratio in ratios.items()),
        "reproduced" if all(abs(ratios[one] - wanted[one]) < 1e-9 for one in ratios) else "not reproduced",
        "stripes of the product's groups; and two buffers of every snapshot, so that one is always whole",
    )


def _of_later_versions(rows: Sequence[SchemeRow], draws: Sequence[Draw]) -> Iterator[Finding]:
    row = next(row for row in rows if row.scheme == IN_NODE.name)
    alone = [draw for draw in draws if draw.scheme == "none" and draw.lost]
    survived = sum(draw.outcome == "restored" for draw in alone)
    yield Finding(
        "protection moves into the node, so that encoding needs no network",
        f"survives software, not the node ({SOURCE_WORDS['later']})",
        f"one of {row.num_nodes} nodes lost: {row.by_num_lost[0]:.3f}; {survived} of {len(alone)} real draws "
        "without protection between nodes came back",
        "reproduced" if row.by_num_lost[0] == 0 and not survived else "not reproduced",
        "what a node protects for itself is lost with it; this product protects between nodes alone",
    )
    yield Finding(
        "no saving overhead for Llama-2-34B on 256 MI250X, for copies within the node",
        f"none; about {REDUNDANCY_OVERHEAD_RATIO:.0%} for copies ({SOURCE_WORDS['later']})",
        "not measured here",
        "cannot be decided here",
        "it takes those GPUs; what a snapshot costs a small job on this machine `python -m benchmarks.snapshots` says",
    )
    yield Finding(
        "loads from memory are faster than from NFS",
        f"up to {LOADING_SPEEDUP:g} times ({SOURCE_WORDS['later']})",
        "not measured here",
        "cannot be decided here",
        "there is no NFS here, and files of this size are read from the page cache",
    )


OPEN: tuple[Open, ...] = (
    Open(
        "how long a snapshot stops training on GPUs, and whether encoding disturbs other traffic between nodes",
        "`python -m benchmarks.snapshots` on nodes with GPUs and a network of their own",
    ),
    Open(
        "how often losses follow each other in your cluster: one rack, one switch, one bad batch of hosts",
        "its failure log, as a `--profile`; the closed form takes losses to be independent",
    ),
    Open(
        "how long the loss of a host goes unnoticed: killed processes' connections close at once, a dead host's do not",
        "pulling the plug of a node; here nodes are processes of one machine",
    ),
    Open(
        "the paper's own survival figures: their body text was not at hand, so only the closed form is compared",
        "its full text",
    ),
)
