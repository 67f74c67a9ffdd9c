import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._machine import Machine
from benchmarks.fault_free import (
    ARMED,
    EQUAL_STEPS,
    OURS,
    PHASED,
    PLAIN,
    SHAPES,
    Measurement,
    NotEqual,
    Shape,
    agent_ratio,
    check_equal,
    compare,
    plan_rounds,
    report,
    to_document,
)
from benchmarks.plain.agent import AgentCost
from benchmarks.plain.phases import PHASES, PhaseClock, PhaseHook, Window, phases_file
from benchmarks.plain.runs import Run
from benchmarks.plain.usage import Memory, cpu_seconds_of, parse_status, read_memory
from mecefo_runtime.job.config import JobConfig
from tests.benchmarks.limits import TIMEOUT_SECONDS

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")
SHAPE = Shape("small", JobConfig(), 3, with_agent=True)
COST = AgentCost(armed_seconds=1.1e-6, bare_seconds=1e-7)
PHASE_SECONDS = dict.fromkeys(PHASES, (0.02, 0.01))


def run(step_seconds=0.1, cpu_seconds=0.3, growth=100, losses=(5.0, 4.0), norms=(1.0, 2.0)):
    return Run(
        step_seconds=(step_seconds, step_seconds, 9.0),
        losses=losses,
        gradient_norms=norms,
        rank_cpu_seconds=3 * cpu_seconds,
        other_cpu_seconds=0.0,
        peak_bytes=1000 + growth,
        growth_bytes=growth,
        phases=PHASE_SECONDS,
    )


def measured():
    runs = {
        PLAIN: (run(0.1, 0.3), run(0.2, 0.4)),
        OURS: (run(0.125, 0.36, growth=101), run(0.2, 0.4, growth=103)),
        ARMED: (run(0.125), run(0.25)),
    }
    return [Measurement("small", i + 1, name, found) for name, row in runs.items() for i, found in enumerate(row)]


@pytest.mark.unit
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_round_has_every_condition_and_none_is_always_first(shape):
    rounds = plan_rounds(shape, 6)
    conditions = {PLAIN, OURS, ARMED} if shape.with_agent else {PLAIN, OURS}
    assert all(set(names) - {PHASED} == conditions for names in rounds)
    positions = {name: sum(names.index(name) for names in rounds) for name in conditions}
    assert len(set(positions.values())) == 1
    assert any(PHASED in names for names in rounds)


@pytest.mark.unit
def test_ratios_are_of_the_same_round():
    found = compare(measured(), SHAPE)
    assert found["speed, ours / plain"].values == pytest.approx((0.8, 1.0))
    assert found["CPU seconds of ranks, ours / plain"].values == pytest.approx((1.2, 1.0))
    assert found["memory of training, ours / plain"].values == pytest.approx((1.01, 1.03))
    assert found["step time, armed / not armed"].values == pytest.approx((1.0, 1.25))


@pytest.mark.unit
def test_a_shape_without_agent_says_nothing_of_agents():
    assert not [name for name in compare(measured(), replace(SHAPE, with_agent=False)) if "armed" in name]


@pytest.mark.unit
def test_rounding_is_equal_and_anything_else_is_not():
    check_equal(run(losses=(5.0, 4.0)), run(losses=(5.000001, 4.0)))
    with pytest.raises(NotEqual, match=r"step 2: the loss of plain training is 4, of ours 4\.1"):
        check_equal(run(losses=(5.0, 4.0)), run(losses=(5.0, 4.1)))
    with pytest.raises(NotEqual, match="step 1: the gradient norm"):
        check_equal(run(), run(norms=(1.01, 2.0)))
    with pytest.raises(NotEqual, match="2 steps, ours 1"):
        check_equal(run(), run(losses=(5.0,)))


@pytest.mark.unit
@given(st.integers(0, 2 * EQUAL_STEPS - 1))
def test_a_loss_that_differs_is_seen_in_the_first_steps_only(step):
    losses = [4.0] * (2 * EQUAL_STEPS)
    other = [*losses[:step], 4.1, *losses[step + 1 :]]
    pair = run(losses=tuple(losses)), run(losses=tuple(other))
    if step >= EQUAL_STEPS:
        check_equal(*pair)
    else:
        with pytest.raises(NotEqual, match=f"step {step + 1}:"):
            check_equal(*pair)


@pytest.mark.unit
def test_the_agents_share_is_what_arming_adds_to_a_step():
    assert COST.seconds_per_step == pytest.approx(6e-6)
    assert agent_ratio(measured(), SHAPE, COST) == pytest.approx(6e-6 / 0.1625)
    assert agent_ratio([], SHAPE, COST) is None


@pytest.mark.unit
def test_the_report_says_which_aims_are_met():
    lines = report(measured(), [SHAPE], COST, MACHINE, 0.1).splitlines()
    assert "aim: speed, ours / plain at least 0.98: MISSED (0.900)" in lines
    assert "aim: memory of training, ours / plain at most 1.02: met (1.020)" in lines
    agent = next(line for line in lines if "announcements" in line)
    assert agent.endswith("of a step: met (0.0037%: 1100 ns instead of 100 ns, 6 times a step)")
    assert next(line.split() for line in lines if line.startswith("speed")) == [
        *("speed,", "ours", "/", "plain"),
        *("0.900", "0.800", "1.000", "2"),
    ]


@pytest.mark.unit
def test_a_failed_run_is_named_and_takes_its_pair_with_it():
    runs = [m for m in measured() if (m.round_number, m.condition) != (1, OURS)]
    runs.append(Measurement("small", 1, OURS, None, "ours: the layout changed"))
    assert compare(runs, SHAPE)["speed, ours / plain"].values == pytest.approx((1.0,))
    assert "small, round 1, ours: FAILED: ours: the layout changed" in report(runs, [SHAPE], COST, MACHINE, 0.1)


@pytest.mark.unit
def test_the_document_is_plain_json():
    document = json.loads(json.dumps(to_document(measured(), [SHAPE], COST, MACHINE, 0.1), allow_nan=False))
    assert document["shapes"][0]["ratios"]["speed, ours / plain"]["values"] == [0.8, 1.0]
    assert len(document["runs"]) == 6 and document["runs"][0]["step_seconds"] == [0.1, 0.1, 9.0]


@pytest.mark.unit
def test_a_phase_counts_in_the_windows_steps_only(monkeypatch, tmp_path):
    seconds = iter(range(1000))
    monkeypatch.setattr("benchmarks.plain.phases.time.monotonic", lambda: float(next(seconds)))
    window = Window(first=1, last=3)
    assert (window.num_steps, window.num_job_steps) == (2, 5)
    hook = PhaseHook(0, tmp_path, window)
    for step in range(1, 6):
        for phase in ("data", "forward", "backward", "reduce", "optimizer", "commit"):
            hook.announce(step, phase)
    wall = {phase: found[0] for phase, found in json.loads(phases_file(tmp_path, 0).read_text()).items()}
    # A second for every clock reading: "backward" lies within the pipeline and is none.
    assert wall == dict.fromkeys(PHASES, 1.0)


@pytest.mark.unit
def test_a_phase_clock_adds_up_what_the_process_computed():
    clock = PhaseClock(Window(0, 1))
    began = time.process_time()
    clock.enter(1, "pipeline")
    torch.ones(100_000).square().sum()
    clock.enter(1, "between")
    clock.enter(2, "data")
    total = sum(cpu for _, cpu in clock.per_step().values())
    assert 0 < total <= time.process_time() - began
    assert clock.per_step()["data"] == (0.0, 0.0)


@pytest.mark.unit
def test_memory_is_read_from_the_status():
    text = "Name:\trank\nVmHWM:\t  300 kB\nVmRSS:\t 250 kB\nRssAnon:\t 100 kB\nRssFile:\t 120 kB\nRssShmem:\t 30 kB\n"
    memory = parse_status(text)
    assert memory == Memory(300 * 1024, 100 * 1024, 120 * 1024, 30 * 1024)
    assert memory.peak_anonymous_bytes == 150 * 1024


@pytest.mark.unit
def test_what_a_process_takes_is_seen_from_outside():
    before = read_memory(os.getpid())
    held = bytearray(b"x" * 50_000_000)
    after = read_memory()
    assert after.anonymous_bytes - before.anonymous_bytes > 0.9 * len(held)
    earlier = time.process_time()
    assert earlier <= cpu_seconds_of(os.getpid()) <= time.process_time()
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessLookupError):
        read_memory(process.pid)
    process.wait()
    with pytest.raises(ProcessLookupError):
        cpu_seconds_of(process.pid)


@pytest.mark.nightly
def test_quick(tmp_path):
    command = [sys.executable, "-m", "benchmarks.fault_free", "--json", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    plain, *others = sorted(document["runs"], key=lambda found: found["condition"] != PLAIN)
    assert [found["condition"] for found in others] == [OURS, ARMED, PHASED]
    for found in others:
        assert found["losses"] == pytest.approx(plain["losses"], rel=1e-4)
        assert found["rank_cpu_seconds"] > 0 and found["growth_bytes"] > 0
    assert set(plain["phases"]) == set(others[-1]["phases"]) == set(PHASES)
    assert 0 < document["shapes"][0]["agent_ratio"] < 0.5


@pytest.mark.nightly
@pytest.mark.parametrize("condition", [PLAIN, OURS])
def test_ctrl_c_leaves_nothing_behind(condition, tmp_path):
    command = [sys.executable, "-m", "benchmarks.fault_free", "--quick", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        started = psutil.Process(process.pid)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        # The log is there before the process that writes it.
        while not list(tmp_path.glob(f"*-{condition}/rank-0.log")) or len(started.children(recursive=True)) < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        children = started.children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) != 0
    gone, alive = psutil.wait_procs(children, timeout=120)
    assert len(gone) == len(children) and not alive
