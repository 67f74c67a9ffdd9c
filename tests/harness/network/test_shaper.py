"""When a packet may go on: values, without packets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.network.shaper import BACKLOG_SECONDS, Lane, Settings

pytestmark = pytest.mark.unit

GAPS = st.lists(st.floats(0, 0.1), min_size=1, max_size=50)


def lane(**settings: float) -> Lane:
    return Lane(Settings(**settings), random.Random(0))


@given(GAPS, st.floats(0, 1), st.floats(0, 1))
def test_packets_leave_in_the_order_in_which_they_came_each_late_by_the_delay(gaps, delay, jitter):
    jitter = min(jitter, delay)
    shaped, now, last = lane(delay_seconds=delay, jitter_seconds=jitter), 100.0, 0.0
    for gap in gaps:
        now += gap
        release = shaped.release_seconds(now, 1500)
        assert release is not None
        assert release >= last
        assert release >= now + delay - jitter - 1e-9
        # Never later than the latest that any packet before it may have been.
        assert release <= now + delay + jitter + 1e-9
        last = release


@given(st.lists(st.integers(40, 60_000), min_size=2, max_size=100), st.floats(1e4, 1e8))
def test_no_more_goes_on_than_the_rate_carries(sizes, rate):
    shaped = lane(rate_bytes_per_second=rate)
    passed = [(release, size) for size in sizes if (release := shaped.release_seconds(5.0, size)) is not None]
    carried = sum(size for _, size in passed)
    assert passed[-1][0] - 5.0 >= carried / rate * (1 - 1e-6)
    # What an idle link is given goes on, however large it is; what has to wait for too long is dropped.
    assert passed[0][1] == sizes[0]
    assert all(release - size / rate - 5.0 <= BACKLOG_SECONDS + 1e-6 for release, size in passed)


def test_a_link_that_was_idle_owes_nothing():
    shaped = lane(rate_bytes_per_second=1000.0)
    assert shaped.release_seconds(0.0, 100) == pytest.approx(0.1)
    assert shaped.release_seconds(10.0, 100) == pytest.approx(10.1)


def test_so_many_are_lost_as_asked():
    shaped = lane(loss_ratio=0.2)
    lost = sum(shaped.release_seconds(1.0, 100) is None for _ in range(10_000))
    assert 1_800 < lost < 2_200
