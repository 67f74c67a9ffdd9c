"""A node that comes to the limit of its memory: what the kernel counts is told, once, and by whom."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from chaos.errors import EnvironmentFailure
from chaos.host import memory_limit
from harness.backends.docker.backend import MemoryWatch
from harness.backends.node_job import NodeJob
from harness.control.control_server import ControlServer
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit


@pytest.fixture
def told():
    return []


@pytest.fixture
def watch(told):
    return MemoryWatch(300 * 2**20, told.append)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
        ("memory.events.local", "low 0\noom 7\noom_kill {}\noom_group_kill 0\n"),
    ],
    ids=["version 1", "version 2"],
)
def test_processes_that_the_kernel_ended_are_told_once(tmp_path, monkeypatch, watch, told, name, text):
    monkeypatch.setattr(memory_limit, "group_of", lambda process: tmp_path)
    counted = tmp_path / name
    counted.write_text(text.format(0))
    watch.begin("node-1", ProcessId.of(os.getpid()))
    watch.look()
    assert told == []
    for num_kills in (2, 2, 3):
        counted.write_text(text.format(num_kills))
        watch.look()
    first, second = told
    assert first.startswith("node-1 reached its memory limit, 300MiB: the kernel ended 2 processes of it")
    assert "the kernel ended 1 process of it" in second and "--node-memory" in second
    # Its group goes with it, and whoever comes in its place has another.
    counted.unlink()
    watch.look()
    watch.begin("node-1", ProcessId.of(os.getpid()))
    counted.write_text(text.format(1))
    watch.look()
    assert len(told) == 3


def test_where_there_are_no_groups_nothing_is_told(monkeypatch, watch, told):
    monkeypatch.setattr(memory_limit, "group_of", lambda process: None)
    watch.begin("node-1", ProcessId.of(os.getpid()))
    watch.look()
    assert told == []


@pytest.mark.parametrize("has_stepped", [False, True])
def test_a_job_that_lost_a_process_before_its_first_step_cannot_begin(has_stepped):
    nobody: Any = None

    async def outcome() -> str:
        control, emitter = ControlServer(lambda event: None), Emitter(lambda event: None, "conductor")
        job = NodeJob(nobody, control, "main", JobConfig(), {}, Path("logs"), emitter)
        if has_stepped:
            job.note(Event("step_committed", "rank", 0.0, 0.0, 1, 1))
        job.on_out_of_memory(EnvironmentFailure("too little memory"))
        job.give_up()
        return await job.ended()

    if has_stepped:
        assert asyncio.run(outcome()) == "failed"
        return
    with pytest.raises(EnvironmentFailure, match="too little memory"):
        asyncio.run(outcome())
