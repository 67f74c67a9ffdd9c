"""A container that takes orders: heard whenever it speaks, and missed when it ends."""

import asyncio
import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.errors import EnvironmentFailure
from harness.backends.docker.node_container import NodeContainer
from harness.control.pid_namespaces import HostPids

pytestmark = pytest.mark.unit
TIMEOUT_SECONDS = 120.0


@pytest.fixture
def first_process():
    """What stands for a container's first process."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def container_of(process: subprocess.Popen[bytes], folder: Any, ended: list[str]) -> NodeContainer:
    """The container whose first process this is, as the engine has it."""
    inner: Any = SimpleNamespace(attrs={"State": {"Pid": process.pid}})
    return NodeContainer("node-1", inner, folder / "log", HostPids(), lambda *_: None, ended.append)


async def says(container: NodeContainer, pid: int, *replies: dict[str, Any]) -> None:
    """It reports, says that, and says no more."""
    reader = asyncio.StreamReader()
    for reply in replies:
        reader.feed_data(json.dumps(reply).encode() + b"\n")
    reader.feed_eof()
    await container.serve(pid, reader, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_early", [True, False])
def test_it_is_heard_also_before_the_engine_has_said_that_it_runs(tmp_path, first_process, is_early):
    async def start() -> None:
        container = container_of(first_process, tmp_path, [])
        if is_early:
            await says(container, first_process.pid, {"reply": "ready"})
        container.watch()
        if not is_early:
            await says(container, first_process.pid, {"reply": "ready"})
        await asyncio.wait_for(container.ready(), TIMEOUT_SECONDS)
        container.forget()

    asyncio.run(start())


def test_one_that_ends_is_missed_with_its_last_words(tmp_path, first_process):
    ended: list[str] = []
    (tmp_path / "log").write_text("Traceback\nno room\n")

    async def start() -> None:
        container = container_of(first_process, tmp_path, ended)
        container.watch()
        waiting = asyncio.create_task(container.ready())
        await asyncio.sleep(0)
        first_process.kill()
        with pytest.raises(EnvironmentFailure, match=r"container node-1: it has ended: no room; see .*log"):
            await asyncio.wait_for(waiting, TIMEOUT_SECONDS)

    asyncio.run(start())
    assert ended == ["node-1"]
