"""That the comparison with the twin sees an approximation."""

import pytest

from tests.integration.runs import PATIENT, assert_survived, run_chaos
from tests.integration.test_exact import FAULT, JOB, MAX_DEVIATION_RATIO, STEPS

pytestmark = pytest.mark.nightly


def test_approximation_shows_in_the_comparison(tmp_path):
    """The negative control of the above: another computation gives other losses."""
    run = run_chaos(tmp_path, *FAULT, *JOB, "--strategy", "ndb", patch=PATIENT)
    assert_survived(run, STEPS, at=20)
    assert run.summary["loss_curve_max_deviation_ratio"] > 10 * MAX_DEVIATION_RATIO
