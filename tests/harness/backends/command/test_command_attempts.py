"""A command's processes from their greeting to their end, as the log has it; they are real, and are not Python."""

import asyncio
import os
import subprocess
import uuid
from pathlib import Path

import pytest

from chaos.experiment.command_job import CommandConfig
from chaos.host.run_processes import RUN_VARIABLE
from harness.backends.command.backend import LocalCommand
from harness.control.control_server import ControlServer
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit


class Ranks:
    """Starts processes as a launcher does, and has them greet."""

    def __init__(self, folder: Path, **job) -> None:
        self.told: list[Event] = []
        self.mark = uuid.uuid4().hex
        control = ControlServer(self.told.append)
        config = CommandConfig(("true",), **job)
        emitter = Emitter(self.told.append, "conductor")
        self.run = LocalCommand(control, "main", config, self.mark, {}, folder / "job.log", emitter)
        self._children: list[subprocess.Popen[bytes]] = []

    async def start(self, rank, world_size=2, *, code: int | None = None, **environment) -> ProcessId:
        """It greets and goes on; with `code` it ends so at once."""
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, **environment}
        known = {name: str(value) for name, value in variables.items() if value is not None}
        # It waits for its standard input.
        child = subprocess.Popen(
            ["sh", "-c", f"read line; exit {code or 0}"],
            stdin=subprocess.PIPE,
            env={**os.environ, RUN_VARIABLE: self.mark, **known},
        )
        self._children.append(child)
        process = ProcessId.of(child.pid)
        await self.run.on_launch(process)
        if code is not None:
            child.stdin.close()
            await self.ended(process)
        return process

    async def ended(self, process: ProcessId) -> None:
        if (task := self.run._exits.get(process)) is not None:
            await asyncio.wait({task})

    def train(self, process: ProcessId, rank, attempt=1, world_size=2, **more) -> int:
        hello = {"rank": rank, "node": 0, "attempt": attempt, "world_size": world_size, "pid": process.pid, **more}
        return self.run.on_agent(hello, process)

    async def end(self) -> None:
        exits = {process.pid: task for process, task in self.run._exits.items()}
        for child in self._children:
            child.stdin.close()
            # Its parent asks after it when the run has seen its end.
            if (task := exits.get(child.pid)) is not None:
                await asyncio.wait({task})
            child.wait()

    def of(self, kind, *names):
        return [tuple(event.fields[name] for name in names) for event in self.told if event.kind == kind]


def tell(folder, story, **job):
    async def run_it():
        ranks = Ranks(folder, **job)
        await story(ranks)
        await ranks.end()
        return ranks

    return asyncio.run(run_it())


def test_attempts_that_die_before_a_step_are_told_with_their_ends(tmp_path):
    async def story(ranks):
        for count, code in ((0, 1), (1, 3)):
            for rank in (0, 1):
                await ranks.start(rank, code=code, TORCHELASTIC_RESTART_COUNT=count)

    found = tell(tmp_path, story)
    assert found.of("attempt_started", "attempt_number", "world_size") == [(1, 2), (2, 2)]
    assert found.of("attempt_started", "num_restarts", "max_restarts") == [(0, None), (1, None)]
    assert found.of("process_started", "started_rank", "rank_attempt") == [(0, 1), (1, 1), (0, 2), (1, 2)]
    exits = found.of("process_exited", "role", "exited_rank", "rank_attempt", "exit")
    assert exits == [("rank", 0, 1, 1), ("rank", 1, 1, 1), ("rank", 0, 2, 3), ("rank", 1, 2, 3)]
    assert {parent for (parent,) in found.of("process_started", "parent_pid")} == {os.getpid()}
    # None of them is a rank that a fault could affect.
    assert found.run.rank_processes((0, 1)) == ()
    assert found.run.why_unseen() == "no_step"


def test_a_rank_that_greeted_and_trains_is_told_once(tmp_path):
    async def story(ranks):
        process = await ranks.start(0, 1)
        assert ranks.run.rank_processes((0,)) == ()
        assert ranks.train(process, 0, world_size=1) == 1
        assert [owned.process for owned in ranks.run.rank_processes((0,))] == [process]

    found = tell(tmp_path, story)
    assert len(found.of("attempt_started")) == len(found.of("process_started")) == len(found.of("process_exited")) == 1


def test_the_ranks_own_world_size_is_compared_with_the_plan_though_they_greeted(tmp_path):
    async def story(ranks):
        ranks.train(await ranks.start(0), 0)
        ranks.train(await ranks.start(1), 1)

    warnings = tell(tmp_path, story).of("warning", "message")
    assert [text for (text,) in warnings if "the plan expected 1" in text] == [
        "the job has 2 ranks, and the plan expected 1: give the numbers with --nodes and --gpus-per-node"
    ]


def test_rank_and_world_size_without_a_launcher(tmp_path):
    """`RANK=0 WORLD_SIZE=1 python train.py` in a loop: told as attempts when they have ended."""

    async def story(ranks):
        for _ in range(2):
            await ranks.start(0, 1, LOCAL_RANK=None, code=1)
        ranks.train(await ranks.start(0, 1, LOCAL_RANK=None), 0, world_size=1)

    found = tell(tmp_path, story)
    assert found.of("attempt_started", "attempt_number") == [(1,), (2,), (3,)]
    assert found.of("process_exited", "rank_attempt", "exit") == [(1, 1), (2, 1), (3, 0)]


@pytest.mark.parametrize(
    "changed", [{RUN_VARIABLE: "another"}, {"CHAOS_JOB": "twin"}, {"RANK": None}, {"REPLICA_GROUP_ID": 0}]
)
def test_who_is_none_of_its_ranks(tmp_path, changed):
    async def story(ranks):
        await ranks.start(0, 1, code=1, **changed)

    found = tell(tmp_path, story)
    assert found.told == [] and found.run.why_unseen() == "no_agent"


def test_replica_groups_are_told_by_their_agents_alone(tmp_path):
    async def story(ranks):
        of_group = {"REPLICA_GROUP_ID": 0, "NUM_REPLICA_GROUPS": 2}
        ranks.train(await ranks.start(0, 1, **of_group), 0, replica=0)
        ranks.train(await ranks.start(0, 1, **{**of_group, "REPLICA_GROUP_ID": 1}), 1, replica=1)

    found = tell(tmp_path, story, nodes=2)
    assert found.of("attempt_started", "attempt_number", "world_size") == [(1, 2)]
    assert found.of("process_started", "started_rank", "rank_attempt") == [(0, 1), (1, 1)]


def test_a_job_whose_steps_are_read_from_its_log_has_no_other_ranks(tmp_path):
    async def story(ranks):
        await ranks.start(0, code=0)

    assert tell(tmp_path, story, step_from=r"step (?P<step>\d+)").told == []
