"""The paper's claims, each with our finding and the verdict, which follows from the figures; and open questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mecefo_chaos.studies.papers.reft.claims import (
    LOADING_SPEEDUP,
    REDUNDANCY_OVERHEAD_RATIO,
    SAVING_SPEEDUP,
    SOURCE_WORDS,
)
from mecefo_chaos.studies.papers.reft.odds import SchemeRow
from mecefo_chaos.studies.papers.reft.real.draws import Draw
from mecefo_chaos.studies.papers.reft.real.rungs import RungRun
from mecefo_chaos.studies.papers.reft.sampling import Memory
from mecefo_chaos.studies.papers.reft.saving import (
    BUDGET_RATIO,
    COMMAND,
    DEFAULT_PROTECTION,
    WHOLE,
    Saving,
    Way,
    times_less,
)
from mecefo_chaos.studies.papers.reft.schemes import IN_NODE, NUM_NODES, SMALL
from mecefo_chaos.studies.papers.rules import (
    NOT_CHECKED,
    Measured,
    always,
    at_least,
    every,
    figures_of,
    less_than,
    within,
)
from mecefo_chaos.studies.papers.verdicts import Finding, Open, Verdict
from mecefo_chaos.studies.papers.views import measured_text

_EXACT = 1e-9


def findings(
    rows: Sequence[SchemeRow], draws: Sequence[Draw], runs: Sequence[RungRun], saving: Saving | None
) -> tuple[Finding, ...]:
    """All of them, with the source of each claim."""
    return (
        *_of_saving(saving),
        _of_survival(rows),
        _of_steps_lost(runs),
        *_of_nodes(draws),
        _of_software(runs),
        *_of_memory(rows),
        *_of_later_versions(draws),
    )


def _of_saving(saving: Saving | None) -> Iterator[Finding]:
    """Against asynchronous checkpoints of a rank's share, and against those of the whole state by every rank."""
    ours = None if saving is None else saving.snapshots.get(DEFAULT_PROTECTION)
    for words, is_whole in (("of a rank's share", False), ("of the whole state on every rank", True)):
        others = {
            name: way
            for name, way in (saving.asynchronous if saving is not None else {}).items()
            if name.endswith(WHOLE) == is_whole
        }
        yield _of_stopped_time(words, saving, ours, others)
        yield _of_frequency(words, saving, ours, others)


def _of_stopped_time(words: str, saving: Saving | None, ours: Way | None, others: Mapping[str, Way]) -> Finding:
    cells = {name: None if ours is None else times_less(ours, way) for name, way in others.items()}
    return Finding(
        f"saving is faster than asynchronous checkpoints {words}",
        f"more than {SAVING_SPEEDUP:g} times ({SOURCE_WORDS['abstract']})",
        "training is stopped for less by a factor of "
        + "; ".join(f"{measured_text(one, '.1f')} ({name})" for name, one in cells.items())
        if saving is not None and ours is not None and cells
        else "not measured",
        every(at_least(one, SAVING_SPEEDUP) for one in cells.values()),
        _saving_reason(saving, ours, others),
        f"the factor is at least {SAVING_SPEEDUP:g} in every round",
        figures_of(cells),
    )


def _of_frequency(words: str, saving: Saving | None, ours: Way | None, others: Mapping[str, Way]) -> Finding:
    own = None if ours is None else ours.least_interval
    cells = {name: way.least_interval for name, way in others.items()}
    own_name = f"a snapshot, {DEFAULT_PROTECTION}"
    return Finding(
        f"snapshots are more frequent than asynchronous checkpoints {words}, for the same stopped time",
        f"yes ({SOURCE_WORDS['abstract']})",
        f"every {measured_text(own, '.2f')} s ({own_name}), against "
        + ", ".join(f"{measured_text(one, '.2f')} s ({name})" for name, one in cells.items())
        if saving is not None and ours is not None and cells
        else "not measured",
        every(less_than(own, one) for one in cells.values()),
        f"{_saving_reason(saving, ours, others)}{_control(saving, ours)}",
        f"all intervals at which a snapshot stops training for {BUDGET_RATIO:.0%} of the time are below all of the "
        "others'; ranges that overlap show no difference",
        figures_of({own_name: own, **cells}),
    )


def _saving_reason(saving: Saving | None, ours: Way | None, others: Mapping[str, Way]) -> str:
    if saving is None or ours is None or not others:
        return f"`{COMMAND}` measures it"
    ratio = min(way.bytes_per_rank for way in others.values()) / ours.bytes_per_rank
    beside = (
        "the others copy as much on a rank"
        if ratio == 1
        else f"the others copy {ratio:.1f} times as much on a rank, which alone makes them stop training for longer"
    )
    return (
        f"{saving.state_bytes / 2**20:.0f} MiB, no GPU whose copy could continue beside training, no network; "
        f"{beside}. "
        "With which of both the paper compares our notes do not say"
    )


def _control(saving: Saving | None, ours: Way | None) -> str:
    bare = None if saving is None else saving.snapshots.get("none")
    if bare is None or ours is None:
        return ""
    return (
        f". Control: a snapshot without protection stops training for {measured_text(bare.stopped, '.1f', 1000)} ms, "
        f"one with {DEFAULT_PROTECTION} for {measured_text(ours.stopped, '.1f', 1000)} ms. Parity is computed later, "
        "so both should be equal: a difference as small as theirs is noise"
    )


def _of_survival(rows: Sequence[SchemeRow]) -> Finding:
    return Finding(
        "parameters survive with a higher probability than with existing checkpointing methods",
        f"yes ({SOURCE_WORDS['abstract']})",
        f"not checked against checkpointing; two of {rows[0].num_nodes} nodes lost at once: "
        + ", ".join(
            f"{row.by_num_lost[1]:.3f} with {row.scheme} ({row.parity_ratio:.0%} more memory)"
            for row in rows
            if row.num_nodes == rows[0].num_nodes and row.scheme != IN_NODE.name
        ),
        NOT_CHECKED,
        "no other method's survival is computed here: a checkpoint on disk outlives every node, but not the steps "
        "since then (see the next claim)",
    )


def _of_steps_lost(runs: Sequence[RungRun]) -> Finding:
    parity, checkpoint = (
        Measured.of(run.steps_lost for run in runs if run.rung == rung and run.steps_lost is not None)
        for rung in ("parity", "checkpoint")
    )
    return Finding(
        "less is trained again than from the nearest checkpoint",
        f"yes ({SOURCE_WORDS['abstract']})",
        f"steps lost with all nodes that hold a stage: {measured_text(parity, 'g')} from parity, "
        f"{measured_text(checkpoint, 'g')} from a checkpoint",
        less_than(parity, checkpoint),
        "with a snapshot after every step and a checkpoint after every ten, as configured in these runs; how much "
        "either costs is not compared",
        "every run from parity lost fewer steps than every run from a checkpoint",
        figures_of({"parity": parity, "checkpoint": checkpoint}),
    )


def _of_nodes(draws: Sequence[Draw]) -> Iterator[Finding]:
    protected = [draw for draw in draws if draw.scheme != "none" and draw.lost]
    beyond = [draw for draw in protected if not draw.survives]
    by_scheme = {
        scheme.name: [draw.outcome == "restored" for draw in protected if draw.survives and draw.scheme == scheme.name]
        for scheme in SMALL
        if scheme.protection != "none"
    }
    yield Finding(
        "the state of a lost node is rebuilt from the others",
        f"yes ({SOURCE_WORDS['abstract']})",
        "bit for bit in "
        + ", ".join(f"{sum(held)} of {len(held)} real draws ({scheme})" for scheme, held in by_scheme.items()),
        every(always(sum(held), len(held)) for held in by_scheme.values()),
        f"draws that the protection tolerates; {len(beyond)} more lost more nodes, of which "
        f"{sum(draw.outcome == 'refused' for draw in beyond)} were refused",
        "all of these draws of every protection were restored",
        figures_of({scheme: Measured.of(map(float, held)) for scheme, held in by_scheme.items()}),
    )
    again = [draw for draw in draws if draw.before]
    closed = [draw for draw in again if draw.outcome == "restored" and not _survives_at_once(draw)]
    yield Finding(
        "encoding again after a loss makes the next one tolerable",
        f"- ({SOURCE_WORDS['summary']})",
        f"{len(closed)} of {len(again)} real draws were restored although the same nodes lost at once would have been "
        "too many",
        "no claim",
        "the others form groups among each other with the next snapshot; our notes of the paper do not say",
    )


def _survives_at_once(draw: Draw) -> bool:
    scheme = next(one for one in SMALL if one.name == draw.scheme)
    return Memory(scheme.groups(NUM_NODES)).survives({*draw.before, *draw.lost})


def _of_software(runs: Sequence[RungRun]) -> Finding:
    killed = [run.served == "snapshot" for run in runs if run.rung == "snapshot"]
    return Finding(
        "snapshots outlive the trainer when its software fails",
        f"always ({SOURCE_WORDS['abstract']})",
        f"{sum(killed)} of {len(killed)} jobs continued from memory after every training process was killed",
        always(sum(killed), len(killed)),
        "the process that owns the memory has its own session; SIGKILL alone is tried, no other software failure",
        "all of these jobs continued from memory",
        figures_of({"kill-job": Measured.of(map(float, killed))}),
    )


def _of_memory(rows: Sequence[SchemeRow]) -> Iterator[Finding]:
    cells: dict[str, Measured | None] = {}
    verdicts: list[Verdict] = []
    for row in rows:
        if not row.scheme.startswith("XOR"):
            continue
        size = int(row.scheme.rpartition("=")[2])
        cells[f"{row.scheme}, {row.num_nodes} nodes"] = row.parity
        verdicts.append(within(row.parity, 1 / (size - 1) - _EXACT, 1 / (size - 1) + _EXACT))
    yield Finding(
        "RAIM5's parity of n nodes takes 1/(n - 1) of what it protects",
        f"1/(n - 1) ({SOURCE_WORDS['summary']})",
        "; ".join(f"{name}: {measured_text(one, '.1%')}" for name, one in cells.items()),
        every(verdicts),
        "n groups of the product. A node holds more: two buffers of every snapshot, so that one is always whole",
        "exactly 1/(n - 1) in every group",
        figures_of(cells),
    )


def _of_later_versions(draws: Sequence[Draw]) -> Iterator[Finding]:
    alone = [draw.outcome != "restored" for draw in draws if draw.scheme == "none" and draw.lost]
    yield Finding(
        "protection moves into the node, so that encoding needs no network",
        f"yes ({SOURCE_WORDS['later']})",
        "not checked: this product encodes between nodes alone",
        NOT_CHECKED,
        "it takes an encoding within the node",
    )
    yield Finding(
        "what only the node itself holds is lost with it",
        f"survives software, not the node ({SOURCE_WORDS['later']})",
        f"{sum(alone)} of {len(alone)} real draws without protection between nodes were refused",
        always(sum(alone), len(alone)),
        "of snapshots without any protection; an encoding within the node is not tried",
        "none of these draws was restored",
        figures_of({"none": Measured.of(map(float, alone))}),
    )
    yield Finding(
        "no saving overhead for Llama-2-34B on 256 MI250X, for copies within the node",
        f"none; about {REDUNDANCY_OVERHEAD_RATIO:.0%} for copies ({SOURCE_WORDS['later']})",
        "not measured",
        NOT_CHECKED,
        "it takes those GPUs; what a snapshot costs a small job on this machine `python -m benchmarks.snapshots` says",
    )
    yield Finding(
        "loads from memory are faster than from NFS",
        f"up to {LOADING_SPEEDUP:g} times ({SOURCE_WORDS['later']})",
        "not measured",
        NOT_CHECKED,
        "there is no NFS here, and files of this size are read from the page cache",
    )


OPEN: tuple[Open, ...] = (
    Open(
        "how long a snapshot stops training on GPUs, and whether encoding disturbs other traffic between nodes",
        "`python -m benchmarks.snapshots` on nodes with GPUs and a network of their own",
    ),
    Open(
        "whether snapshots are more frequent than asynchronous checkpoints, where the ranges overlap",
        f"`{COMMAND}` on a machine whose values vary less than the ways differ",
    ),
    Open(
        "whether parameters survive with a higher probability than with existing checkpointing methods",
        "which methods the paper means, and what survives there: its full text",
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
