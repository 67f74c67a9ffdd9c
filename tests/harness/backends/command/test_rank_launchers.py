"""Who goes with a node of a command: the launcher whose ranks are all there, and nobody else's."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager

import pytest

from chaos.errors import EffectNotSeen
from chaos.experiment.command_job import CommandConfig
from chaos.faults.base import FaultContext
from chaos.faults.process.kill import KillNode
from chaos.faults.process.pause import PauseNode
from chaos.faults.watch import Watch
from chaos.host.process_table import parent_of
from chaos.host.run_processes import RUN_VARIABLE
from chaos.language.target import ResolvedTarget
from harness.backends.command.backend import LocalCommand
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

# Each prints what it is, its rank, and its pid, and stays.
RANK = (
    'import os, time; os.write(1, f\'rank {os.environ.get("RANK", "-")} {os.getpid()}\\n\'.encode()); time.sleep(300)'
)
LAUNCHER = f"""
import os, subprocess, sys, time
os.write(1, f"launcher - {{os.getpid()}}\\n".encode())
for rank in sys.argv[1:]:
    subprocess.Popen([sys.executable, "-c", {RANK!r}], env={{**os.environ, "RANK": rank, "LOCAL_RANK": "0"}})
time.sleep(300)
"""
LOOP = """
import os, subprocess, sys, time
os.write(1, f"loop - {os.getpid()}\\n".encode())
subprocess.run(sys.argv[1:])
time.sleep(300)
"""


@contextmanager
def family(*words, num_lines, mark=None, **environment):
    """(run id, pids by what each is called) of a command that prints a line for each process."""
    run_id = mark or uuid.uuid4().hex
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, RUN_VARIABLE: run_id, **environment},
        start_new_session=True,
    ) as child:
        found: dict[str, int] = {"command": child.pid}
        try:
            for _ in range(num_lines):
                name, rank, pid = child.stdout.readline().split()
                found[name if rank == "-" else f"{name} {rank}"] = int(pid)
            yield run_id, found
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.stdin.close()
            child.stdout.close()


class Told(list):
    """What is emitted."""

    def __call__(self, event):
        self.append(event)


async def job_of(run_id, ranks, nodes=2):
    """A job whose ranks, {rank: (node, pid)}, have reported."""
    job = LocalCommand(None, "main", CommandConfig(("x",), nodes=nodes), run_id, {}, "log", Emitter(Told(), "test"))
    for rank, (node, pid) in ranks.items():
        hello = {"rank": rank, "node": node, "attempt": 1, "world_size": len(ranks)}
        job.on_agent(hello, ProcessId.of(pid))
    return job


async def on_node(run_id, ranks, *nodes, of=2):
    """(pids that go with the nodes, launchers that stay: pid -> nodes)."""
    job = await job_of(run_id, ranks, nodes=of)
    left = {one.process.pid: one.nodes for one in job.launchers_left(nodes)}
    return {owned.process.pid for owned in job.node_processes(nodes)}, left


def launched(*ranks):
    return sys.executable, "-c", LAUNCHER, *ranks


def test_a_launcher_behind_a_shell_goes_with_its_node_and_the_shell_stays():
    two = f"""{sys.executable} -c "$L" 0 & {sys.executable} -c "$L" 1 & wait"""
    with family("bash", "-c", two, num_lines=4, L=LAUNCHER) as (run_id, found):
        first, second = (launcher_pid(found[f"rank {rank}"]) for rank in (0, 1))
        ranks = {0: (0, found["rank 0"]), 1: (1, found["rank 1"])}
        assert asyncio.run(on_node(run_id, ranks, 1)) == ({second, found["rank 1"]}, {})
        assert asyncio.run(on_node(run_id, ranks, 0)) == ({first, found["rank 0"]}, {})
        assert asyncio.run(on_node(run_id, ranks, 0, 1))[0] == {first, second, found["rank 0"], found["rank 1"]}
        assert found["command"] not in {first, second}


def launcher_pid(rank_pid):
    return parent_of(ProcessId.of(rank_pid)).pid


def test_the_command_itself_goes_with_the_node_where_it_is_the_launcher():
    with family(*launched("0", "1"), num_lines=3) as (run_id, found):
        ranks = {rank: (0, found[f"rank {rank}"]) for rank in (0, 1)}
        expected = {found["launcher"], found["rank 0"], found["rank 1"]}
        assert asyncio.run(on_node(run_id, ranks, 0, of=1)) == (expected, {})


def test_a_loop_that_starts_the_launcher_again_is_no_launcher():
    with family(sys.executable, "-c", LOOP, *launched("0"), num_lines=3) as (run_id, found):
        pids, _ = asyncio.run(on_node(run_id, {0: (0, found["rank 0"])}, 0, of=1))
        assert pids == {found["launcher"], found["rank 0"]} and found["loop"] not in pids


def test_a_launcher_of_several_nodes_stays_and_is_named():
    with family(*launched("0", "1"), num_lines=3) as (run_id, found):
        ranks = {rank: (rank, found[f"rank {rank}"]) for rank in (0, 1)}
        assert asyncio.run(on_node(run_id, ranks, 1)) == ({found["rank 1"]}, {found["launcher"]: (0, 1)})
        assert found["launcher"] in asyncio.run(on_node(run_id, ranks, 0, 1))[0]


def test_nodes_in_name_only_are_those_of_the_plan():
    """One torchrun counts one node, whatever --nodes says."""
    with family(*launched("0", "1"), num_lines=3) as (run_id, found):
        ranks = {rank: (0, found[f"rank {rank}"]) for rank in (0, 1)}
        assert asyncio.run(on_node(run_id, ranks, 1)) == ({found["rank 1"]}, {found["launcher"]: (0, 1)})


def test_a_script_that_was_told_nothing_has_no_launcher():
    with family(sys.executable, "-c", LOOP, sys.executable, "-c", RANK, num_lines=2) as (run_id, found):
        pids, left = asyncio.run(on_node(run_id, {0: (0, found["rank"])}, 0, of=1))
        assert (pids, left) == ({found["rank"]}, {})


def test_a_shell_that_tells_ranks_their_place_stays():
    two = f"""RANK=0 {sys.executable} -c "$R" & RANK=1 {sys.executable} -c "$R" & wait"""
    with family("bash", "-c", two, num_lines=2, R=RANK) as (run_id, found):
        ranks = {rank: (0, found[f"rank {rank}"]) for rank in (0, 1)}
        assert asyncio.run(on_node(run_id, ranks, 0, of=1))[0] == {found["rank 0"], found["rank 1"]}


def test_ranks_of_multiprocessing_have_their_parent_as_launcher(tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(
        "import multiprocessing, os, sys, time\n"
        "def rank(number):\n"
        "    os.environ['RANK'] = str(number)\n"
        "    os.write(1, f'rank {number} {os.getpid()}\\n'.encode())\n"
        "    time.sleep(300)\n"
        "if __name__ == '__main__':\n"
        "    os.write(1, f'launcher - {os.getpid()}\\n'.encode())\n"
        "    context = multiprocessing.get_context(sys.argv[1])\n"
        "    for number in (0, 1):\n"
        "        context.Process(target=rank, args=(number,)).start()\n"
    )
    for how in ("spawn", "fork", "forkserver"):
        with family("bash", "-c", f"{sys.executable} {script} {how}; true", num_lines=3) as (run_id, found):
            ranks = {rank: (0, found[f"rank {rank}"]) for rank in (0, 1)}
            pids = asyncio.run(on_node(run_id, ranks, 0, of=1))[0]
            assert pids == {found["launcher"], found["rank 0"], found["rank 1"]}, how


def test_what_is_not_of_this_run_is_never_touched():
    """A foreign launcher that started a rank with the mark of the run in its environment."""
    mark = uuid.uuid4().hex
    code = LAUNCHER.replace('"LOCAL_RANK": "0"', f'"LOCAL_RANK": "0", {RUN_VARIABLE!r}: {mark!r}')
    with family(sys.executable, "-c", code, "0", num_lines=2, mark="another") as (_, found):
        assert asyncio.run(on_node(mark, {0: (0, found["rank 0"])}, 0, of=1))[0] == {found["rank 0"]}


async def injected(fault, run_id, ranks, node):
    """The evidence of a fault of `node`."""
    job = await job_of(run_id, ranks)
    context = FaultContext(processes=job, inside=None, watch=Watch(), run_folder=None)
    target = ResolvedTarget(ranks=(node,), nodes=(node,))
    act = fault.prepare(target, context)
    await fault.apply(act, context)
    try:
        return await fault.verify(act, context, 30.0)
    finally:
        fault.undo(act.undo_record)


@pytest.mark.parametrize("kind", [KillNode, PauseNode], ids=["kill-node", "pause-node"])
def test_the_evidence_says_that_a_launcher_was_left(kind):
    with family(*launched("0", "1"), num_lines=3) as (run_id, found):
        ranks = {rank: (rank, found[f"rank {rank}"]) for rank in (0, 1)}
        evidence = asyncio.run(injected(kind(kind.Parameters()), run_id, ranks, 1))
        assert json.loads(json.dumps(evidence)) == evidence
        assert evidence["ranks_only"] is True
        assert [(one["pid"], one["nodes"]) for one in evidence["launchers_left"]] == [(found["launcher"], [0, 1])]
        left = f"the launcher (pid {found['launcher']}) serves nodes 0 and 1 and was left running"
        assert evidence["summary"].endswith(f"; ranks only: {left}")
        assert ProcessId.of(found["launcher"]).is_running()


def test_a_node_that_is_killed_is_verified_by_the_end_of_its_launcher_too():
    with family("bash", "-c", f'{sys.executable} -c "$L" 0; sleep 300', num_lines=2, L=LAUNCHER) as (run_id, found):
        evidence = asyncio.run(injected(KillNode(KillNode.Parameters()), run_id, {0: (0, found["rank 0"])}, 0))
        assert {one["pid"]: one["role"] for one in evidence["processes"]} == {
            found["launcher"]: "launcher",
            found["rank 0"]: "rank",
        }
        assert "ranks_only" not in evidence
        assert ProcessId.of(found["command"]).is_running(), "the shell around it stays"


def test_a_rank_that_the_launcher_started_once_more_is_no_lost_node():
    """In the moment before the launcher was killed itself."""
    with family(*launched("0", "7"), num_lines=3) as (run_id, found):

        async def play():
            job = await job_of(run_id, {0: (0, found["rank 0"])}, nodes=1)
            context = FaultContext(processes=job, inside=None, watch=Watch(), run_folder=None)
            fault = KillNode(KillNode.Parameters())
            act = fault.prepare(ResolvedTarget(ranks=(0,), nodes=(0,)), context)
            job.on_agent({"rank": 0, "node": 0, "attempt": 2, "world_size": 1}, ProcessId.of(found["rank 7"]))
            await fault.apply(act, context)
            with pytest.raises(EffectNotSeen, match="started again by the launcher of its node"):
                await fault.verify(act, context, 30.0)

        asyncio.run(play())
