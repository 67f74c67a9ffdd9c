"""A slow rank, in a real process with a real agent: it runs for a share of the time, and then all the time again."""

import asyncio
import json
import random
import signal
import subprocess
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from chaos.errors import HealError
from chaos.faults.process.straggler import SlowParameters, SlowRank, _share
from chaos.host import python_module
from chaos.host.duty_cycle import DutyCycle
from chaos.host.process_table import is_stopped
from chaos.in_process.slow import Paced, SlowPace
from chaos.language.trigger import Trigger
from mecefo_runtime.system.dilation import Pacer
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.training.inspection import Inspection
from tests.chaos.one_node import older, sleepers
from tests.chaos.one_rank import STEP_SECONDS, TIMEOUT_SECONDS, OneRank

pytestmark = pytest.mark.unit

# So many steps before it that there is something to compare with.
LATER = Trigger(step=22)
# Begins, and stops nobody.
IDLE = "import sys; sys.stdout.write('\\x1e\\n'); sys.stdout.flush(); sys.stdin.read()"


@pytest.fixture
def sleeper():
    with sleepers() as children:
        yield ProcessId.of(children[0].pid)


def assert_runs(process, seconds=0.3):
    """That nobody stops it for longer than the cycle's period."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not is_stopped(process)
        time.sleep(0.002)


def slow(folder, **parameters):
    return OneRank(folder, SlowRank, trigger=LATER, **parameters)


def test_it_is_stopped_for_its_share_and_steps_get_longer(tmp_path):
    run = slow(tmp_path, lifetime="1s", factor=3.0)
    still = []

    def look():
        still.append(is_stopped(run.process))
        return len(still) > 30

    run.play(then=look)
    evidence = run.evidence()
    (process,) = evidence["processes"]
    assert process["stopped_ratio"] == pytest.approx(2 / 3, rel=0.15)
    # How long they took before says how busy the machine was, too; but no machine takes less than their CPU time.
    assert evidence["step_seconds_during"] > 1.5 * STEP_SECONDS
    ratio = evidence["step_seconds_during"] / evidence["step_seconds_before"]
    assert evidence["step_time_ratio"] == pytest.approx(ratio, rel=0.01)
    assert (evidence["steps_before"], evidence["padded_ratio"]) == (20, 1.0)
    assert not any(still), "it is stopped after it was undone"


@pytest.fixture
def replace_cycle(monkeypatch):
    """Has `replace(command)` started instead of the process that stops and resumes."""
    start = asyncio.create_subprocess_exec

    def install(replace):
        async def start_other(*command, **options):
            return await start(*(replace(command) if "chaos.host.duty_cycle" in command else command), **options)

        monkeypatch.setattr("chaos.faults.process.straggler.asyncio.create_subprocess_exec", start_other)

    return install


@pytest.fixture
def few_samples(monkeypatch):
    """Enough of them to tell shares that are far apart."""
    monkeypatch.setattr("chaos.faults.process.straggler.NUM_SAMPLES", 150)


@pytest.mark.usefixtures("few_samples")
def test_a_cycle_that_stops_nobody_is_not_verified(tmp_path, replace_cycle):
    replace_cycle(lambda command: (command[0], "-c", IDLE))
    run = slow(tmp_path, lifetime="1s").play()
    assert "stopped for 0% of the time" in run.reason()


@pytest.mark.usefixtures("few_samples")
def test_a_lighter_cycle_than_asked_for_is_not_verified(tmp_path, replace_cycle):
    replace_cycle(lambda command: (*command[:4], "1.25", *command[5:]))
    run = slow(tmp_path, lifetime="1s", factor=2.0).play()
    assert "not for 50%" in run.reason()


def test_a_rank_that_dies_is_not_slow(tmp_path):
    die = "def around(step, phase):\n    agent.announce(step, phase)\n    step < 25 or os._exit(3)"
    run = slow(tmp_path, setup=die)
    run.play(until="unverified")
    assert "ended before its slowdown could be measured" in run.reason()


def test_a_recycled_pid_is_not_hit(tmp_path, monkeypatch):
    run = slow(tmp_path)
    recycled = type("Recycled", (), {"of": lambda pid: older(ProcessId.of(pid))})
    monkeypatch.setattr("tests.chaos.one_rank.ProcessId", recycled)
    run.play(until="unverified", then=lambda: run.watch.last_step > 30)
    assert "nothing of rank=0 is running any more" in run.reason()


class TestUndo:
    def record(self, process):
        processes = [{"pid": process.pid, "start_ticks": process.start_ticks}]
        return json.loads(json.dumps({"processes": processes, "period_seconds": 0.02}))

    def test_it_resumes_what_a_killed_cycle_left_stopped(self, sleeper):
        sleeper.signal(signal.SIGSTOP)
        while not is_stopped(sleeper):
            pass
        assert SlowRank.undo(self.record(sleeper)) == SlowRank.undo(self.record(sleeper))
        assert_runs(sleeper)

    def test_it_ends_a_cycle_that_goes_on_and_no_other(self, sleeper):
        # As of a chaos that was stopped: its end of the pipe stays open.
        with sleepers() as children, Cycle(ProcessId.of(children[0].pid)) as other, Cycle(sleeper) as cycle:
            SlowRank.undo(self.record(sleeper))
            assert cycle.child.wait(TIMEOUT_SECONDS) == -signal.SIGKILL
            assert_runs(sleeper)
            assert other.child.poll() is None

    def test_what_somebody_still_stops_is_said(self, sleeper, monkeypatch):
        monkeypatch.setattr("chaos.faults.process.pause.RESUMED_WITHIN_SECONDS", 0.3)
        is_over = threading.Event()

        def stop_again():
            while not is_over.wait(0.005):
                sleeper.signal(signal.SIGSTOP)

        stranger = threading.Thread(target=stop_again)
        stranger.start()
        try:
            with pytest.raises(HealError, match=str(sleeper.pid)):
                SlowRank.undo(self.record(sleeper))
        finally:
            is_over.set()
            stranger.join()

    def test_a_recycled_pid_is_left_as_it_is(self, sleeper):
        sleeper.signal(signal.SIGSTOP)
        while not is_stopped(sleeper):
            pass
        SlowRank.undo(self.record(older(sleeper)))
        assert is_stopped(sleeper)


class Cycle:
    """The process that stops and resumes another."""

    def __init__(self, process):
        self._process = process

    def __enter__(self):
        whom = f"{self._process.pid}:{self._process.start_ticks}"
        command = python_module.command("chaos.host.duty_cycle", "2.0", "0.05", "0.2", "0", whom)
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert python_module.is_begin(self.child.stdout.readline())
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()


class TestDutyCycle:
    def test_it_resumes_and_ends_with_whoever_started_it(self, sleeper):
        with Cycle(sleeper) as cycle:
            seen = set()
            while seen != {True, False}:
                seen.add(is_stopped(sleeper))
            # As when the injector is killed: its end of the pipe is closed by the kernel.
            cycle.child.stdin.close()
            assert cycle.child.wait(TIMEOUT_SECONDS) == 0
        assert_runs(sleeper)

    def test_signals_that_end_the_injector_do_not_end_it_before(self, sleeper):
        with Cycle(sleeper) as cycle:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                cycle.child.send_signal(number)
            seen = set()
            while seen != {True, False}:
                seen.add(is_stopped(sleeper))
            assert cycle.child.poll() is None

    def test_it_ends_with_whom_it_stops(self):
        with sleepers() as children, Cycle(ProcessId.of(children[0].pid)) as cycle:
            children[0].kill()
            children[0].wait()
            assert cycle.child.wait(TIMEOUT_SECONDS) == 0

    def test_a_stretched_run_is_made_up_for(self, monkeypatch):
        """In a simulated time in which waits are stretched at random, the share holds all the same."""
        lots, now, stops = random.Random(1), [0.0], []

        def wait(seconds):
            now[0] += seconds * lots.uniform(1.0, 3.0) + 1e-6
            return False

        def send(number):
            stops.append((now[0], number))

        monkeypatch.setattr("chaos.host.duty_cycle._is_over", wait)
        monkeypatch.setattr("chaos.host.duty_cycle.time.monotonic", lambda: now[0])
        duty = DutyCycle([], 4.0, 0.05, 0.5, 0)
        monkeypatch.setattr(duty, "_signal", send)
        for _ in range(2000):
            duty.cycle()
        stopped = sum(b - a for (a, number), (b, _) in zip(stops[::2], stops[1::2], strict=True) if number)
        assert stopped / now[0] == pytest.approx(0.75, abs=0.02)


class TestPace:
    def subject(self, ratio):
        return Inspection(None, Pacer(ratio))

    def test_a_padded_rank_is_padded_more_until_it_is_lifted(self):
        subject = self.subject(4.0)
        assert isinstance(subject, Paced)
        effect = SlowPace({"factor": 2.5}, subject, lambda _: None)
        assert effect.begin(5, "forward") == {"padded_ratio": 4.0, "slow_factor": 2.5}
        assert subject.pacer.slow_factor == 2.5
        assert effect.lift() == {"slow_factor": 1.0}
        assert subject.pacer.slow_factor == 1.0

    @pytest.mark.parametrize("subject", [None, object(), Inspection(None, Pacer(1.0))], ids=["none", "alien", "off"])
    def test_without_padding_there_is_none_to_add(self, subject):
        effect = SlowPace({"factor": 2.5}, subject, lambda _: None)
        assert effect.begin(5, "forward") == {"padded_ratio": 1.0, "slow_factor": 1.0}
        assert effect.lift() == {"slow_factor": 1.0}
        if isinstance(subject, Inspection):
            assert subject.pacer.slow_factor == 1.0


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.booleans()), min_size=2, max_size=50))
def test_a_share_is_between_none_and_all(gaps):
    at, looks = 0.0, []
    for gap, is_held in gaps:
        at += gap
        looks.append((at, is_held))
    assert 0.0 <= _share(looks) <= 1.0
    assert _share(looks) + _share([(at, not is_held) for at, is_held in looks]) == pytest.approx(1.0)


def test_a_share_is_of_time_and_not_of_looks():
    assert _share([(0.0, False), (1.0, False), (1.0, True), (3.0, True), (3.0, False), (4.0, False)]) == 0.5
    assert _share([]) == _share([(1.0, True)]) == 0.0


@pytest.mark.parametrize(
    "parameters", [{"factor": 1.0}, {"factor": 100}, {"jitter": 2}, {"period": "0s"}, {"factor": float("nan")}]
)
def test_parameters_are_checked(parameters):
    with pytest.raises(ValidationError):
        SlowParameters(**parameters)
