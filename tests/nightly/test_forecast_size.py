"""The forecast of a cluster that nobody can rent: it takes a minute, not a day."""

from __future__ import annotations

import time

import pytest

from mecefo_chaos.studies.forecast.forecast import forecast
from mecefo_chaos.studies.forecast.model import Failures, Policy, Recovery, Saving
from tests.mecefo_chaos.studies.forecast.jobs import job_of

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    "policy",
    [Policy("mecefo"), Policy("mecefo", 0.0), Policy("exact"), Policy("checkpoint"), Policy("bamboo")],
    ids=str,
)
def test_ten_thousand_ranks_for_a_thousand_hours(policy):
    # A rank fails every 3 hours, as in the field (Llama 3, 16,384 GPUs), and is back after 4.
    failures = Failures(interval_seconds=3 * 3600, repair_seconds=4 * 3600)
    recovery = Recovery(
        detection_seconds=2, regroup_seconds=3, restart_seconds=300, replacement_seconds=60, checkpoint=Saving(1800, 20)
    )
    began = time.process_time()
    found = forecast(job_of(1250, 8, 16), policy, failures, recovery, hours=1000)
    assert time.process_time() - began < 60
    assert found.num_losses > 250
    assert found.productive_seconds + sum(found.lost_seconds.values()) == pytest.approx(3.6e6)
