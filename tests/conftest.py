"""What all tests share: no deadlines on a busy machine; and what needs a Docker engine says why it is left out."""

from __future__ import annotations

import functools
import os

import pytest
from hypothesis import HealthCheck, settings

from harness.backends.docker.examination import why_no_docker
from harness.backends.docker.image import DEFAULT_IMAGE

# What CI's own workflow is told must come of CI, not of the runs that its tests make.
for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
    os.environ.pop(name, None)
# What the tests expect of jobs holds of ranks on CPUs. `CUDA_VISIBLE_DEVICES=0 pytest` lets them have a GPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# How long an example takes, or is made, says how busy the machine is, and nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Who changes something is not to meet what is new and not theirs; `pytest --hypothesis-profile=search` looks for it.
settings.register_profile("same examples", settings.get_profile("any machine"), derandomize=True)
settings.register_profile("search", settings.get_profile("any machine"), max_examples=1000, print_blob=True)
settings.load_profile("same examples")


@functools.cache
def _why_not() -> str | None:
    return why_no_docker(os.environ.get("CHAOS_TEST_IMAGE", DEFAULT_IMAGE))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") is not None and (reason := _why_not()) is not None:
        pytest.skip(f"no containers here: {reason}; `chaos doctor --backend docker` says what to do")
