"""Further runs on nodes that are containers."""

from __future__ import annotations

import signal

import pytest

from tests.docker.engine import SlowEngine, assert_gone, parts, run_of
from tests.docker.test_docker_backend import AT, CLEAN_WITHIN_SECONDS, DOCKER, LONG, name_of, took_seconds
from tests.integration.runs import (
    WAIT_TIMEOUT_SECONDS,
    ChaosRun,
    assert_nothing_left,
    assert_sound,
    read_log,
    run_chaos,
)

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("needs_docker")]


@pytest.mark.parametrize(
    "fault",
    [("pause-node", "--on", "node=1", "--for", "600s")],
    ids=lambda fault: fault[0],
)
def test_killed_in_the_middle_nothing_is_left(tmp_path, fault):
    with ChaosRun(tmp_path, ["run", *fault, *LONG]) as run:
        run.wait_for("verified")
        name = run_of(tmp_path / "state")
        assert parts(name)["containers"] and parts(name)["networks"]
        run.process.kill()
        run.wait()
        assert_gone(name, CLEAN_WITHIN_SECONDS)
        assert_nothing_left(run, read_log(run.folder / "events.jsonl"), CLEAN_WITHIN_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_ended_while_the_engine_makes_containers_nothing_is_left(tmp_path, monkeypatch, number):
    with SlowEngine(tmp_path, 3.5) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        with ChaosRun(tmp_path, ["run", "kill-node", *LONG]) as run:
            assert engine.asked.wait(WAIT_TIMEOUT_SECONDS), run.stderr
            name = run_of(tmp_path / "state")
            run.process.send_signal(number)
            run.wait()
            # Nobody is there any more who could ask for anything or remove it, and all that was asked for is made.
            assert_nothing_left(run, timeout_seconds=CLEAN_WITHIN_SECONDS)
            engine.join(CLEAN_WITHIN_SECONDS)
            assert not any(parts(name).values())


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
