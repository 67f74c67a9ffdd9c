"""Who gets a signal of Slurm's: what `deliver` of `preempt` does as well (tests/chaos/faults/process)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.folders import cluster_folder
from tests.cluster.hosts import why_no_hosts
from tests.cluster.slurm import PACKAGES, PROGRAMS, Slurm

pytestmark = pytest.mark.cluster

TIMEOUT_SECONDS = 60.0
PROCESSES = ("batch-child", "task", "task-child")
# Writes its name and what it gets; a task has a child.
PROCESS = """\
import os, signal, sys, time
name = sys.argv[1]
def tell(text):
    with open(sys.argv[2], "a") as file:
        file.write(f"{name} {text}\\n")
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: tell(signal.Signals(number).name))
if name == "task" and os.fork() == 0:
    name = "task-child"
tell("ready")
while True:
    time.sleep(0.01)
"""
BATCH = """\
#!/bin/bash
trap 'echo shell SIGUSR1 >> LOG' USR1
trap 'echo shell SIGTERM >> LOG' TERM
python3 PROCESS batch-child LOG &
srun -n1 -N1 python3 PROCESS task LOG &
while :; do wait; done
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if (reason := why_no_hosts(PROGRAMS, PACKAGES)) is not None:
        pytest.skip(f"no hosts here: {reason}")
    with cluster_folder() as folder, Slurm(folder, 1) as made:
        yield made


def until_told(log: Path, *lines: str) -> list[str]:
    """What the log tells, when it has all of `lines`."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        told = log.read_text().splitlines() if log.exists() else []
        if set(lines) <= set(told):
            return told
        assert time.monotonic() < deadline, told
        time.sleep(0.02)


def test_slurm_signals_tasks_and_shells_and_not_what_they_have_started(slurm: Slurm) -> None:
    folder = slurm.home()
    log, process, batch = folder / "signals", folder / "process.py", folder / "batch.sh"
    process.write_text(PROCESS)
    batch.write_text(BATCH.replace("LOG", str(log)).replace("PROCESS", str(process)))
    job = slurm.run(0, "sbatch", "--parsable", "-N1", "-n1", str(batch), user="alice", cwd=folder).stdout.strip()
    until_told(log, *(f"{name} ready" for name in PROCESSES))
    got = {}
    for options, last in (("", "task"), ("--batch", "shell"), ("--full", "batch-child")):
        log.write_text("")
        slurm.run(0, "scancel", *options.split(), "--signal=USR1", job, user="alice")
        until_told(log, f"{last} SIGUSR1")
        time.sleep(0.2)
        got[options] = set(log.read_text().splitlines())
    log.write_text("")
    slurm.run(0, "scancel", job, user="alice")
    until_told(log, "task SIGTERM", "shell SIGTERM")
    time.sleep(0.2)
    got["cancel"] = set(log.read_text().splitlines())
    # As `deliver: slurm-step`, `slurm-batch` and `slurm-cancel`.
    assert got[""] == {"task SIGUSR1"}
    assert got["--batch"] == {"shell SIGUSR1"}
    assert got["--full"] == {"task SIGUSR1", "shell SIGUSR1", "batch-child SIGUSR1"}
    assert got["cancel"] == {"task SIGTERM", "shell SIGTERM"}
