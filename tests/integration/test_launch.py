"""The runtime under torchrun: a plain job, one that is restarted from its checkpoint, and mistakes told in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mecefo_runtime.job.config import JOB_FAILED
from mecefo_runtime.launch.keeper import MAX_FRUITLESS_COORDINATORS, keep_coordinator
from mecefo_runtime.membership.coordinator_checkpoint import CoordinatorCheckpoint
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId, start_child
from tests.integration.runs import REPOSITORY, environment_of_run, processes_of_run

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 600.0
JOB = ("--pipeline", "2", "--steps", "16", "--seed", "3")
# At its first start rank 2 comes no further than this, until it is killed.
HELD_STEP = 12
HOLD = f"""import os, sys, time
names = ("RANK", "TORCHELASTIC_RESTART_COUNT")
if "mecefo_runtime" in sys.orig_argv and [os.environ.get(name) for name in names] == ["2", "0"]:
    from mecefo_runtime.step.step import Stepper

    run = Stepper.run

    def hold(self, epoch, step):
        if step == {HELD_STEP}:
            time.sleep(600)
        return run(self, epoch, step)

    Stepper.run = hold
"""


class Torchrun:
    """`torchrun -m mecefo_runtime` with its output in a file; a context that ends all it started."""

    def __init__(self, folder: Path, *options: str, ranks: int = 4, restarts: int = 0, patch: str = "") -> None:
        self.mark = os.urandom(8).hex()
        self._log = folder / "output"
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts))
        # Port 0: torchrun chooses a free one, so that several can run at once.
        ports = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
        environment = environment_of_run(self.mark, folder, patch) | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, *ports, "-m", "mecefo_runtime", *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env=environment,
                start_new_session=True,
            )

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *_: object) -> None:
        for process in processes_of_run(self.mark):
            process.signal(signal.SIGKILL)
        self.process.wait()

    @property
    def output(self) -> str:
        return self._log.read_text()

    def of(self, kind: str) -> list[Event]:
        lines = [line for line in self.output.splitlines(keepends=True) if line.startswith('{"time"')]
        events = [Event.from_json(line.encode()) for line in lines if line.endswith("}\n")]
        return [event for event in events if event.kind == kind]

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not any((event.step or 0) >= step for event in self.of("step_committed")):
            assert time.monotonic() < deadline and self.process.poll() is None, self.output
            time.sleep(0.05)


def losses_of(job: Torchrun) -> dict[int, float]:
    return {event.step or 0: event.fields["loss"] for event in job.of("step_committed")}


@pytest.mark.nightly
def test_a_plain_job_and_one_that_torchrun_restarts_come_to_the_same_end(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "killed").mkdir()
    with Torchrun(tmp_path / "plain", *JOB) as plain:
        assert plain.process.wait(DEADLINE_SECONDS) == 0, plain.output
        assert sorted(losses_of(plain)) == list(range(1, 17))
        assert not processes_of_run(plain.mark)
    checkpoints = ("--checkpoint-folder", str(tmp_path / "checkpoints"), "--checkpoint-every", "4")
    with Torchrun(tmp_path / "killed", *JOB, *checkpoints, restarts=2, patch=HOLD) as killed:
        killed.wait_for_step(HELD_STEP - 1)
        victim = next(event for event in killed.of("rank_started") if event.rank == 2)
        os.kill(victim.pid, signal.SIGKILL)
        assert killed.process.wait(DEADLINE_SECONDS) == 0, killed.output
        again = losses_of(killed)
        starts = [event for event in killed.of("rank_started") if event.rank == 2]
        assert len(starts) == 2, "torchrun starts all ranks again"
    assert again == pytest.approx(losses_of(plain), rel=1e-5)


# In the place of the coordinator, and of nothing else.
CRASHING = """
from mecefo_runtime.launch import keeper, torchrun
def crash(*_):
    raise ZeroDivisionError("a bug of the coordinator")
keeper.run_coordinator = crash
torchrun.main()
"""


def test_a_coordinator_that_crashes_at_once_is_given_up_and_the_job_with_it(tmp_path):
    log = tmp_path / "coordinator.log"
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    mark = os.urandom(8).hex()
    answer = subprocess.run(
        [sys.executable, "-c", CRASHING, "--steps", "2", "--coordinator-log", str(log)],
        env=environment_of_run(mark, tmp_path) | alone,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert answer.returncode == -signal.SIGTERM
    (line,) = (line for line in answer.stderr.splitlines() if line.startswith("mecefo_runtime: "))
    assert "crashed 4 times in a row, the last time with exit code 1" in line and line.endswith(f"see {log}")
    assert log.read_text().count("ZeroDivisionError: a bug of the coordinator") == 4


class TestKeepingACoordinator:
    def keep(self, tmp_path: Path, ends: list[tuple[int, int]]) -> tuple[int, int]:
        """Coordinators that note a step and end with a code each; returns the last code, and how many there were."""
        checkpoint, coming = CoordinatorCheckpoint(), iter(ends)
        epochs = iter(range(1, 100))  # a new epoch alone is no progress

        def start() -> ProcessId:
            (step, code), epoch = next(coming), next(epochs)

            def coordinate() -> int:
                checkpoint.note(epoch, step)
                return code

            return start_child("coordinator", tmp_path / "log", coordinate)

        code = keep_coordinator(start, checkpoint)
        return code, len(ends) - len(list(coming))

    def test_it_is_started_again_as_often_as_it_comes_further(self, tmp_path):
        ends = [(step, 1) for step in range(3 * MAX_FRUITLESS_COORDINATORS)]
        assert self.keep(tmp_path, [*ends, (20, 0)]) == (0, len(ends) + 1)

    def test_a_job_that_failed_is_no_crash(self, tmp_path):
        assert self.keep(tmp_path, [(1, 1), (1, JOB_FAILED), (1, 0)]) == (JOB_FAILED, 2)

    def test_it_is_given_up_once_it_comes_no_further(self, tmp_path):
        fruitless = [(9, 7)] * MAX_FRUITLESS_COORDINATORS
        assert self.keep(tmp_path, [(5, 1), (9, 1), *fruitless, (9, 0)]) == (7, 2 + len(fruitless))


# One process after the other, of which none imports torch for itself.
MISTAKES = """
import json, os, sys
from mecefo_runtime.launch.torchrun import main
answers = []
for environment, options in json.load(sys.stdin):
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.dup2(writer, 2)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["mecefo_runtime", *options]
        try:
            main()
        except SystemExit as end:
            sys.stderr.flush()
            # Python's own end takes half a second with torch.
            os._exit(end.code)
    os.close(writer)
    with open(reader) as said:
        text = said.read()
    answers.append((os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text))
print(json.dumps(answers))
"""


def test_a_mistake_is_told_in_one_line(tmp_path):
    log = tmp_path / "no folder" / "log"
    cases = [
        ({"WORLD_SIZE": "4"}, ("--pipeline", "3"), "4 ranks do not make pipelines of 3 stages"),
        ({"WORLD_SIZE": "four"}, (), "makes no sense"),
        ({"WORLD_SIZE": "4"}, ("--data", "/no/such/text"), "/no/such/text"),
        ({"WORLD_SIZE": "4"}, ("--checkpoint-every", "5"), "belong together"),
        ({"WORLD_SIZE": "4"}, ("--snapshot-every", "5"), "needs torchrun"),
        # Before ranks wait for a coordinator that cannot write it.
        ({}, ("--coordinator-log", str(log)), f": --coordinator-log: cannot write to {log}: No such file or directory"),
    ]
    usual = {"RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    environment = environment_of_run("none", tmp_path)
    asked = [(environment | (usual | given if given else {}), options) for given, options, _ in cases]
    answer = subprocess.run(
        [sys.executable, "-c", MISTAKES],
        input=json.dumps(asked),
        env=environment,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=True,
    )
    for (code, said), (_, _, message) in zip(json.loads(answer.stdout), cases, strict=True):
        assert code == 4 and message in said, said
        assert len(said.splitlines()) == 1 and said.startswith("mecefo_runtime: "), said


def test_without_a_launcher_it_says_how_it_is_started(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-m", "mecefo_runtime"],
        env=environment_of_run("none", tmp_path),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert answer.returncode == 4
    assert "WORLD_SIZE is not set" in answer.stderr and len(answer.stderr.splitlines()) == 1


def test_a_store_that_is_not_there_is_waited_for_as_long_as_the_environment_says(tmp_path):
    place = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    answer = subprocess.run(
        [sys.executable, "-m", "mecefo_runtime"],
        env=environment_of_run("none", tmp_path) | place | {"MECEFO_STORE_TIMEOUT_SECONDS": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert answer.returncode == 4
    # Above it stands what torch logs of its own accord.
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("mecefo_runtime: cannot meet the other ranks at localhost:1: ") and "1000ms" in last
