"""A command in containers: what its ends come to, in whatever order they are heard of."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from chaos.command_job import CommandConfig
from harness.backends.container_command import ContainerCommand, job_logs
from harness.hub import Hub
from mecefo_runtime.events import Emitter, Event
from mecefo_runtime.process import ProcessId

pytestmark = pytest.mark.unit


class Ground:
    """Nodes whose commands are over before anybody has heard that they were started."""

    def __init__(self, codes: Mapping[int, int]) -> None:
        self.codes = codes
        self.run: ContainerCommand | None = None

    async def fork(self, command: Mapping[str, Any]) -> ProcessId:
        # No process has such a pid.
        process = ProcessId(2**30 + command["node"], 1)
        assert self.run is not None
        self.run.on_exit(process, self.codes[command["node"]])
        return process

    def node_hosts(self, nodes: tuple[int, ...]) -> tuple[()]:
        return ()

    def first_processes(self) -> set[ProcessId]:
        return set()


def outcome_of(folder, codes: Mapping[int, int], *, has_stepped: bool = True) -> tuple[str, list[Event]]:
    """How such a job ends, and what is told."""
    told: list[Event] = []

    async def run_it() -> str:
        ground, job = Ground(codes), CommandConfig(("true",), nodes=len(codes))
        environments: dict[int, dict[str, str]] = {node: {} for node in codes}
        emitter, hub = Emitter(told.append, "conductor"), Hub("token", told.append)
        run = ContainerCommand(ground, hub, "main", job, "no-such-run", environments, folder, emitter, None)
        ground.run = run
        if has_stepped:
            run.note(Event("step_committed", "rank", 0.0, 0.0, 1, 1))
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
    assert outcome == "failed" and "no optimizer step" in told[-1].fields["reason"]


def test_it_fails_of_the_node_on_which_it_failed_with_its_last_words(tmp_path):
    job_logs(tmp_path, 2)[1].write_text("----\nthe corpus is not there\n")
    outcome, told = outcome_of(tmp_path, {0: 0, 1: 3})
    assert outcome == "failed"
    said = (
        "the command on node 1 ended with exit code 3; the last lines of logs/job-node-1.log: the corpus is not there"
    )
    assert told[-1].fields["reason"] == said


def test_it_goes_on_without_a_node_that_was_killed(tmp_path):
    assert outcome_of(tmp_path, {0: 0, 1: -9})[0] == "completed"
    outcome, told = outcome_of(tmp_path, {0: -9, 1: -9})
    assert (outcome, told[-1].fields["reason"]) == ("failed", "the command on node 0 was killed by SIGKILL")
