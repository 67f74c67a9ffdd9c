"""`chaos` is killed or interrupted: nothing of its run lives on, and its log is readable up to the last line."""

import json
import signal
import subprocess
import sys
import time

import pytest

from chaos.host.process_table import is_stopped
from mecefo_runtime.system.process import ProcessId
from tests.integration.runs import (
    PATIENT,
    RUN_TIMEOUT_SECONDS,
    SMALL,
    ChaosRun,
    assert_nothing_left,
    environment_of_run,
    read_log,
)

pytestmark = pytest.mark.crash

# What outlives the command for longer stays.
GRACE_SECONDS = 60.0
ONE_RANK_EACH = (*SMALL, "--gpus-per-node", "1")
LONG = ("kill-node", "--at", "step=10", "--on", "node=1", "--repair", "5steps", "--steps", "100000", *ONE_RANK_EACH)
# The target's two stages wait for each other, so that one of them is held until the injector's patience ends: never.
HELD = ("kill-process", "--at", "step=5,phase=backward", "--on", "replica=0", "--steps", "100000", *SMALL)
HOLD_FOR_EVER = f"""{PATIENT}

if sys.orig_argv[1] == "-c":
    import chaos.injection.injector

    chaos.injection.injector.HOLD_GRACE_SECONDS = 3600.0
"""
# However fast the run is, and however late we come: the command waits for its signal where that is to reach it.
STOP_AT = f"""{PATIENT}

if sys.orig_argv[1] == "-c":
    import os
    import signal

    from harness.control.recorder import Recorder

    write = Recorder.write

    def write_and_stop(self, event):
        write(self, event)
        if (event.kind, event.job) == PLACE:
            os.kill(os.getpid(), signal.SIGSTOP)

    Recorder.write = write_and_stop
"""


def stop_at(kind, job="main"):
    """The patch with which the command stops itself after that event."""
    return STOP_AT.replace("PLACE", repr((kind, job)))


def interrupt_stopped(run, number):
    """Send it a signal, which is the first thing that it finds when it goes on."""
    command = ProcessId.of(run.process.pid)
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    while not is_stopped(command):
        assert run.process.poll() is None, run.stderr
        assert time.monotonic() < deadline, "it does not stop"
        time.sleep(0.01)
    run.process.send_signal(number)
    run.process.send_signal(signal.SIGCONT)


def chaos(run, *arguments):
    """Another `chaos` command on the same OUT: (exit code, standard output)."""
    done = subprocess.run(
        [sys.executable, "-m", "mecefo_chaos", *arguments, "--out", str(run.out)],
        env=environment_of_run(run.mark, run.out),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_killed_in_the_middle(tmp_path):
    with ChaosRun(tmp_path, ["run", *LONG], patch=PATIENT) as run:
        run.wait_for("rejoined")
        before = run.wait_for("step_committed")
        run.process.kill()
        assert run.wait() == -signal.SIGKILL
        events = read_log(run.folder / "events.jsonl")
        assert len([event for event in events if event.kind == "process_started"]) >= 7
        assert_nothing_left(run, events, GRACE_SECONDS)
        assert before in events

        exit_code, stdout = chaos(run, "report", "latest", "--json")
        summary = json.loads(stdout)
        assert (summary["verdict"], summary["exit_code"], exit_code) == ("inconclusive", 5, 5)
        assert summary["status"] == "cut off"
        assert any("cut off" in reason for reason in summary["reasons"])
        assert summary["incidents"][0]["verified"]
        (listed,) = json.loads(chaos(run, "runs", "--json")[1])
        assert (listed["verdict"], listed["fault"]) == ("cut off", "kill-node")


@pytest.mark.parametrize(
    ("arguments", "moment"),
    [
        pytest.param(HELD, "held", marks=pytest.mark.nightly, id="while a rank is held"),
        pytest.param(LONG, "incidents_planned", marks=pytest.mark.nightly, id="before the job"),
    ],
)
def test_killed_at_a_delicate_moment(tmp_path, arguments, moment):
    with ChaosRun(tmp_path, ["run", *arguments], patch=HOLD_FOR_EVER) as run:
        run.wait_for(moment)
        run.process.kill()
        run.wait()
        assert_nothing_left(run, read_log(run.folder / "events.jsonl"), GRACE_SECONDS)
        assert chaos(run, "report", "latest")[0] == 5


def assert_interrupted(run, number):
    """That the command ended in order, and said so."""
    assert run.wait() == 2, run.stderr
    assert "Traceback" not in run.stderr, run.stderr
    events = read_log(run.folder / "events.jsonl")
    assert_nothing_left(run, events)
    by_kind = {event.kind: event.fields for event in events}
    assert by_kind["interrupted"]["signal"] == number.name
    assert by_kind["run_ended"]["reason"] == "interrupted"
    assert (by_kind["residue"]["processes"], by_kind["residue"]["undo_pending"]) == ([], [])
    assert events[-1].kind == "run_ended"
    summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["verdict"], summary["exit_code"]) == ("halted", 2)
    assert any(number.name in reason for reason in summary["reasons"])
    return events


def test_interrupted_before_the_job(tmp_path):
    with ChaosRun(tmp_path, ["run", *LONG], patch=stop_at("incidents_planned")) as run:
        interrupt_stopped(run, signal.SIGINT)
        events = assert_interrupted(run, signal.SIGINT)
    assert not any(event.kind == "step_committed" for event in events)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_interrupted_while_it_trains(tmp_path, number):
    with ChaosRun(tmp_path, ["run", *LONG], patch=PATIENT) as run:
        run.wait_for("step_committed", step=3)
        run.process.send_signal(number)
        assert_interrupted(run, number)


def test_interrupted_while_a_rank_is_held(tmp_path):
    with ChaosRun(tmp_path, ["run", *HELD], patch=HOLD_FOR_EVER) as run:
        run.wait_for("held")
        run.process.send_signal(signal.SIGTERM)
        events = assert_interrupted(run, signal.SIGTERM)
    kinds = {event.kind for event in events}
    assert "held" in kinds
    assert "injected" not in kinds, "nothing may be done after the command was told to end"


def test_interrupted_before_it_listens_for_that_it_ends_in_order(tmp_path):
    early = f"""{PATIENT}

if sys.orig_argv[1] == "-c":
    import os
    import signal

    from harness.run import conductor

    listen = conductor._Signals.__enter__

    def interrupted_first(self):
        os.kill(os.getpid(), signal.SIGINT)
        listen(self)

    conductor._Signals.__enter__ = interrupted_first
"""
    with ChaosRun(tmp_path, ["run", *LONG], patch=early) as run:
        assert_interrupted(run, signal.SIGINT)
