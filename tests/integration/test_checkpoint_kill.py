from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly

NUM_KILLS = 20
# Forks, so that torch is imported once. Each child saves one step after the other until it is killed at some moment of
# a save, and its successor goes on from what is the newest then.
SCRIPT = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from mecefo_runtime.checkpoint.checkpoint import newest, prune, unit_names, verify
from mecefo_runtime.checkpoint.manifest import Identity
from mecefo_runtime.checkpoint.writer import CheckpointWriter
from mecefo_runtime.job.config import JobConfig, ModelConfig
from mecefo_runtime.state.units import UnitState

torch.set_num_threads(1)
root, num_kills = Path(sys.argv[1]), int(sys.argv[2])
job = JobConfig(model=ModelConfig(8, 8, 2, 2, 2, 16))
identity = Identity.of(job, b"text")
generator = random.Random(0)


def train(lineage, told):
    units = {name: UnitState(name, job) for name in unit_names(2)}
    checkpoint = newest(root, identity)
    step = checkpoint.step if checkpoint else 0
    for name, unit in units.items():
        if checkpoint:
            checkpoint.load_unit(name, unit)
            assert float(unit.storage[0]) == step
    writer = CheckpointWriter(root, identity)
    os.write(told, b"x")
    while True:
        step += 1
        for unit in units.values():
            unit.storage.fill_(float(step))
        assert writer.save(step, units, lineage)
        assert writer.wait(600)
        assert [result.error for result in writer.results()] == [None]
        prune(root, 2)
        os.write(told, b"x")


def live(number, num_saved, longest_seconds):
    # As long as it takes to save so many, and at most so much longer; returns how long those took.
    reading, told = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            train(f"life {number}", told)
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(1)
    os.close(told)
    assert os.read(reading, 1), "the child ended by itself"
    began = time.monotonic()
    for _ in range(num_saved):
        assert os.read(reading, 1), "the child ended by itself"
    seconds = time.monotonic() - began
    time.sleep(generator.uniform(0.0, longest_seconds))
    os.kill(pid, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "the child ended by itself"
    os.close(reading)
    return seconds


# However slow this disk is: each lives for up to two saves.
longest_seconds = live("first", 4, 0.0) / 2
steps, num_cut = [], 0
for number in range(num_kills):
    live(number, 0, longest_seconds)
    num_cut += any(root.glob("step-*/.writing-*"))
    found = newest(root, identity)
    if found is not None:
        verify(found.path)
        for name in found.manifests:
            unit = UnitState(name, job)
            found.load_unit(name, unit)
            assert bool((unit.storage == found.step).all()), "units of two steps or lives"
    steps.append(found.step if found else 0)
prune(root, 2)
older = [path.name for path in root.iterdir() if path.name < f"step-{steps[-1] - 1:08}"]
print(json.dumps({"steps": steps, "num_cut": num_cut, "older": older}))
"""


def test_whatever_is_the_newest_after_a_kill_is_whole(tmp_path):
    # kill -9 loses no written page: what this shows is the order of writing, not what a power failure leaves.
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path), str(NUM_KILLS)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert len(report["steps"]) == NUM_KILLS
    assert report["steps"] == sorted(report["steps"]), "a step that was complete is not any more"
    assert report["steps"][-1] > report["steps"][0]
    assert report["num_cut"] > 0, "no kill hit a unit that was being written"
    assert report["older"] == [], "what the killed left behind was not removed"
