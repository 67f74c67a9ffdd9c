"""What all tests share: their tiers, no deadlines on a busy machine, and why those with containers are left out."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from harness.backends.docker.examination import why_no_docker
from harness.backends.docker.image import DEFAULT_IMAGE
from tests.snapshots import OPTION, Snapshot

# Shows the values in failed assertions of the modules that tests share.
pytest.register_assert_rewrite("tests.integration.runs", "tests.cluster.chaos_runs")
# What CI's own workflow is told must come of CI, not of the runs that its tests make.
for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
    os.environ.pop(name, None)
# What the tests expect of jobs holds of ranks on CPUs. `CUDA_VISIBLE_DEVICES=0 pytest` lets them have a GPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Whoever is started in the background of a shell ignores SIGINT, and all that it starts does: tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes, or is made, says how busy the machine is, and nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Who changes something is not to meet what is new and not theirs: the examples are few, and the same each time. The
# nightly tests look for it: `pytest -m unit --hypothesis-profile=search`.
settings.register_profile("same examples", settings.get_profile("any machine"), derandomize=True, max_examples=60)
settings.register_profile("search", settings.get_profile("any machine"), max_examples=1000, print_blob=True)
settings.load_profile("same examples")

TESTS = Path(__file__).parent
# In the order in which they run: what takes long begins early, so that no worker is alone with it at the end.
TIERS = ("smoke", "docker", "cluster", "crash", "external", "integration", "browser", "unit", "nightly")
DEFAULT_TIERS = "(unit or smoke) and not nightly"
REAL_TIERS = "not (unit or smoke or nightly)"
# In a file with tests of these tiers, and in one without any, whose tests must be seen to lack it.
_REAL = re.compile(rf"mark\.({'|'.join(TIERS[1:-2])})\b")
_UNIT = re.compile(r"^pytestmark = pytest\.mark\.unit$", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="Write the expected texts anew (tests/snapshots.py).")


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """The expected texts of the test's module."""
    return Snapshot(request.path.with_name("snapshots"), is_updated=request.config.getoption(OPTION))


def pytest_configure(config: pytest.Config) -> None:
    """Select the default tiers, unless an expression, a file or a folder of tests is named."""
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS
    is_whole_suite = {Path(argument).resolve() for argument in config.args} <= {TESTS, TESTS.parent}
    if not config.option.markexpr and (not is_named or is_whole_suite):
        config.option.markexpr = DEFAULT_TIERS


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Real runs alone: leave out files whose tests are all of the unit tier, which take long to import."""
    if config.option.markexpr != REAL_TIERS or collection_path.suffix != ".py":
        return None
    source = collection_path.read_text(encoding="utf-8")
    return True if _UNIT.search(source) and not _REAL.search(source) else None


_WRONG_TIERS = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests first; one without a tier, or with several, is to fail among the default ones."""
    order = {}
    for item in items:
        found = [tier for tier in TIERS if item.get_closest_marker(tier) is not None]
        if any(marker.name == "nightly" for marker in item.own_markers):
            # A single test, or set of parameters, of a module that is run for every change.
            found = ["nightly"]
        if len(found) != 1:
            # Not raised here: pytest-xdist would show neither the message nor the test.
            item.stash[_WRONG_TIERS] = ", ".join(found) or "none"
            item.add_marker("unit")
        order[item] = TIERS.index((found or ["unit"])[0])
    items.sort(key=order.__getitem__)


def pytest_collection_finish() -> None:
    """Leave out of every garbage collection what stays to the end anyway; tests that look at all objects are faster."""
    gc.collect()
    gc.freeze()


@functools.cache
def _why_not() -> str | None:
    return why_no_docker(os.environ.get("CHAOS_TEST_IMAGE", DEFAULT_IMAGE))


def _skip_without_docker() -> None:
    if (reason := _why_not()) is not None:
        pytest.skip(f"no containers here: {reason}; `chaos doctor --backend docker` says what to do")


@pytest.fixture
def needs_docker() -> None:
    """For tests of other tiers than `docker` that need an engine all the same."""
    _skip_without_docker()


@pytest.fixture
def has_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that only prepare runs, whose answer must not depend on what this machine has installed."""
    monkeypatch.setattr("harness.node.node.ThisMachine.why_no_networks", lambda self: None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if (wrong := item.stash.get(_WRONG_TIERS, None)) is not None:
        pytest.fail(
            f"tier markers: {wrong}. Every test carries exactly one of {', '.join(sorted(TIERS))}: mark the module or, "
            "where its tests differ, each test or each set of parameters (CONTRIBUTING.md, Checks)",
            pytrace=False,
        )
    if item.get_closest_marker("docker") is not None:
        _skip_without_docker()
