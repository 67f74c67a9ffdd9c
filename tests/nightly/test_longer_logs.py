"""The growth of what is made of a log, at sizes at which a small square shows."""

import pytest

from tests.harness.long_logs import DIMENSIONS
from tests.harness.test_bounded import LONGER, assert_bounded, grown

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_twice_as_long_a_log_costs_little_more_than_twice_as_much(dimension: str):
    assert_bounded(grown(dimension, LONGER))
