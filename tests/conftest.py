"""Tests that need a Docker engine are skipped where there is none that would do, and say why."""

from __future__ import annotations

import functools
import os

import pytest

from harness.backends.image import DEFAULT_IMAGE
from harness.doctor.engine import why_no_docker


@functools.cache
def _why_not() -> str | None:
    return why_no_docker(os.environ.get("CHAOS_TEST_IMAGE", DEFAULT_IMAGE))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") is not None and (reason := _why_not()) is not None:
        pytest.skip(f"no containers here: {reason}; `chaos doctor --backend docker` says what to do")
