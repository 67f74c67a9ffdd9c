"""A command on separate nodes: what its ends come to, in whatever order they are heard of."""

import asyncio
import os
import subprocess
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from chaos.errors import EnvironmentFailure
from chaos.experiment.command_job import CommandConfig
from chaos.host.run_processes import RUN_VARIABLE
from harness.backends.command.on_nodes import CommandOnNodes, job_logs
from harness.control.control_server import ControlServer
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit


class FakeLauncher:
    """Nodes whose commands are over before anybody has heard that they were started."""

    def __init__(self, codes: Mapping[int, int]) -> None:
        self.codes = codes
        self.run: CommandOnNodes | None = None

    links, where = None, "on its node"

    async def fork(self, command: Mapping[str, Any]) -> ProcessId:
        # No process has such a pid.
        process = ProcessId(2**30 + command["node"], 1)
        assert self.run is not None
        self.run.on_exit(process, self.codes[command["node"]])
        return process

    def node_hosts(self, nodes: tuple[int, ...]) -> tuple[()]:
        return ()

    def own_processes(self) -> set[ProcessId]:
        return set()

    def hint(self, log, folder, code) -> str | None:
        text = log.read_text() if log.exists() else ""
        return "the module can be installed" if "ModuleNotFoundError" in text else None


def outcome_of(
    folder, codes: Mapping[int, int], *, has_stepped: bool = True, memory: str | None = None
) -> tuple[str, list[Event]]:
    """How such a job ends, and what is told; `memory` is what the kernel did to it for want of memory."""
    told: list[Event] = []

    async def run_it() -> str:
        launcher, job = FakeLauncher(codes), CommandConfig(("true",), nodes=len(codes))
        environments: dict[int, dict[str, str]] = {node: {} for node in codes}
        emitter, control = Emitter(told.append, "conductor"), ControlServer(told.append)
        run = CommandOnNodes(launcher, control, "main", job, "no-such-run", environments, folder, emitter)
        launcher.run = run
        if has_stepped:
            run.note(Event("step_committed", "rank", 0.0, 0.0, 1, 1))
        if memory is not None:
            run.on_out_of_memory(EnvironmentFailure(memory))
        await run.start()
        outcome = await run.ended()
        await run.stop()
        return outcome

    return asyncio.run(run_it()), told


def test_a_command_that_is_over_at_once_is_over(tmp_path):
    outcome, told = outcome_of(tmp_path, {0: 0, 1: 0})
    assert outcome == "completed"
    assert [event.kind for event in told] == ["process_started", "process_exited"] * 2


def test_without_a_step_nothing_was_trained(tmp_path):
    outcome, told = outcome_of(tmp_path, {0: 0}, has_stepped=False)
    assert (outcome, told[-1].kind) == ("completed", "no_step_seen")
    assert told[-1].fields["why"] == "no_agent"


def test_it_fails_of_the_node_on_which_it_failed_with_its_last_words(tmp_path):
    job_logs(tmp_path, 2)[1].write_text("----\nthe corpus is not there\n")
    outcome, told = outcome_of(tmp_path, {0: 0, 1: 3})
    assert outcome == "failed"
    said = (
        "the command on node 1 ended with exit code 3; the last lines of logs/job-node-1.log: the corpus is not there"
    )
    assert told[-1].fields["reason"] == said


def test_it_fails_with_what_may_have_been_in_its_way(tmp_path):
    job_logs(tmp_path, 1)[0].write_text("ModuleNotFoundError: No module named 'datasets'\n")
    _, told = outcome_of(tmp_path, {0: 1})
    reason = told[-1].fields["reason"]
    assert reason.endswith("No module named 'datasets'. The module can be installed")


def test_it_fails_of_too_little_memory(tmp_path):
    assert outcome_of(tmp_path, {0: 0}, memory="too little")[0] == "completed"
    outcome, told = outcome_of(tmp_path, {0: -9}, memory="too little")
    assert (outcome, told[-1].fields["reason"]) == ("failed", "the command was killed by SIGKILL: too little")


def test_it_goes_on_without_a_node_that_was_killed(tmp_path):
    assert outcome_of(tmp_path, {0: 0, 1: -9})[0] == "completed"
    outcome, told = outcome_of(tmp_path, {0: -9, 1: -9})
    assert (outcome, told[-1].fields["reason"]) == ("failed", "the command on node 0 was killed by SIGKILL")


@pytest.mark.parametrize(
    ("node", "attempt", "is_running", "outcome"),
    [
        (1, 1, True, "failed"),
        # On the same node it was started again, on another one by a launcher that counts, and the first is dead.
        (0, 1, True, "stopped"),
        (1, 2, True, "stopped"),
        (1, 1, False, "stopped"),
    ],
)
def test_two_trainings_are_not_one_job(tmp_path, node, attempt, is_running, outcome):
    told: list[Event] = []

    mark = uuid.uuid4().hex

    async def run_it() -> str:
        emitter, control = Emitter(told.append, "conductor"), ControlServer(told.append)
        job = CommandConfig(("python", "train.py"), nodes=2)
        run = CommandOnNodes(FakeLauncher({}), control, "main", job, mark, {0: {}, 1: {}}, tmp_path, emitter)
        ranks = [subprocess.Popen(["sleep", "300"], env={**os.environ, RUN_VARIABLE: mark}) for _ in range(2)]
        first, second = (ProcessId.of(rank.pid) for rank in ranks)
        hello = {"rank": 0, "pid": 7, "world_size": 1}
        run.on_agent({**hello, "node": 0, "attempt": 1}, first)
        if not is_running:
            ranks[0].kill()
            ranks[0].wait()
        run.on_agent({**hello, "node": node, "attempt": attempt}, second)
        await run.stop()
        for rank in ranks:
            rank.wait()
        return await run.ended()

    assert asyncio.run(run_it()) == outcome
    reasons = [event.fields["reason"] for event in told if event.kind == "job_failed"]
    assert [reason.startswith("nodes 0 and 1 both have a rank 0") for reason in reasons] == [True] * len(reasons)
    assert bool(reasons) == (outcome == "failed")
