"""Gates and claims: what passes, what fails, and what too little was measured for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mecefo_chaos.studies.papers.reft.check import check
from mecefo_chaos.studies.papers.reft.saving import read_saving
from tests.mecefo_chaos.studies.papers.reft.made import draws_of, measured_of, runs_of, saving_of

pytestmark = pytest.mark.unit

# Of each case: what chance draws is not what these are about.
FEW = 10


def gates(measured, saving=None):
    found = check(measured, saving, 1, FEW)
    return [gate.passed for gate in found.gates], found


@pytest.fixture(scope="module")
def good():
    return check(measured_of(), saving_of(0.01, 0.2), 1, FEW)


def test_all_gates_pass_where_all_came_as_it_had_to_and_too_few_draws_leave_theirs_undecided(good) -> None:
    assert [gate.passed for gate in good.gates] == [True, None, *[True] * 6]
    assert good.exit_code == 0 and "100 draws of a cell would decide it" in good.gates[1].reason


def test_what_was_not_measured_leaves_its_gates_undecided() -> None:
    passed, found = gates(measured_of(199, 2))
    # Of runs in which a peer lived there are enough: those of eight nodes count, too.
    assert passed == [True, *[None] * 4, True, None, None] and found.exit_code == 0
    assert "--draws 200 makes them" in found.gates[2].reason and "--runs 3 makes them" in found.gates[4].reason


@pytest.mark.parametrize("outcome", ["wrong", "refused"])
def test_one_draw_that_did_not_come_as_it_had_to_fails(outcome: str) -> None:
    draws = list(draws_of(240))
    place = next(number for number, draw in enumerate(draws) if draw.survives and draw.lost)
    draws[place] = replace(draws[place], outcome=outcome)
    passed, found = gates(replace(measured_of(), draws=tuple(draws)))
    assert passed[2] is False and found.exit_code == 1
    assert f"draw {draws[place].number}" in found.gates[2].reason


def test_state_that_survives_too_often_fails() -> None:
    """As if what is lost had not been chosen by chance, but so that it can be borne."""
    draws = tuple(replace(draw, survives=True, outcome="restored") for draw in draws_of(240))
    passed, _ = gates(replace(measured_of(), draws=draws))
    assert passed[2] is True and passed[3] is False


def test_a_run_that_was_served_by_another_rung_fails() -> None:
    runs = list(runs_of(3))
    runs[1] = replace(runs[1], served="checkpoint", steps_lost=9)
    passed, found = gates(replace(measured_of(), runs=tuple(runs)))
    assert passed[4] is False and "checkpoint instead of snapshot" in found.gates[4].reason


def test_steps_and_losses_that_are_worse_than_said_fail() -> None:
    worse = tuple(replace(run, steps_lost=4, max_loss_deviation_ratio=0.01) for run in runs_of(3))
    passed, _ = gates(replace(measured_of(), runs=worse))
    assert passed[4:] == [True, False, False, False]


@pytest.mark.parametrize(
    ("saving", "verdicts"),
    [
        (None, ["not checked", "not checked"]),
        (saving_of(0.01, 0.2), ["reproduced", "reproduced"]),
        (saving_of(0.01, 0.02), ["not reproduced", "reproduced"]),
        (saving_of(0.01, 0.01), ["not reproduced", "cannot be decided here"]),
        (saving_of(0.02, 0.01), ["not reproduced", "not reproduced"]),
        # As files of earlier versions: medians alone, without a range.
        (saving_of(0.01, 0.2, num=0), ["cannot be decided here", "cannot be decided here"]),
    ],
)
def test_the_claim_of_fast_saving_is_judged_by_the_benchmark(saving, verdicts) -> None:
    found = check(measured_of(), saving, 1, FEW).findings[:4]
    assert [one.verdict for one in found] == verdicts * 2
    assert (found[0].ours == "not measured") == (saving is None)
    assert {figure.n for one in found for figure in one.figures} <= {1, 5}


def test_what_came_with_this_version_is_judged_by_its_ranges(good) -> None:
    """The medians of both ways to copy a share are closer than either varies."""
    shipped = read_saving(None)
    found = {one.claim: one.verdict for one in check(measured_of(), shipped, 1, FEW).findings}
    assert found[
        "snapshots are more frequent than asynchronous checkpoints of a rank's share, for the same stopped time"
    ] == ("cannot be decided here")
    assert all(way.stopped is not None and way.stopped.n == 15 for way in shipped.methods.values())


def test_claims_whose_text_was_not_at_hand_say_so(good) -> None:
    for finding in good.findings:
        assert "abstract" in finding.paper or "not at hand" in finding.paper


def test_the_waste_follows_from_what_was_measured(good) -> None:
    ways = {row.way: row for row in good.evidence.waste if row.failures == "every 30 min"}
    snapshot = ways["a snapshot, XOR"]
    assert snapshot.interval_seconds == pytest.approx((2 * 0.01 * 1800) ** 0.5)
    assert snapshot.per_failure_seconds == pytest.approx(0.5 + snapshot.interval_seconds / 2)
    assert snapshot.waste_ratio < ways["DCP async_save, thread"].waste_ratio < ways["a checkpoint"].waste_ratio
