"""Badput of an incident while another one was active: which seconds are in doubt, and that all still add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.state import build
from harness.judging.caveats import _MAX_SHARED
from harness.judging.shared_badput import shared_badput
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, run

pytestmark = pytest.mark.unit


def slow(step: int, steps: int, node: int) -> Fault:
    return Fault(step=step, node=node, kind="slow-rank", lasts_steps=steps)


def told(faults: Sequence[Fault]) -> list[str]:
    found: dict[str, Any] = summarized(run(faults=faults, baseline=False))
    return [caveat for caveat in found["caveats"] if "is not split" in caveat]


def test_badput_while_two_faults_are_active_is_said_to_be_of_either():
    (shared,) = shared_badput(build(run(faults=(slow(10, 15, 1), slow(20, 10, 2)))))
    assert (shared.incident, shared.others) == (1, (0,))
    # Steps 20 to 24 ran under both, each 25 ms slower than before; chaos held the first for a while.
    assert 4 * 0.025 < shared.seconds <= 5 * 0.025
    (caveat,) = told((slow(10, 15, 1), slow(20, 10, 2)))
    assert "of the badput of incident 1 fell into a time when incident 0 was active, too" in caveat


def test_incidents_one_after_the_other_are_told_apart():
    assert told((slow(10, 5, 1), slow(20, 10, 2))) == []
    assert told((Fault(step=10, repair_steps=5), Fault(step=35, node=2, repair_steps=5))) == []
    assert told((Fault(),)) == []


def test_ranks_that_stay_away_are_still_felt():
    (caveat,) = told((Fault(step=10, repair_steps=None), slow(30, 10, 2)))
    assert "incident 0 was active" in caveat


def test_one_that_had_no_effect_is_not_blamed():
    assert told((Fault(step=10, repair_steps=None, verified=False), slow(30, 10, 2))) == []


def test_of_many_the_first_are_named():
    faults = [slow(10 + 2 * number, 40, number % 4) for number in range(_MAX_SHARED + 3)]
    found = summarized(run(faults=faults, baseline=False))["caveats"]
    assert sum("is not split" in caveat for caveat in found) == _MAX_SHARED
    assert any("of the badput of 2 further incidents" in caveat for caveat in found)


@given(
    st.lists(st.tuples(st.integers(5, 40), st.integers(1, 20), st.integers(0, 3)), min_size=2, max_size=4, unique=True)
)
def test_it_is_part_of_the_badput_of_its_incident_and_the_books_balance(faults):
    events = run(faults=[slow(*fault) for fault in sorted(faults)], baseline=False)
    found = summarized(events)
    for one in (found, *found["incidents"]):
        parts = [one["productive_seconds"], *one["badput_seconds"].values()]
        assert sum(parts) == pytest.approx(one["wall_clock_seconds"])
    for shared in shared_badput(build(events)):
        own = found["incidents"][shared.incident]["badput_seconds"]
        assert 0.0 < shared.seconds <= sum(own.values()) + 1e-9
        assert shared.incident not in shared.others
