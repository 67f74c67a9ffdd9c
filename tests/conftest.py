"""What all tests share: their tiers, no deadlines on a busy machine, and why those with containers are left out."""

from __future__ import annotations

import functools
import os
from pathlib import Path

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
# Who changes something is not to meet what is new and not theirs: the examples are the same each time. The nightly
# tests look for it: `pytest -m unit --hypothesis-profile=search`.
settings.register_profile("same examples", settings.get_profile("any machine"), derandomize=True)
settings.register_profile("search", settings.get_profile("any machine"), max_examples=1000, print_blob=True)
settings.load_profile("same examples")

TESTS = Path(__file__).parent
# In the order in which they run: what takes long begins early, so that no worker is alone with it at the end.
TIERS = ("smoke", "docker", "crash", "external", "integration", "browser", "unit", "nightly")
DEFAULT_TIERS = "unit or smoke"


def pytest_configure(config: pytest.Config) -> None:
    """Select the default tiers, unless an expression, a file or a folder of tests is named."""
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS
    is_whole_suite = {Path(argument).resolve() for argument in config.args} <= {TESTS, TESTS.parent}
    if not config.option.markexpr and (not is_named or is_whole_suite):
        config.option.markexpr = DEFAULT_TIERS


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests without a tier or with several, and put the long ones first."""
    tiers = {item: [tier for tier in TIERS if item.get_closest_marker(tier) is not None] for item in items}
    if wrong := {item.nodeid: found for item, found in tiers.items() if len(found) != 1}:
        lines = [f"  {nodeid}: {', '.join(found) or 'none'}" for nodeid, found in wrong.items()]
        raise pytest.UsageError(
            f"Every test carries exactly one tier marker, of: {', '.join(sorted(TIERS))}. Mark the module, or where "
            "its tests differ each test or each set of parameters (CONTRIBUTING.md, Checks). Not so:\n"
            + "\n".join(lines)
        )
    items.sort(key=lambda item: TIERS.index(tiers[item][0]))


@functools.cache
def _why_not() -> str | None:
    return why_no_docker(os.environ.get("CHAOS_TEST_IMAGE", DEFAULT_IMAGE))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") is not None and (reason := _why_not()) is not None:
        pytest.skip(f"no containers here: {reason}; `chaos doctor --backend docker` says what to do")
