"""Further moments at which `chaos` is killed or interrupted."""

import signal

import pytest

from tests.crash.test_end_of_the_command import (
    LONG,
    assert_interrupted,
    interrupt_stopped,
    stop_at,
)
from tests.integration.runs import PATIENT, ChaosRun, assert_nothing_left, read_log

pytestmark = pytest.mark.nightly


def test_interrupted_twice_in_a_row(tmp_path):
    with ChaosRun(tmp_path, ["run", *LONG], patch=PATIENT) as run:
        run.wait_for("regrouped", reason="loss")
        run.process.send_signal(signal.SIGINT)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 2, run.stderr
        events = read_log(run.folder / "events.jsonl")
        assert_nothing_left(run, events)
    assert events[-1].kind == "run_ended"


def test_interrupted_in_the_baseline(tmp_path):
    arguments = [*LONG, "--twin"]
    arguments[arguments.index("--steps") + 1] = "60"
    with ChaosRun(tmp_path, ["run", *arguments], patch=stop_at("job_started", "twin")) as run:
        interrupt_stopped(run, signal.SIGINT)
        events = assert_interrupted(run, signal.SIGINT)
    assert {event.fields["outcome"] for event in events if event.kind == "job_ended" and event.job == "main"} == {
        "completed"
    }
