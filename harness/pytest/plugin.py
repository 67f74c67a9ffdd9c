"""A pytest plugin: a run of an experiment as a test, `@pytest.mark.chaos(fault="kill-node", at="step=20", gate=[...])`.

The run is a process of its own, made when the test is called and before its body; the body gets it as `chaos_run`.
Nothing of this project is imported before a marked test runs. See docs/how-to/pytest.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.pytest.marked_run import MarkedRun

_MARKER = (
    "chaos(fault, at=..., gate=[...], ...): make a run with the options of `chaos run` before the test, as chaos_run; "
    "the test fails unless the verdict is pass. With check=False the test judges the run itself"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for settings that a marker leaves out."""
    group = parser.getgroup("resilience", "resilience (tests marked with chaos)")
    group.addoption("--resilience-out", metavar="DIR", help="folder of the runs. Default: chaos-runs")
    for name, metavar, what in (
        ("backend", "NAME", "backend of the nodes"),
        ("nodes", "N", "nodes"),
        ("gpus-per-node", "N", "ranks per node"),
        ("steps", "N", "training steps"),
        ("seed", "N", "seed of everything random"),
        ("strategy", "NAME", "takeover strategy"),
    ):
        kind = int if metavar == "N" else str
        group.addoption(f"--resilience-{name}", metavar=metavar, type=kind, help=f"{what}, unless the marker sets it")
    group.addoption(
        "--resilience-timeout",
        metavar="SECONDS",
        type=float,
        default=1800.0,
        help="a run that takes longer is stopped, and its test fails. Default: %(default)g",
    )
    group.addoption(
        "--resilience-overlap",
        action="store_true",
        help="let runs of several workers (pytest-xdist) run at the same time; they then share the machine's cores",
    )
    group.addoption("--resilience-skip", action="store_true", help="skip the tests that are marked with chaos")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and note where paths start: a test may go elsewhere."""
    config.stash[_STARTED_IN] = Path.cwd()
    config.addinivalue_line("markers", _MARKER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the marked tests, where that is asked for."""
    if config.getoption("resilience_skip"):
        skip = pytest.mark.skip(reason="--resilience-skip")
        for item in items:
            if item.get_closest_marker("chaos") is not None:
                item.add_marker(skip)


_RUN = pytest.StashKey["MarkedRun"]()
_STARTED_IN = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Make the run that the test is marked with; the body is called only when it may be."""
    if item.get_closest_marker("chaos") is None:
        return
    from harness.pytest.marked_run import MarkedRun

    run = item.stash.get(_RUN, None) or MarkedRun()
    run.make(item, item.config.stash[_STARTED_IN])


@pytest.fixture
def chaos_run(request: pytest.FixtureRequest) -> MarkedRun:
    """The run that the test is marked with: `summary`, `verdict`, `folder`, `incidents`, `report`, `events()`.

    It is made when the test is called; until then (in other fixtures) it has no figures.
    """
    from harness.pytest.marked_run import MarkedRun, location_of

    if request.node.get_closest_marker("chaos") is None:
        needed = "chaos_run needs a marked test: @pytest.mark.chaos(fault=..., at=...)"
        pytest.fail(f"{location_of(request.node)}: {needed}", pytrace=False)
    run = MarkedRun()
    request.node.stash[_RUN] = run
    return run
