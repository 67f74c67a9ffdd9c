"""The watchdog: a process of its own that undoes when `chaos` is dead or silent, and goes when it is not needed."""

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from chaos.undo import run_registry
from chaos.undo.lease import LEASE_SECONDS
from chaos.undo.ledger import read_ledger
from mecefo_runtime.system.process import ProcessId
from tests.integration.runs import environment_of_run, processes_of_run

pytestmark = pytest.mark.crash

# What is not there by then hangs.
TIMEOUT_SECONDS = 120.0
# Where it is to end within the test; else the command's own, which a busy machine does not let end by itself.
SHORT_LEASE_SECONDS = 3.0
# A small `chaos`: it stops a process, says so, and ends in order when its standard input does.
SCRIPT = """
import asyncio, os, signal, sys
from pathlib import Path
from chaos.faults import registry
from chaos.undo.guard import Guard

async def main(folder, pid, start_ticks):
    def lapse(text):
        print("lapsed:", text, flush=True)
    def loss(text, is_replaced):
        print("lost:", is_replaced, text, flush=True)
    guard = Guard(folder, folder, on_lapse=lapse, on_loss=loss, lease_seconds=float(sys.argv[4]))
    guard.open(has_watchdog=True)
    await guard.ready()
    guard.ledger.prepare(0, "pause-process", {"processes": [{"pid": pid, "start_ticks": start_ticks}]})
    os.kill(pid, signal.SIGSTOP)
    print("stopped", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print("clean:", (await guard.close(registry())).is_clean, flush=True)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
"""


class Scene:
    """The small `chaos`, and the process that it stops."""

    def __init__(self, folder, *, ticks_ahead=0, lease_seconds=LEASE_SECONDS):
        self.folder, self.ledger = folder, folder / "ledger.jsonl"
        # Of this scene alone: others may be set on this machine at the same time.
        self._mark = uuid.uuid4().hex
        self.target = subprocess.Popen(["sleep", "600"])
        process = ProcessId.of(self.target.pid)
        whom = (str(process.pid), str(process.start_ticks + ticks_ahead))
        self.chaos = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder), *whom, str(lease_seconds)],
            env=environment_of_run(self._mark, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self):
        """Until the process is stopped."""
        assert self.chaos.stdout.readline() == "stopped\n"
        wait_until(self.is_stopped)
        return self

    def is_stopped(self):
        return ProcessId.of(self.target.pid).state() == "T"

    def registered(self):
        (entry,) = run_registry.registered()
        return entry.run

    def end(self):
        for process in (self.chaos, self.target):
            process.kill()
            process.communicate()
        for process in processes_of_run(self._mark):
            process.signal(signal.SIGKILL)


@pytest.fixture
def set_scene(tmp_path, monkeypatch):
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(tmp_path / "state"))
    scenes = []

    def set_scene(**options):
        scenes.append(Scene(tmp_path, **options))
        return scenes[-1].begin()

    yield set_scene
    for scene in scenes:
        scene.end()


def wait_until(is_so):
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_SECONDS} s"
        time.sleep(0.01)


def test_dead_chaos_is_undone_and_the_watchdog_goes(set_scene):
    scene = set_scene()
    run = scene.registered()
    assert run.is_watched()
    scene.chaos.kill()
    scene.chaos.wait()
    wait_until(lambda: not scene.is_stopped())
    wait_until(lambda: not run.is_watched())
    (entry,) = read_ledger(scene.ledger).entries
    assert (entry.state, entry.by) == ("struck", "watchdog")
    assert run_registry.registered() == ()


def test_it_goes_when_nothing_is_left_to_do(set_scene):
    scene = set_scene()
    run = scene.registered()
    out, _ = scene.chaos.communicate("", TIMEOUT_SECONDS)
    assert out == "clean: True\n"
    assert not run.is_watched() and not scene.is_stopped()
    assert read_ledger(scene.ledger).pending == () and run_registry.registered() == ()


def test_silent_chaos_is_undone_and_told_of_it_when_it_wakes_up(set_scene):
    scene = set_scene(lease_seconds=SHORT_LEASE_SECONDS)
    run = scene.registered()
    scene.chaos.send_signal(signal.SIGSTOP)
    wait_until(lambda: not scene.is_stopped())
    wait_until(lambda: [entry.state for entry in read_ledger(scene.ledger).pending] == ["lapsed"])
    assert run.is_watched(), "chaos lives, and may still act"
    # What is done after the lapse; while chaos sleeps on, the watchdog does not undo it a second time.
    scene.target.send_signal(signal.SIGSTOP)
    wait_until(scene.is_stopped)
    scene.chaos.send_signal(signal.SIGCONT)
    lapsed = f"lapsed: chaos did not run for {SHORT_LEASE_SECONDS:g} s: the watchdog undid incident 0\n"
    assert scene.chaos.stdout.readline() == lapsed
    out, _ = scene.chaos.communicate("", TIMEOUT_SECONDS)
    # A machine that lets nobody run for so long makes another lapse.
    assert out.removeprefix(lapsed) == "clean: True\n"
    assert not scene.is_stopped(), "what was done after the lapse is undone, too"
    assert read_ledger(scene.ledger).pending == ()


@pytest.mark.nightly
def test_chaos_that_dies_silent_is_undone_again(set_scene):
    scene = set_scene(lease_seconds=SHORT_LEASE_SECONDS)
    run = scene.registered()
    scene.chaos.send_signal(signal.SIGSTOP)
    wait_until(lambda: [entry.state for entry in read_ledger(scene.ledger).pending] == ["lapsed"])
    scene.target.send_signal(signal.SIGSTOP)
    wait_until(scene.is_stopped)
    scene.chaos.kill()
    scene.chaos.wait()
    wait_until(lambda: not scene.is_stopped())
    wait_until(lambda: not run.is_watched())
    assert read_ledger(scene.ledger).pending == ()


def test_no_signal_but_the_last_one_ends_it_and_then_there_is_another(set_scene):
    scene = set_scene()
    first = scene.registered()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        first.watchdog.signal(number)
    assert os.getsid(first.watchdog.pid) == first.watchdog.pid, "no terminal reaches it"
    first.watchdog.signal(signal.SIGKILL)
    assert scene.chaos.stdout.readline() == "lost: True the watchdog died (exit code -9)\n"
    second = scene.registered()
    assert second.watchdog != first.watchdog and second.is_watched()
    scene.chaos.kill()
    scene.chaos.wait()
    wait_until(lambda: not scene.is_stopped())
    wait_until(lambda: not second.is_watched())


def test_a_recycled_pid_is_not_hit(set_scene):
    # The process that was recorded is gone; another has its pid, and is stopped for reasons of its own.
    scene = set_scene(ticks_ahead=-1)
    run = scene.registered()
    scene.chaos.kill()
    scene.chaos.wait()
    wait_until(lambda: not run.is_watched())
    assert read_ledger(scene.ledger).pending == ()
    assert scene.is_stopped()
