"""Further runs on nodes that are containers."""

from __future__ import annotations

import pytest

from tests.docker.engine import assert_gone
from tests.docker.test_docker_backend import AT, DOCKER, name_of, took_seconds
from tests.integration.runs import (
    ChaosRun,
    assert_sound,
    run_chaos,
)

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("needs_docker")]


def test_a_link_that_is_slow_is_not_a_dead_one(tmp_path):
    slow = ("slow-link", "--on", "link=0-2", "-p", "delay=60ms", "--for", "10steps")
    run = run_chaos(tmp_path, *slow, *AT, "--steps", "40", *DOCKER)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, 40)
    # As above.
    assert {event.fields["how"] for event in run.of("detected")} <= {"heartbeat"}
    # Each step of the fault after the first, in which it was seen, goes over the link and back, whatever else it does.
    during = [event for event in run.of("step_committed") if 10 < event.step < 20]
    assert len(during) == 9
    assert min(took_seconds(event) for event in during) >= 1.9 * 0.06


def test_two_runs_at_once_do_not_meet(tmp_path):
    arguments = ["run", "kill-node", *AT, "--repair", "none", "--steps", "30", *DOCKER]
    with ChaosRun(tmp_path / "one", arguments) as one, ChaosRun(tmp_path / "two", arguments) as other:
        one.wait_for("job_started")
        other.wait_for("job_started")
        assert (one.wait(), other.wait()) == (0, 0), one.stderr + other.stderr
    names = [name_of(run) for run in (one, other)]
    assert len(set(names)) == 2
    for name in names:
        assert_gone(name, 1.0)
