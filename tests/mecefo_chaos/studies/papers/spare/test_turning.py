"""Every verdict follows from the figures beside it: each figure is moved across its claim, and the verdict turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from mecefo_chaos.studies.papers.rules import Measured
from mecefo_chaos.studies.papers.spare.claims import CLAIMS
from mecefo_chaos.studies.papers.spare.endurance import Endurance
from mecefo_chaos.studies.papers.spare.findings import beyond, findings
from mecefo_chaos.studies.papers.spare.gates import gates_of
from mecefo_chaos.studies.papers.spare.simulated import Row, Simulated
from mecefo_chaos.studies.papers.spare.tables import claim_rows, curve, fits, sensitivities
from mecefo_chaos.studies.papers.verdicts import Finding, Gate
from tests.mecefo_chaos.studies.papers.spare.made import simulated_of

pytestmark = pytest.mark.unit

# What asserts nothing has no figure that could turn it.
WITHOUT_VERDICT = ("not checked", "no claim")


@dataclass(frozen=True)
class Figures:
    """All that the verdicts are computed from."""

    cases: tuple[Endurance, ...]
    simulated: Simulated
    controller: Measured | None

    def findings(self) -> dict[str, Finding]:
        rows, points = claim_rows(self.simulated), curve(self.simulated)
        found = findings(self.cases, rows, points, sensitivities(self.simulated), self.controller)
        return {one.claim: one for one in found}

    def gates(self) -> dict[str, Gate]:
        return {one.name: one for one in gates_of(self.cases, claim_rows(self.simulated))}


GOOD = Figures(
    cases=tuple(Endurance(200, r, 20.0, 20.0, 0.1, 2.0, 2.0, 0.0) for r in range(2, 7)),
    simulated=simulated_of(),
    controller=Measured.of([0.01, 0.02, 0.03]),
)
Turn = Callable[[Figures], Figures]
# A seed, or all of them.
ONE, ALL = (0,), (0, 1, 2)


def with_case(**changed: float) -> Turn:
    return lambda figures: replace(figures, cases=(replace(figures.cases[0], **changed), *figures.cases[1:]))


def with_cases(**changed: float) -> Turn:
    return lambda figures: replace(figures, cases=tuple(replace(case, **changed) for case in figures.cases))


def with_row(row: Row, seeds: tuple[int, ...], name: str, factor: float) -> Turn:
    """That figure of these seeds is so many times the other one."""

    def turn(figures: Figures) -> Figures:
        outcomes = dict(figures.simulated.outcomes)
        outcomes[row] = tuple(
            replace(one, **{name: getattr(one, name) * factor}) if seed in seeds else one
            for seed, one in enumerate(outcomes[row])
        )
        return replace(figures, simulated=replace(figures.simulated, outcomes=tuple(outcomes.items())))

    return turn


def time_of(
    scheme: str, num_groups: int, redundancy: int, seeds: tuple[int, ...], factor: float, assumed: str = ""
) -> Turn:
    return with_row(Row(scheme, num_groups, redundancy, assumed), seeds, "time_ratio", factor)


def as_by_default(assumed: str) -> Turn:
    """Jobs under that reading come out as under the default one, but for one pair."""

    def turn(figures: Figures) -> Figures:
        outcomes = dict(figures.simulated.outcomes)
        for row in outcomes:
            if row.assumed == assumed:
                outcomes[row] = outcomes[replace(row, assumed="")]
        return replace(figures, simulated=replace(figures.simulated, outcomes=tuple(outcomes.items())))

    return turn


ENDURED = "failures endured before a wipe-out: Gamma(1/r)/r N^(1-1/r)"
DEPTH = "mean depth of a step: the mean of ceil(N/(N-k))"
SIMULATED_DEPTH = "the mean depth holds in the simulation"
BEST = "floor(log2 N + 0.833) copies take within 2% of the least time to train"
BEST_SETS = "the best redundancy of replication is 3"
PERIOD = (
    "saving every Tc* = Ts + sqrt(Ts^2 + 2 Ts (Tf + Tr)) takes no longer than saving twice or half as often, within 2%"
)
GAIN = "SPARe takes 40% to 50% less time than replication; "
GAIN_DEFAULT = f"{GAIN}the default reading: each group restarts by itself, and again when it fails meanwhile"
GAIN_ABSORB = f"{GAIN}failures during a restart have no effect"
GAIN_GLOBAL = f"{GAIN}any failure during a restart begins it again for all"
CONTROLLER = "the controller takes at most 0.1 s for about 1,000 groups"
LIMITS = {"spare": 0.02, "replication": 0.05}


def row_name(scheme: str, num_groups: int, redundancy: int) -> str:
    claim = next(
        one for one in CLAIMS if (one.scheme, one.num_groups, one.redundancy) == (scheme, num_groups, redundancy)
    )
    both = " and availability" if claim.availability_ratio is not None else ""
    return f"time to train{both}, {claim.words}"


def slower(seeds: tuple[int, ...], scheme: str, num_groups: int, redundancy: int) -> Turn:
    return time_of(scheme, num_groups, redundancy, seeds, 1.01 + LIMITS[scheme])


CLAIMED: list[tuple[str, Turn, str]] = [
    (ENDURED, with_case(closed=21.0), "cannot be decided here"),
    (ENDURED, with_cases(closed=21.0), "not reproduced"),
    (DEPTH, with_case(excess_depth=0.02), "cannot be decided here"),
    (DEPTH, with_cases(excess_depth=0.02), "not reproduced"),
    (SIMULATED_DEPTH, with_row(Row("spare", 600, 8), ALL, "mean_depth", 1.06), "cannot be decided here"),
    (BEST, time_of("spare", 200, 8, ONE, 1.05), "cannot be decided here"),
    (BEST, time_of("spare", 600, 10, ALL, 1.05), "not reproduced"),
    (BEST_SETS, time_of("replication", 200, 4, ONE, 0.9), "cannot be decided here"),
    (BEST_SETS, time_of("replication", 1000, 4, ALL, 0.9), "not reproduced"),
    (PERIOD, time_of("spare", 200, 9, ONE, 0.95, "period_factor=2"), "cannot be decided here"),
    (PERIOD, time_of("replication", 600, 3, ALL, 0.95, "period_factor=0.5"), "not reproduced"),
    *(
        (row_name(claim.scheme, claim.num_groups, claim.redundancy), turn, verdict)
        for claim in CLAIMS
        for key in ((claim.scheme, claim.num_groups, claim.redundancy),)
        for turn, verdict in ((slower(ONE, *key), "cannot be decided here"), (slower(ALL, *key), "not reproduced"))
    ),
    (
        row_name("spare", 600, 8),
        with_row(Row("spare", 600, 8), ALL, "availability_ratio", 0.97),
        "not reproduced",
    ),
    (GAIN_DEFAULT, time_of("replication", 600, 3, ONE, 0.9), "cannot be decided here"),
    (GAIN_DEFAULT, time_of("replication", 1000, 3, ALL, 0.9), "not reproduced"),
    (GAIN_DEFAULT, time_of("spare", 200, 9, ALL, 0.9), "not reproduced"),
    (CONTROLLER, lambda figures: replace(figures, controller=Measured.of([0.01, 0.02, 0.2])), "cannot be decided here"),
    (CONTROLLER, lambda figures: replace(figures, controller=Measured.of([0.2, 0.3, 0.4])), "not reproduced"),
]
# Of another verdict to begin with: what the made figures say of these readings.
OTHERWISE: list[tuple[str, str, Turn, str]] = [
    (GAIN_ABSORB, "not reproduced", as_by_default("recovery=absorb"), "reproduced"),
    (GAIN_GLOBAL, "cannot be decided here", as_by_default("recovery=global_restart"), "reproduced"),
]
GATES: list[tuple[str, Turn, bool | None]] = [
    (
        "the closed form of failures endured against orders drawn by chance: absolute error",
        with_case(closed=21.0),
        None,
    ),
    (
        "the closed form of failures endured against orders drawn by chance: absolute error",
        with_cases(closed=21.0),
        False,
    ),
    (
        "the closed form of the mean depth against the controller's in such orders: absolute error",
        with_cases(excess_depth=0.1),
        False,
    ),
    *(
        (f"simulated {scheme}: times to train and availabilities against the authors' table", turn, passed)
        for scheme, key in (("spare", ("spare", 600, 20)), ("replication", ("replication", 1000, 3)))
        for turn, passed in ((slower(ONE, *key), None), (slower(ALL, *key), False))
    ),
]


@pytest.mark.parametrize(("claim", "turn", "verdict"), CLAIMED)
def test_a_figure_across_its_claim_turns_the_verdict(claim: str, turn: Turn, verdict: str) -> None:
    before, after = GOOD.findings()[claim], turn(GOOD).findings()[claim]
    assert before.verdict == "reproduced"
    assert after.verdict == verdict
    assert after.figures != before.figures and after.ours != before.ours


@pytest.mark.parametrize(("claim", "before", "turn", "after"), OTHERWISE)
def test_a_reading_that_comes_out_otherwise_turns_the_verdict(claim: str, before: str, turn: Turn, after: str) -> None:
    assert GOOD.findings()[claim].verdict == before
    assert turn(GOOD).findings()[claim].verdict == after


@pytest.mark.parametrize(("gate", "turn", "passed"), GATES)
def test_a_figure_across_its_limit_turns_the_gate(gate: str, turn: Turn, passed: bool | None) -> None:
    assert GOOD.gates()[gate].passed is True
    assert turn(GOOD).gates()[gate].passed is passed


def test_there_is_no_verdict_that_no_figure_turns() -> None:
    found = GOOD.findings().values()
    with_verdict = {one.claim for one in found if one.verdict not in WITHOUT_VERDICT}
    assert with_verdict == {claim for claim, *_ in (*CLAIMED, *OTHERWISE)}
    assert set(GOOD.gates()) == {gate for gate, _, _ in GATES}
    for one in found:
        assert (one.verdict in WITHOUT_VERDICT) == (not one.rule)


def test_nothing_measured_is_nothing_checked() -> None:
    nothing = Figures((), Simulated(), None)
    assert {one.verdict for one in nothing.findings().values()} == {"not checked"}
    assert {one.passed for one in nothing.gates().values()} == {None}


def test_every_cell_beyond_its_limit_is_named() -> None:
    turned = time_of("spare", 600, 20, ONE, 1.03)(with_case(closed=21.0)(GOOD))
    rows, points = claim_rows(turned.simulated), curve(turned.simulated)
    assert {(one.claim, one.cell) for one in beyond(turned.cases, rows, points)} == {
        ("failures endured", "N=200 r=2"),
        ("time to train, spare", "N=600 r=20"),
    }
    assert beyond(GOOD.cases, claim_rows(GOOD.simulated), curve(GOOD.simulated)) == ()


def test_the_reading_that_fits_best_is_the_one_whose_figures_are_nearest() -> None:
    assert fits(GOOD.simulated)[0].mean_error == 0
    worse = GOOD
    for claim in CLAIMS:
        worse = time_of(claim.scheme, claim.num_groups, claim.redundancy, ALL, 1.1)(worse)
    assert fits(worse.simulated)[0].assumed != "" and fits(worse.simulated)[0].mean_error == 0
