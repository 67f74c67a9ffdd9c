"""Fixtures of the tests whose variants are here."""

from tests.integration.test_checkpoints import saved
from tests.integration.test_external_faults import plain, restarting
from tests.integration.test_marked import environment

__all__ = ["environment", "plain", "restarting", "saved"]
