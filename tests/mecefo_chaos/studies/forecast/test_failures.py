"""When ranks are lost: processes drawn from a seed, and traces from files."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from mecefo_chaos.studies.forecast.failures import losses, read_trace
from mecefo_chaos.studies.forecast.model import Failures, Loss
from mecefo_runtime.job.layout import Cluster

pytestmark = pytest.mark.unit

CLUSTER = Cluster(8, 4, 8, 4, 4, 8)

processes = st.builds(
    Failures,
    interval_seconds=st.floats(50, 5000),
    repair_seconds=st.floats(0, 3000),
    shape=st.floats(0.5, 3),
    unit=st.sampled_from(["rank", "node"]),
    per_unit=st.booleans(),
    burst_ratio=st.sampled_from([0.0, 0.3]),
)


@given(processes, st.integers(0, 2**32))
def test_losses_are_in_order_of_living_units_and_the_same_for_the_same_seed(failures, seed):
    found = losses(failures, CLUSTER, 20_000, seed)
    assert found == losses(failures, CLUSTER, 20_000, seed)
    assert all(one.at_seconds <= other.at_seconds for one, other in pairwise(found))
    assert all(0 <= loss.at_seconds < 20_000 for loss in found)
    back: dict[int, float] = {}
    for loss in found:
        assert len(loss.ranks) == (4 if failures.unit == "node" else 1)
        assert all(back.get(rank, 0) <= loss.at_seconds for rank in loss.ranks)
        back.update(dict.fromkeys(loss.ranks, loss.at_seconds + loss.repair_seconds))


@pytest.mark.parametrize("shape", [0.78, 1.0, 2.0])
@pytest.mark.parametrize("burst_ratio", [0.0, 0.4])
def test_failures_come_as_often_as_they_were_asked_for(shape, burst_ratio):
    failures = Failures(100, 0, shape=shape, burst_ratio=burst_ratio)
    assert len(losses(failures, CLUSTER, 1e6, 1)) == pytest.approx(10_000, rel=0.04)


def test_units_that_fail_by_themselves_are_as_many_processes():
    # Each of 32 ranks lives 1000 s and is repaired for 250 s.
    failures = Failures(1000, 250, per_unit=True)
    assert len(losses(failures, CLUSTER, 4e5, 1)) == pytest.approx(32 * 4e5 / 1250, rel=0.04)


def test_the_shape_says_how_regular_failures_are():
    def variation(shape):
        times = [loss.at_seconds for loss in losses(Failures(100, 0, shape=shape), CLUSTER, 1e6, 2)]
        gaps = np.diff(times)
        return gaps.std() / gaps.mean()

    assert variation(1.0) == pytest.approx(1, abs=0.05)
    assert variation(0.7) > 1.3 and variation(3.0) < 0.5


def test_a_burst_follows_closely():
    found = losses(Failures(10_000, 0, burst_ratio=0.5, burst_seconds=10), CLUSTER, 1e7, 3)
    near = sum(other.at_seconds - one.at_seconds < 10 for one, other in pairwise(found))
    assert near / len(found) == pytest.approx(0.5, abs=0.06)


def test_without_a_process_nothing_fails():
    assert losses(Failures(), CLUSTER, 1e9, 0) == []


def test_a_trace_is_what_happened(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("time,node,repair\n3600,2,600\n10.5,0,\n")
    found = read_trace(path, CLUSTER, 99)
    assert found == (Loss(10.5, (0, 1, 2, 3), 99, (0,)), Loss(3600, (8, 9, 10, 11), 600, (2,)))
    assert losses(Failures(trace=found), CLUSTER, 100, 0) == [found[0]]


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("", 1, "first line"),
        ("when,node\n", 1, "first line"),
        ("time,node\n1\n", 2, "columns"),
        ("time,node\n1,2,3\n", 2, "columns"),
        ("time,node\n1,8\n", 2, "node 8"),
        ("time,node\n1,0.5\n", 2, "node 0.5"),
        ("time,node,repair\n\n1,0,-2\n", 3, "repair"),
        ("time,node\nsoon,0\n", 2, "'soon'"),
        ("time,node\nnan,0\n", 2, "'nan'"),
        ("time,node\ninf,0\n", 2, "'inf'"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path, text, line, word):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=word) as refused:
        read_trace(path, CLUSTER, 1)
    assert (refused.value.line, refused.value.path) == (line, str(path))


def test_a_trace_that_is_not_there_or_no_text_is_refused(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("none", "bytes"):
        with pytest.raises(UsageError, match="cannot read the trace"):
            read_trace(tmp_path / name, CLUSTER, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_seconds": 0},
        {"interval_seconds": float("nan")},
        {"repair_seconds": -1},
        {"shape": 0},
        {"shape": inf},
        {"burst_ratio": 1},
    ],
)
def test_impossible_processes_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Failures(**{"interval_seconds": 100, **wrong})
