"""Adding rules from outside: whoever gives up leaves no process behind that adds them later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from chaos.errors import EnvironmentFailure
from harness.network.links import NamespaceLinks
from harness.network.plan import HeldNetworks
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

RECORD: dict[str, Any] = {"at": "rank 0", "comment": "chaos:mark:1", "queue": None, "rules": []}
LONG_SECONDS = 300.0


def test_rules_that_are_being_added_when_the_fault_is_given_up_are_not_added_after_that(tmp_path: Path, monkeypatch):
    told = tmp_path / "pid"
    # The rules have come to it.
    slow = ["sh", "-c", f"cat > {tmp_path}/rules; echo $$ > {told}.new; mv {told}.new {told}; exec sleep 600"]
    monkeypatch.setattr("harness.network.links.inside", lambda record, command: slow)
    monkeypatch.setattr("harness.network.links.find_tool", lambda name: name)

    async def give_up() -> None:
        links = NamespaceLinks(cast(HeldNetworks, None), "mark")
        adding = asyncio.create_task(links.apply_rules([RECORD]))
        while not told.exists():
            assert not adding.done(), adding
            await asyncio.sleep(0.01)
        tool = ProcessId.of(int(told.read_text()))
        adding.cancel()
        # Kept, as a task that has ended is by whoever looks after it: what it holds does not end by being forgotten.
        with pytest.raises(asyncio.CancelledError) as given_up:
            await adding
        assert given_up.tb is not None
        # By then, and not some time later: whoever undoes now must find all the rules that there will ever be.
        assert not tool.is_running()

    asyncio.run(asyncio.wait_for(give_up(), LONG_SECONDS))


def test_a_failure_is_told_when_nothing_more_is_being_added(tmp_path: Path, monkeypatch):
    added = tmp_path / "added"
    tools = {"rank 0": ["false"], "rank 1": ["sh", "-c", f"cat > /dev/null; sleep 0.5; echo > {added}"]}
    monkeypatch.setattr("harness.network.links.inside", lambda record, command: tools[record.at])
    monkeypatch.setattr("harness.network.links.find_tool", lambda name: name)
    links = NamespaceLinks(cast(HeldNetworks, None), "mark")
    with pytest.raises(EnvironmentFailure, match="rank 0"):
        asyncio.run(links.apply_rules([{**RECORD, "at": at} for at in tools]))
    assert added.exists()
