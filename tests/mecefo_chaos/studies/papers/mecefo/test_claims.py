"""The paper's figures agree with each other."""

from __future__ import annotations

import pytest

from mecefo_chaos.studies.papers.mecefo.claims import PROCESSES, RESILIENCE, SIZES, THROUGHPUT, perplexity_increase

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("system", "size"), THROUGHPUT)
def test_drops_follow_from_tokens_per_second(system, size):
    claim = THROUGHPUT[system, size]
    # Thousands of tokens per second, rounded: a few parts in a thousand.
    drop = 1 - claim.high_tokens_per_second / claim.free_tokens_per_second
    assert drop == pytest.approx(claim.drop_ratio, abs=0.005)


def test_the_resilience_is_the_ratio_of_the_drops_of_7b():
    ours = THROUGHPUT["MeCeFO", "7b"].drop_ratio
    ratios = [THROUGHPUT[system, "7b"].drop_ratio / ours for system in ("Bamboo", "Oobleck")]
    assert ratios == pytest.approx(RESILIENCE, abs=0.05)


def test_ranks_down_and_perplexity():
    assert [PROCESSES[name].mean_down for name in ("low", "mid", "high")] == [2, 3, 4]
    assert perplexity_increase("high")[1] == pytest.approx(0.0219, abs=1e-4)
    assert perplexity_increase("low")[0] < perplexity_increase("mid")[0] < perplexity_increase("high")[0]
    assert SIZES["7b"].sequences * 256 == 262_144
