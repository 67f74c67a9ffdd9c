"""The step loop: what it must come to where that can be said beforehand, and that each assumption does something."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from mecefo_chaos.studies.papers.spare.assumptions import Assumptions
from mecefo_chaos.studies.papers.spare.claims import CLAIMS
from mecefo_chaos.studies.papers.spare.gates import MAX_ERROR_RATIOS
from mecefo_chaos.studies.papers.spare.schemes import Replicated, Stacked, masking
from mecefo_chaos.studies.papers.spare.simulation import period_steps, simulate
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rectlr import original_stacks, reorder

pytestmark = pytest.mark.unit

# Without failures: one in more time than there is.
NEVER = Assumptions(system_mtbf_seconds=3e7)
SMALL = Assumptions(system_mtbf_seconds=600.0)


def test_without_failures_and_jitter_only_saves_are_more_than_the_time_without() -> None:
    assumptions = replace(NEVER, jitter_ratio=0.0, period_factor=1e-6)
    found = simulate("spare", 50, 4, 1, assumptions, num_steps=11)
    # A save after every step but the last.
    assert found.time_ratio == pytest.approx((11 * 64.5 + 10 * 58.8) / (11 * 64.5))
    assert found.availability_ratio == 1 and found.is_over
    assert (found.steps_begun, found.mean_depth, found.num_failures, found.period_steps) == (11, 1, 0, 1)


def test_jitter_is_that_of_the_slowest_of_all_groups() -> None:
    found = simulate("replication", 50, 3, 1, replace(NEVER, period_factor=1e3), num_steps=3000)
    drawn = np.random.default_rng(2).normal(1, 0.05, (3000, 50)).max(axis=1).mean()
    assert found.time_ratio == pytest.approx((3 * 64 * drawn + 0.5) / 64.5, rel=2e-3)
    by_layer = replace(NEVER, period_factor=1e3, jitter="layer")
    slower = simulate("replication", 50, 3, 1, by_layer, num_steps=3000)
    drawn = np.random.default_rng(2).normal(1, 0.05, (3000, 50, 3)).sum(axis=2).max(axis=1).mean()
    assert slower.time_ratio == pytest.approx((64 * drawn + 0.5) / 64.5, rel=2e-3)


def test_the_same_seed_is_the_same_job_and_another_is_not() -> None:
    first = simulate("spare", 40, 4, 5, SMALL, num_steps=300)
    assert first == simulate("spare", 40, 4, 5, SMALL, num_steps=300)
    assert first != simulate("spare", 40, 4, 6, SMALL, num_steps=300)
    assert first.num_failures > 20 and first.num_wipe_outs > 2 and first.num_patches > 0


@pytest.mark.parametrize("scheme", ["spare", "replication"])
def test_recoveries_rank_as_what_they_do_with_failures_meanwhile(scheme) -> None:
    def times(assumptions: Assumptions) -> float:
        return float(np.mean([simulate(scheme, 40, 3, seed, assumptions, 400).time_ratio for seed in range(4)]))

    # Seldom enough that a restart of all comes to an end.
    often = replace(SMALL, restart_seconds=900.0)
    absorbed = times(replace(often, recovery="absorb"))
    assert absorbed < times(often) < times(replace(often, recovery="global_restart"))
    assert times(replace(often, restarting="failed")) < times(replace(often, restart_seconds=1800.0))


def test_a_job_that_never_restarts_is_given_up() -> None:
    hopeless = Assumptions(recovery="global_restart")
    found = simulate("replication", 30, 2, 1, hopeless, num_steps=100)
    assert not found.is_over and found.time_ratio > 100 and found.availability_ratio < 0.05


@pytest.mark.parametrize(
    "assumed",
    ["clocks=begin_anew", "barrier=layer", "patch=layer", "offsets=consecutive", "weibull_shape=1", "period_factor=3"],
)
def test_each_assumption_changes_something(assumed: str) -> None:
    base = simulate("spare", 40, 4, 2, SMALL, num_steps=300)
    assert simulate("spare", 40, 4, 2, replace_by(SMALL, assumed), num_steps=300) != base


def replace_by(assumptions: Assumptions, assumed: str) -> Assumptions:
    name, _, _ = assumed.partition("=")
    return replace(assumptions, **{name: getattr(Assumptions.parse((assumed,)), name)})


def test_a_lost_shard_is_patched_unless_others_compute_it_too() -> None:
    stacks = Stacked(20, 3, Assumptions())
    alive = np.ones(20, dtype=np.bool_)
    alive[4] = False
    stacks.lose(np.array([4]))
    assert not stacks.is_wiped_out()
    # One layer is not enough for twenty shards on nineteen groups; the lost one's has to be computed.
    assert stacks.repair(alive) == 1 and stacks.depth == 2
    assert stacks.repair(alive) == 0
    stacks.reset()
    assert stacks.depth == 1
    stacks.lose(np.array([(0 - offset) % 20 for offset in (0, 1, 3)]))
    assert stacks.is_wiped_out()


@given(seed=st.integers(0, 10_000), redundancy=st.integers(2, 5), num_lost=st.integers(1, 16))
def test_what_is_brought_forward_is_as_good_as_what_the_controller_finds(seed, redundancy, num_lost) -> None:
    stacks, alive = Stacked(24, redundancy, Assumptions()), np.ones(24, dtype=np.bool_)
    for group in np.random.default_rng(seed).permutation(24)[:num_lost]:
        alive[group] = False
        stacks.lose(np.array([group]))
        if stacks.is_wiped_out():
            break
        stacks.repair(alive)
        # Nothing is missing afterwards, for whoever asks again.
        assert stacks.repair(alive) == 0
    found = reorder(original_stacks(Placement.of(24, redundancy)), alive)
    assert stacks.is_wiped_out() == (found is None)
    assert found is None or stacks.depth == found.depth


def test_sets_that_do_not_come_out_even_are_larger() -> None:
    sets = Replicated(11, 3)
    sets.lose(np.array([0, 1]))
    assert not sets.is_wiped_out() and sets.repair(np.ones(11, dtype=np.bool_)) == 0
    sets.lose(np.array([3]))
    assert sets.is_wiped_out()
    assert sets.depth == 3 and sets.mean_depth == 3


def test_the_period_follows_from_the_closed_forms() -> None:
    # mu(200, 9) = 105 failures, one every 300 s; layers in the mean 2.03; 16 steps of 132 s.
    assert period_steps(masking("spare", 200, 9, Assumptions()), 200, Assumptions()) == 16
    assert period_steps(masking("replication", 200, 3, Assumptions()), 200, Assumptions()) == 8


@pytest.mark.parametrize(("scheme", "redundancy"), [("spare", 9), ("spare", 0), ("replication", 21)])
def test_copies_that_do_not_fit_are_refused(scheme, redundancy: int) -> None:
    with pytest.raises(ValueError, match="does not fit 20"):
        masking(scheme, 20, redundancy, Assumptions())


@pytest.mark.parametrize(
    "pair", ["jitter_ratio=-1", "jitter_ratio=nan", "system_mtbf_seconds=0.1", "recovery=none", "recovery", "x=1"]
)
def test_an_assumption_that_there_is_not_is_refused(pair: str) -> None:
    with pytest.raises(UsageError, match=r"is no assumption|is one of|number of at least"):
        Assumptions.parse((pair,))
    assert Assumptions.parse(("recovery=absorb", "jitter_ratio=0")) == Assumptions(recovery="absorb", jitter_ratio=0.0)


@pytest.mark.nightly
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.scheme}-{claim.num_groups}-{claim.redundancy}")
def test_the_authors_table_comes_out(claim) -> None:
    found = [simulate(claim.scheme, claim.num_groups, claim.redundancy, seed) for seed in (1, 2, 3)]
    limit = MAX_ERROR_RATIOS[claim.scheme]
    # In a job of 600 groups with 20 copies there are seven wipe-outs: seeds differ by 6%, and three by chance.
    by_chance = 0.03 if claim.redundancy == 20 else 0.0
    assert np.mean([one.time_ratio for one in found]) == pytest.approx(claim.time_ratio, rel=limit + by_chance)
    if claim.availability_ratio is not None:
        mean = np.mean([one.availability_ratio for one in found])
        assert mean == pytest.approx(claim.availability_ratio, rel=limit)
