"""Which nodes a draw loses, which runs are made, and what is read of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.experiment.job import Job
from harness.analysis.regroups import StateRestore
from harness.judging.summary import UNKNOWN, IncidentSummary, Summary
from mecefo_chaos.studies.papers.reft.real.draws import plan_draw, survives
from mecefo_chaos.studies.papers.reft.real.measured import read_measured
from mecefo_chaos.studies.papers.reft.real.rungs import RUNGS, all_asked, asked_nodes, asked_rung, read_run
from mecefo_chaos.studies.papers.reft.schemes import SMALL

pytestmark = pytest.mark.unit


def test_draws_follow_from_the_seed_and_cover_every_protection_with_losses_on_both_sides_of_what_it_bears() -> None:
    plans = [plan_draw(number, 7) for number in range(240)]
    assert plans == [plan_draw(number, 7) for number in range(240)]
    assert plans != [plan_draw(number, 8) for number in range(240)]
    assert Counter(plan.scheme.name for plan in plans) == {scheme.name: 60 for scheme in SMALL}
    for scheme in SMALL:
        outcomes = Counter(survives(plan) for plan in plans if plan.scheme == scheme)
        assert min(outcomes[True], outcomes[False]) >= 10
    assert {plan.kind for plan in plans} == {"at once", "lifetimes", "after re-encoding"}
    assert all(not set(plan.lost) & set(plan.before) for plan in plans)


def test_the_draws_that_came_with_this_version_are_those_of_their_seed(tmp_path: Path) -> None:
    shipped = read_measured(tmp_path)
    assert shipped.of_draws is not None
    seed = int(shipped.of_draws.command.rpartition(" ")[2])
    for draw in shipped.draws:
        plan = plan_draw(draw.number, seed)
        assert (draw.kind, draw.scheme, draw.lost, draw.before) == (plan.kind, plan.scheme.name, plan.lost, plan.before)
        assert draw.survives == survives(plan)


def test_every_rung_is_asked_for_by_an_experiment_of_its_own_and_eight_nodes_by_whom_the_seed_chooses() -> None:
    asked = all_asked(2, 9, 1)
    assert Counter(one.rung for one in asked if one.rung in RUNGS) == dict.fromkeys(RUNGS, 2)
    of_nodes = [one for one in asked if one.rung not in RUNGS]
    assert len(of_nodes) == 9 and {one.expected for one in of_nodes} >= {"peer", "parity"}
    for one in asked:
        assert isinstance(one.experiment.job, Job) and one.experiment.job.snapshots is not None
        assert (one.experiment.job.checkpoint is None) == (one.rung not in RUNGS or one.rung == "stop")
    assert asked_nodes(3) == asked_nodes(3)


RESTORED = StateRestore(1.0, "parity", 9, 2, 0.25, passed_over={"peer": "nobody lives", "snapshot": "node 1 is lost"})


def test_what_a_run_says_of_itself_is_what_is_kept() -> None:
    incident = IncidentSummary(1, "kill-node", recovery_seconds=0.5, state_restored=RESTORED)
    summary = replace(
        UNKNOWN, incidents=(incident,), steps_committed=60, steps_planned=60, loss_curve_max_deviation_ratio=1e-9
    )
    run = read_run(asked_rung("parity", 1), summary, "")
    assert (run.expected, run.served, run.steps_lost) == ("parity", "parity", 2)
    assert (run.recovery_seconds, run.state_seconds, run.reason) == (0.5, 0.25, "nobody lives; node 1 is lost")


@pytest.mark.parametrize(
    ("summary", "failure", "served"),
    [
        # It did not come to its end: whoever served, it was not enough.
        (replace(UNKNOWN, incidents=(IncidentSummary(1, "x", state_restored=RESTORED),), steps_planned=60), "", None),
        (replace(UNKNOWN, incidents=(IncidentSummary(1, "x"),), steps_committed=60, steps_planned=60), "", None),
        (replace(UNKNOWN, steps_planned=60), "every holder was lost", "stop"),
        (UNKNOWN, "", None),
    ],
)
def test_nobody_served_a_run_that_did_not_recover(summary: Summary, failure: str, served: str | None) -> None:
    run = read_run(asked_rung("parity", 1), summary, failure)
    assert (run.served, run.reason.startswith(failure)) == (served, True)
