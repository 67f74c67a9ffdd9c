"""The measurement of what state takes, on the smallest model: it finds what there is, and less where it is shared."""

from __future__ import annotations

import pytest

from benchmarks.sharded_optimizer import measure

pytestmark = pytest.mark.smoke


@pytest.mark.nightly
def test_a_share_of_the_moments_takes_less_the_more_holders_there_are() -> None:
    rows = measure("60m")
    ratios = [row["sharded_bytes"] / row["replicated_bytes"] for row in rows]
    assert ratios == sorted(ratios, reverse=True)
    assert all(abs(row["ratio"] - row["expected_ratio"]) < 0.1 for row in rows)
