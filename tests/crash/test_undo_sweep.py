"""`chaos` is killed between "record written" and "record affected": within 15 s nothing is left."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks._undo_stage import POINTS
from benchmarks.undo_sweep import BOTH
from chaos.undo.ledger import read_ledger
from tests.integration.runs import (
    PATIENT,
    REPOSITORY,
    RUN_TIMEOUT_SECONDS,
    SMALL,
    WAIT_TIMEOUT_SECONDS,
    ChaosRun,
    assert_nothing_left,
    environment_of_run,
    read_log,
)

pytestmark = pytest.mark.crash

CLEAN_WITHIN_SECONDS = 15.0
# For longer than any test takes: by default it ends after 10 s, which two commands take on a busy machine.
PAUSE = ("pause-process", "--at", "step=5", "--on", "rank=1", "--for", "1h", "--steps", "100000", *SMALL)
IN_COMMAND = "import sys\nif sys.orig_argv[1] == '-c':\n"
SHORT_LEASE = f"{IN_COMMAND}    import chaos.undo.lease\n    chaos.undo.lease.LEASE_SECONDS = 3.0\n"
STAYS_SILENT = """
import benchmarks._undo_stage as stage
from pathlib import Path
import os, sys

stage.CLEAN_WITHIN_SECONDS = 1.0
os.environ["CHAOS_STATE"] = sys.argv[1] + "/state"
with stage.set_stage(Path(sys.argv[1]) / "trial") as it:
    trial, run = stage.run_trial(it, "pause-process", "noted", has_watchdog=False)
    assert trial.was_reached
    print(trial.seconds, stage.what_is_left(it, run))
"""


def sweep(folder, *arguments):
    """The rows of the benchmark, by (kind, point)."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.undo_sweep", "--json", "--out", str(folder), *arguments],
        cwd=REPOSITORY,
        env=environment_of_run("sweep", folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, {(row["kind"], row["point"]): row for row in json.loads(done.stdout)["rows"]}


@pytest.mark.parametrize("kind", ["pause-process"])
def test_killed_at_every_point(tmp_path, kind):
    code, rows = sweep(tmp_path, "--times", "1", "--kind", kind)
    assert rows.keys() == {(kind, point) for point in (*POINTS, BOTH)}
    assert {(row["reached"], row["clean"]) for row in rows.values()} == {(1, 1)}, rows
    assert code == 0


def test_without_a_watchdog_something_is_left(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STAYS_SILENT, str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("inf ")
    assert "a pending entry in the ledger" in done.stdout and "True" in done.stdout


# ---- whole runs ----


def chaos(run, *arguments, command=()):
    """Another `chaos` command of the same user on the same OUT: (exit code, standard output, standard error)."""
    words = [*arguments, "--out", str(run.out), *(["--", *command] if command else [])]
    done = subprocess.run(
        [sys.executable, "-m", "mecefo_chaos", *words],
        env=environment_of_run(run.mark, run.out.parent),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def events_of(run):
    return {event.kind: event for event in read_log(run.folder / "events.jsonl")}


@pytest.mark.nightly
def test_killed_while_a_rank_is_paused(tmp_path):
    with ChaosRun(tmp_path, ["run", *PAUSE], patch=PATIENT) as run:
        run.wait_for("verified")
        code, _, told = chaos(run, "heal")
        assert (code, "left alone" in told) == (0, True), "a run that is under way is nobody's to heal"
        assert chaos(run, "heal", "latest")[0] == 4
        assert read_ledger(run.folder / "ledger.jsonl").pending
        run.process.kill()
        run.wait()
        assert_nothing_left(run, read_log(run.folder / "events.jsonl"), CLEAN_WITHIN_SECONDS)
        assert read_ledger(run.folder / "ledger.jsonl").pending == ()
        code, out, _ = chaos(run, "heal")
        assert (code, "a target for Prometheus" in out, "nothing else to heal" in out) == (0, True, True)
        code, out, _ = chaos(run, "heal")
        assert (code, "nothing to heal" in out) == (0, True)


def test_both_killed_then_the_next_run_is_refused_until_it_is_healed(tmp_path):
    with ChaosRun(tmp_path, ["run", *PAUSE, "--nodes", "1"], patch=PATIENT) as run:
        run.wait_for("verified")
        (entry,) = (tmp_path / "state").glob("*.json")
        watchdog = json.loads(entry.read_text())["watchdog"][0]
        # One that still runs would start another watchdog.
        os.kill(run.process.pid, signal.SIGSTOP)
        os.kill(watchdog, signal.SIGKILL)
        os.kill(run.process.pid, signal.SIGKILL)
        run.wait()
        # Steps without torch, whose import takes seconds.
        follower = (sys.executable, str(REPOSITORY / "tests/integration/follower.py"), "6")
        code, _, told = chaos(run, "run", "none", command=follower)
        assert code == 6, told
        assert "`chaos heal`" in told and "pause-process" in told
        code, out, _ = chaos(run, "heal", "--json")
        (healed,) = json.loads(out)["runs"]
        assert (code, healed["clean"], [one["incident"] for one in healed["undone"]]) == (0, True, [0])
        assert_nothing_left(run)
        assert "nothing to heal" in chaos(run, "heal")[1]
        assert chaos(run, "run", "none", command=follower)[0] == 0


@pytest.mark.nightly
def test_interrupted_again_and_again_while_a_rank_is_paused(tmp_path):
    with ChaosRun(tmp_path, ["run", *PAUSE], patch=PATIENT) as run:
        run.wait_for("verified")
        for _ in range(3):
            run.process.send_signal(signal.SIGINT)
        assert run.wait() == 2, run.stderr
        assert_nothing_left(run)
        events = events_of(run)
    assert "undo_failed" not in events
    assert events["undone"].monotonic_seconds <= events["job_ended"].monotonic_seconds, "before its processes end"
    assert events["residue"].fields == {"processes": [], "undo_pending": [], "left": []}


@pytest.mark.nightly
def test_a_halt_condition_while_a_rank_is_paused(tmp_path):
    # The first commit, and with it the halt, comes when the others have given up the paused rank.
    experiment = tmp_path / "halt.yaml"
    experiment.write_text(
        "name: halt\nhalt: [training_loss < 1000]\ntwin: false\n"
        "job: {nodes: 2, gpus_per_node: 2, steps: 100000, dilation: 'off', strategy: ndb}\n"
        "faults: [{kind: pause-process, at: {step: 1}, on: rank=1, for: 1h}]\n"
    )
    with ChaosRun(tmp_path, ["run", str(experiment)]) as run:
        assert run.wait() == 2, run.stderr
        assert_nothing_left(run)
        events = events_of(run)
    assert {"verified", "halted", "undone"} <= events.keys()
    assert events["halted"].monotonic_seconds <= events["undone"].monotonic_seconds
    assert events["residue"].fields["undo_pending"] == []


@pytest.mark.nightly
def test_stopped_for_longer_than_the_lease(tmp_path):
    with ChaosRun(tmp_path, ["run", *PAUSE], patch=PATIENT + SHORT_LEASE) as run:
        run.wait_for("verified")
        (ledger,) = run.out.glob("*/*/ledger.jsonl")
        run.process.send_signal(signal.SIGSTOP)
        log = ledger.parent / "logs" / "watchdog.log"
        deadline = time.monotonic() + WAIT_TIMEOUT_SECONDS
        while not log.exists() or "no sign of chaos" not in log.read_text():
            assert run.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [entry.state for entry in read_ledger(ledger).pending] == ["lapsed"]
        run.process.send_signal(signal.SIGCONT)
        assert run.wait() == 2, run.stderr
        assert_nothing_left(run)
        events = events_of(run)
    assert "the watchdog undid incident 0" in events["halted"].fields["condition"]
    assert events["undone"].fields["evidence"]["by"] == "watchdog"
    assert events["residue"].fields["undo_pending"] == []
