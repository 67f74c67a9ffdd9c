"""Ranks under a launcher that lets the others be when one is lost: rank 0, and the coordinator with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mecefo_runtime.system.events import Event
from tests.integration.runs import REPOSITORY, environment_of_run, processes_of_run

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 600.0
NUM_RANKS, NUM_STEPS = 4, 40
JOB = ("--pipeline", "2", "--steps", str(NUM_STEPS), "--seed", "3", "--heartbeat-timeout", "1")
# The address of the coordinator is one of a host that no other rank is on.
ELSEWHERE = """import os, sys
if "mecefo_runtime" in sys.orig_argv and os.environ.get("RANK") != "0":
    import errno
    from mecefo_runtime.launch import keeper

    def listen(host, port=0):
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    keeper.listen = listen
"""


# The leader is lost between "all have the gradients" and its verdict, over a step that it would have refused.
UNJUDGED_STEP = 8
LOST_OVER_ITS_VERDICT = f"""import os, sys
if "mecefo_runtime" in sys.orig_argv:
    from mecefo_runtime.step import step

    rank, judge, read = os.environ["RANK"], step.judge, step.Stepper._read
    has_differed = []

    def lose(config, history, number, *told):
        if rank == "0" and number == {UNJUDGED_STEP}:
            os.kill(os.getpid(), 9)
        return judge(config, history, number, *told)

    def distrust(self, state, number, *told):
        if rank == "1" and number == {UNJUDGED_STEP} and not has_differed:
            has_differed.append(True)
            self.distrusted |= {{"head"}}
        return read(self, state, number, *told)

    step.judge, step.Stepper._read = lose, distrust
"""


class Ranks:
    """Every rank by itself, with its output in a file; a context that ends all that it started."""

    def __init__(self, folder: Path, *options: str, patch: str = "", **environment: str) -> None:
        self.mark = os.urandom(8).hex()
        self.coordinator_log = folder / "coordinator.log"
        self._logs = [folder / f"rank-{rank}.log" for rank in range(NUM_RANKS)]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        usual = environment_of_run(self.mark, folder, patch) | {"WORLD_SIZE": str(NUM_RANKS), **environment}
        usual |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-m", "mecefo_runtime", *JOB, "--coordinator-log", str(self.coordinator_log)]
        self.processes = []
        for rank, path in enumerate(self._logs):
            with path.open("wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [*command, *options],
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        cwd=REPOSITORY,
                        env={**usual, "RANK": str(rank)},
                    )
                )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in processes_of_run(self.mark):
            process.signal(signal.SIGKILL)
        for started in self.processes:
            started.wait()

    def output(self, rank: int) -> str:
        return self._logs[rank].read_text()

    def of(self, kind: str) -> list[Event]:
        texts = [path.read_text() for path in (*self._logs, self.coordinator_log) if path.exists()]
        lines = [line for text in texts for line in text.splitlines(keepends=True) if line.startswith('{"time"')]
        events = [Event.from_json(line.encode()) for line in lines if line.endswith("}\n")]
        return [event for event in events if event.kind == kind]

    def lose_rank_0(self, step: int) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not any((event.step or 0) >= step for event in self.of("step_committed")):
            assert time.monotonic() < deadline and not any(p.poll() for p in self.processes), self.output(0)
            time.sleep(0.05)
        self.processes[0].kill()

    def ends(self) -> list[int]:
        return [process.wait(DEADLINE_SECONDS) for process in self.processes[1:]]


@pytest.mark.nightly
def test_the_others_start_the_coordinator_of_a_lost_rank_0_again_and_lose_no_step(tmp_path):
    with Ranks(tmp_path) as ranks:
        ranks.lose_rank_0(step=4)
        assert ranks.ends() == [0, 0, 0], [ranks.output(rank) for rank in (1, 2, 3)]
        (restarted,) = ranks.of("coordinator_restarted")
        assert restarted.fields["members"] == [0, 1, 2, 3]
        # The old coordinator may have seen it in its last moment.
        assert {tuple(event.fields["lost"]) for event in ranks.of("detected")} == {(0,)}
        committed = [event.step for event in ranks.of("step_committed") if not event.fields["repeated"]]
        assert sorted(committed) == list(range(1, NUM_STEPS + 1))
        assert not processes_of_run(ranks.mark), "keepers end with their ranks"


@pytest.mark.nightly
def test_where_nobody_can_start_it_again_the_others_end_and_say_why(tmp_path):
    with Ranks(tmp_path, patch=ELSEWHERE, MECEFO_COORDINATOR_TIMEOUT_SECONDS="2") as ranks:
        ranks.lose_rank_0(step=4)
        assert ranks.ends() == [1, 1, 1]
        started = json.loads(ranks.output(1).splitlines()[0])
        assert started["kind"] == "rank_started"
        for rank in (1, 2, 3):
            said = ranks.output(rank).splitlines()[-1]
            assert said.startswith(f"rank {rank}: there has been no coordinator at 127.0.0.1:")
            assert said.endswith("for 2 s: its process or its host is gone")


@pytest.mark.nightly
def test_a_step_whose_leader_is_lost_over_its_verdict_is_judged_all_the_same(tmp_path):
    with Ranks(tmp_path, patch=LOST_OVER_ITS_VERDICT) as ranks:
        assert ranks.ends() == [0, 0, 0], [ranks.output(rank) for rank in (1, 2, 3)]
        said = [event.fields["message"] for event in ranks.of("warning")]
        assert "judged without a leader: rank 1: parameters differ from the peers'" in said
        (committed,) = (event for event in ranks.of("step_committed") if event.step == UNJUDGED_STEP)
        assert (committed.fields["epoch"], committed.fields["repeated"]) == (2, False), "it was computed again"
        steps = [event.step for event in ranks.of("step_committed") if not event.fields["repeated"]]
        assert sorted(steps) == list(range(1, NUM_STEPS + 1))
