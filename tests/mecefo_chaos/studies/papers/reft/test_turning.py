"""Every verdict follows from the figures beside it: each figure is moved across its claim, and the verdict turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from mecefo_chaos.studies.papers.reft.findings import findings
from mecefo_chaos.studies.papers.reft.gates import MIN_SAMPLED, gates_of
from mecefo_chaos.studies.papers.reft.odds import Odds, SchemeRow, scheme_rows
from mecefo_chaos.studies.papers.reft.real.draws import Draw
from mecefo_chaos.studies.papers.reft.real.rungs import RungRun
from mecefo_chaos.studies.papers.reft.sampling import Sample
from mecefo_chaos.studies.papers.reft.saving import Saving
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_chaos.studies.papers.verdicts import Finding, Gate
from tests.mecefo_chaos.studies.papers.reft.made import draws_of, runs_of, saving_of, way_of

pytestmark = pytest.mark.unit

# What asserts nothing has no figure that could turn it.
WITHOUT_VERDICT = ("not checked", "no claim")


@dataclass(frozen=True)
class Figures:
    """All that the verdicts are computed from."""

    enumerated: tuple[int, int]
    odds: tuple[Odds, ...]
    rows: tuple[SchemeRow, ...]
    draws: tuple[Draw, ...]
    runs: tuple[RungRun, ...]
    saving: Saving

    def findings(self) -> dict[str, Finding]:
        return {one.claim: one for one in findings(self.rows, self.draws, self.runs, self.saving)}

    def gates(self) -> dict[str, Gate]:
        return {one.name: one for one in gates_of(self.enumerated, self.odds, self.draws, self.runs)}


GOOD = Figures(
    enumerated=(0, 1024),
    odds=(
        Odds(8, "xor", 2, None, 0.5, Sample(MIN_SAMPLED, MIN_SAMPLED // 2), Sample(40, 20)),
        Odds(8, "pq", 2, None, 1.0, Sample(MIN_SAMPLED, MIN_SAMPLED), Sample(40, 40)),
    ),
    rows=scheme_rows(),
    draws=draws_of(240),
    runs=runs_of(3),
    saving=saving_of(0.01, 0.2),
)
Turn = Callable[[Figures], Figures]


def with_way(name: str, seconds: float) -> Turn:
    def turn(figures: Figures) -> Figures:
        methods = {**figures.saving.methods, name: way_of(seconds)}
        return replace(figures, saving=replace(figures.saving, methods=methods))

    return turn


def with_run(rung: str, **changed: object) -> Turn:
    """The first run of that rung is another one."""

    def turn(figures: Figures) -> Figures:
        place = next(number for number, run in enumerate(figures.runs) if run.rung == rung)
        return replace(
            figures, runs=(*figures.runs[:place], replace(figures.runs[place], **changed), *figures.runs[place + 1 :])
        )

    return turn


def with_draw(scheme: str, survives: bool, outcome: str) -> Turn:
    """The first draw of that protection that the product's code judges so comes to something else."""

    def turn(figures: Figures) -> Figures:
        place = next(
            number
            for number, draw in enumerate(figures.draws)
            if draw.lost and draw.scheme == scheme and draw.survives is survives
        )
        changed = replace(figures.draws[place], outcome=outcome)
        return replace(figures, draws=(*figures.draws[:place], changed, *figures.draws[place + 1 :]))

    return turn


def with_odds(**changed: object) -> Turn:
    return lambda figures: replace(figures, odds=(replace(figures.odds[0], **changed), *figures.odds[1:]))


def with_parity(ratio: float) -> Turn:
    """One group of the first XOR row holds another amount of parity."""

    def turn(figures: Figures) -> Figures:
        rows = [
            replace(row, parity=Measured.of([row.parity_ratio] * 3 + [ratio])) if row.scheme == "XOR n=4" else row
            for row in figures.rows
        ]
        return replace(figures, rows=tuple(rows))

    return turn


SHARE, ALL = "DCP async_save, thread", "DCP async_save, thread, whole state"
MORE_FREQUENT = "snapshots are more frequent than asynchronous checkpoints"
CLAIMS: list[tuple[str, Turn, str]] = [
    ("saving is faster than asynchronous checkpoints of a rank's share", with_way(SHARE, 0.1), "not reproduced"),
    (
        "saving is faster than asynchronous checkpoints of a rank's share",
        with_way(SHARE, 0.14),
        "cannot be decided here",
    ),
    (f"{MORE_FREQUENT} of a rank's share, for the same stopped time", with_way(SHARE, 0.01), "cannot be decided here"),
    (f"{MORE_FREQUENT} of a rank's share, for the same stopped time", with_way(SHARE, 0.009), "not reproduced"),
    (
        "saving is faster than asynchronous checkpoints of the whole state on every rank",
        with_way(ALL, 0.1),
        "not reproduced",
    ),
    (
        f"{MORE_FREQUENT} of the whole state on every rank, for the same stopped time",
        with_way(ALL, 0.009),
        "not reproduced",
    ),
    (
        "less is trained again than from the nearest checkpoint",
        with_run("checkpoint", steps_lost=1),
        "cannot be decided here",
    ),
    (
        "less is trained again than from the nearest checkpoint",
        with_run("parity", steps_lost=9),
        "cannot be decided here",
    ),
    ("the state of a lost node is rebuilt from the others", with_draw("xor", True, "refused"), "not reproduced"),
    ("the state of a lost node is rebuilt from the others", with_draw("copy", True, "wrong"), "not reproduced"),
    (
        "snapshots outlive the trainer when its software fails",
        with_run("snapshot", served="checkpoint"),
        "not reproduced",
    ),
    ("RAIM5's parity of n nodes takes 1/(n - 1) of what it protects", with_parity(0.5), "cannot be decided here"),
    ("what only the node itself holds is lost with it", with_draw("none", False, "restored"), "not reproduced"),
]
ENUMERATED = "the closed form counts the sets of lost nodes that the product's code survives"
DRAWN = "losses drawn by chance survive as often as the closed form says"
RIGHT = "real processes: restored bit for bit, or refused, as the product's code says"
LIVED = "real processes survive as often as the closed form says"
HIGHEST = "real runs: state comes from the highest source that is left"
OF_PEER = "steps lost where a peer lives"
OF_MEMORY = "steps lost where the state comes from memory, a snapshot after every step"
LOSSES = "losses after a recovery are those of a run without a fault, relative deviation"
GATES: list[tuple[str, Turn, bool | None]] = [
    (ENUMERATED, lambda figures: replace(figures, enumerated=(1, 1024)), False),
    (DRAWN, with_odds(drawn=Sample(MIN_SAMPLED, MIN_SAMPLED // 4)), False),
    (DRAWN, with_odds(drawn=Sample(MIN_SAMPLED // 2, 20)), None),
    (RIGHT, with_draw("xor", True, "refused"), False),
    (RIGHT, with_draw("xor", False, "restored"), False),
    (LIVED, with_odds(lived=Sample(40, 6)), False),
    (LIVED, lambda figures: replace(figures, draws=figures.draws[:199]), None),
    (HIGHEST, with_run("parity", served="checkpoint"), False),
    (OF_PEER, with_run("peer", steps_lost=1), False),
    (OF_MEMORY, with_run("snapshot", steps_lost=3), False),
    (OF_MEMORY, with_run("parity", steps_lost=3), False),
    (LOSSES, with_run("checkpoint", max_loss_deviation_ratio=2e-3), False),
    (LOSSES, with_run("snapshot", max_loss_deviation_ratio=None), None),
]


@pytest.mark.parametrize(("claim", "turn", "verdict"), CLAIMS)
def test_a_figure_across_its_claim_turns_the_verdict(claim: str, turn: Turn, verdict: str) -> None:
    before, after = GOOD.findings()[claim], turn(GOOD).findings()[claim]
    assert before.verdict == "reproduced"
    assert after.verdict == verdict
    assert after.figures != before.figures and after.ours != before.ours


@pytest.mark.parametrize(("gate", "turn", "passed"), GATES)
def test_a_figure_across_its_limit_turns_the_gate(gate: str, turn: Turn, passed: bool | None) -> None:
    assert GOOD.gates()[gate].passed is True
    assert turn(GOOD).gates()[gate].passed is passed


def test_there_is_no_verdict_that_no_figure_turns() -> None:
    with_verdict = {one.claim for one in GOOD.findings().values() if one.verdict not in WITHOUT_VERDICT}
    assert with_verdict == {claim for claim, _, _ in CLAIMS}
    assert set(GOOD.gates()) == {gate for gate, _, _ in GATES}
    for one in GOOD.findings().values():
        assert (one.verdict in WITHOUT_VERDICT) == (not one.figures) == (not one.rule)


def test_nothing_measured_is_nothing_checked() -> None:
    nothing = Figures((0, 0), (), (), (), (), Saving("", "", "", 0))
    found = findings(GOOD.rows, (), (), nothing.saving)
    assert {one.verdict for one in found if not one.claim.startswith("RAIM5")} == {"not checked", "no claim"}
    assert {one.passed for one in nothing.gates().values()} == {None}
