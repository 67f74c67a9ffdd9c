"""The runtime under torchrun: a plain job, one that is restarted from its checkpoint, and mistakes told in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mecefo_runtime.events import Event
from tests.integration.runs import REPOSITORY, marked_environment, marked_processes

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 150.0
JOB = ("--pipeline", "2", "--steps", "16", "--seed", "3")


class Torchrun:
    """`torchrun -m mecefo_runtime` with its output in a file; a context that ends all it started."""

    def __init__(self, folder: Path, *options: str, ranks: int = 4, restarts: int = 0) -> None:
        self.mark = os.urandom(8).hex()
        self._log = folder / "output"
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts))
        # Port 0: torchrun chooses a free one, so that several can run at once.
        ports = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
        environment = marked_environment(self.mark, folder) | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
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
        for process in marked_processes(self.mark):
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


def test_a_plain_job_and_one_that_torchrun_restarts_come_to_the_same_end(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "killed").mkdir()
    with Torchrun(tmp_path / "plain", *JOB) as plain:
        assert plain.process.wait(DEADLINE_SECONDS) == 0, plain.output
        assert sorted(losses_of(plain)) == list(range(1, 17))
        assert not marked_processes(plain.mark)
    checkpoints = ("--checkpoint-folder", str(tmp_path / "checkpoints"), "--checkpoint-every", "4")
    with Torchrun(tmp_path / "killed", *JOB, *checkpoints, restarts=2) as killed:
        killed.wait_for_step(9)
        victim = next(event for event in killed.of("rank_started") if event.rank == 2)
        os.kill(victim.pid, signal.SIGKILL)
        assert killed.process.wait(DEADLINE_SECONDS) == 0, killed.output
        again = losses_of(killed)
        starts = [event for event in killed.of("rank_started") if event.rank == 2]
        assert len(starts) == 2, "torchrun starts all ranks again"
    assert again == pytest.approx(losses_of(plain), rel=1e-5)


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        ({}, (), "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "4"}, ("--pipeline", "3"), "4 ranks do not make pipelines of 3 stages"),
        ({"WORLD_SIZE": "four"}, (), "makes no sense"),
        ({"WORLD_SIZE": "4"}, ("--data", "/no/such/text"), "/no/such/text"),
        ({"WORLD_SIZE": "4"}, ("--checkpoint-every", "5"), "belong together"),
    ],
)
def test_a_mistake_is_told_in_one_line(tmp_path, environment, options, message):
    usual = {"RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    given = marked_environment("none", tmp_path) | (usual | environment if environment else {})
    answer = subprocess.run(
        [sys.executable, "-m", "mecefo_runtime", *options], env=given, cwd=REPOSITORY, capture_output=True, text=True
    )
    assert answer.returncode == 4
    assert message in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
