"""The loss of a host by a command of the site's: what it runs, and when the loss counts."""

import asyncio
from dataclasses import replace

import pytest
from pydantic import ValidationError

from chaos.errors import EffectNotSeen, InjectionError, TargetNotFound, UsageError
from chaos.faults.base import OwnedProcess, RunContext
from chaos.faults.process import _power
from chaos.faults.process.kill import KillNode, NodeParameters
from chaos.language.target import ResolvedTarget
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.host import Host
from mecefo_runtime.system.process import ProcessId
from tests.chaos.one_node import create_context, sleepers

pytestmark = pytest.mark.unit

NODE = ResolvedTarget(ranks=(2,), nodes=(2,))
RANK = OwnedProcess("rank", ProcessId(7, 70, Host("node2", "another boot")), rank=2, node=2)


class Hosts:
    """Hosts of which node 2 has an agent, that falls silent when the file `off` is there."""

    def __init__(self, off):
        self.off = off

    def name_of(self, node):
        return f"node{node}"

    def silent_seconds(self, node):
        if node != 2:
            return None
        return 60.0 if self.off.exists() else 0.2

    def processes_on(self, nodes):
        return (RANK,) if 2 in nodes else ()


@pytest.fixture
def context(tmp_path):
    with sleepers() as children:
        yield replace(create_context(children), hosts=Hosts(tmp_path / "off"))


def inject(power, context, target=NODE, timeout_seconds=5.0):
    fault = KillNode(NodeParameters(power=power))

    async def act():
        act = fault.prepare(target, context)
        await fault.apply(act, context)
        return act, await fault.verify(act, context, timeout_seconds)

    return fault, *asyncio.run(act())


def test_the_command_runs_here_and_counts_when_the_host_is_silent(context, tmp_path):
    fault, act, evidence = inject(f"echo {{host}} {{node}} > {tmp_path}/off", context)
    assert fault.acts_at_tool
    assert act.processes == (RANK,)
    assert (tmp_path / "off").read_text() == "node2 2\n"
    assert evidence["silent_seconds"] == {"node2": 60.0}
    assert fault.undo(act.undo_record)["undone"] == "nothing to undo"


def test_a_command_that_fails_is_said_with_what_it_printed(context):
    with pytest.raises(InjectionError) as refused:
        inject("echo no such outlet; exit 3", context)
    assert refused.value.why.code == "power_command_failed"
    assert "exit code 3: no such outlet" in str(refused.value)


def test_a_command_that_hangs_is_ended(context, monkeypatch):
    monkeypatch.setattr(_power, "COMMAND_SECONDS", 0.2)
    with pytest.raises(InjectionError, match="has not ended within"):
        inject("sleep 600", context)


def test_a_host_that_still_speaks_is_not_lost(context):
    with pytest.raises(EffectNotSeen) as unseen:
        inject("true", context, timeout_seconds=0.2)
    assert unseen.value.why.code == "host_still_speaks"


def test_the_host_of_chaos_itself_is_refused(context):
    with pytest.raises(TargetNotFound) as refused:
        inject("true", context, ResolvedTarget(ranks=(0,), nodes=(0,)))
    assert refused.value.why.code == "no_agent_on_node"


def test_only_hosts_have_a_power_supply():
    fault = KillNode(NodeParameters(power="true"))
    cluster = Cluster(4, 1, 4, 1, 1, 4)
    with pytest.raises(UsageError, match="switches off hosts"):
        fault.check(NODE, RunContext(cluster))
    fault.check(NODE, RunContext(cluster, nodes_are_hosts=True))


@pytest.mark.parametrize(
    "values", [{"how": "power"}, {"how": "processes", "power": "true"}, {"power": "x", "grace": "1s"}]
)
def test_parameters_that_contradict_each_other_are_refused(values):
    with pytest.raises(ValidationError):
        NodeParameters.model_validate(values)


def test_a_command_implies_how():
    assert NodeParameters.model_validate({"power": "true"}).how == "power"
    assert not KillNode(NodeParameters()).acts_at_tool
