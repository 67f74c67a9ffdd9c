"""A preemption, on real processes that do nothing: who gets the notice, and what ends the rest."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from chaos.errors import EffectNotSeen, TargetNotFound, UsageError
from chaos.faults.base import FaultContext, OwnedProcess, RunContext
from chaos.faults.process.preempt import Preempt, PreemptParameters
from chaos.faults.watch import Watch
from chaos.host.process_table import is_stopped, parent_of
from chaos.language.target import ResolvedTarget
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.process import ProcessId
from tests.chaos.one_node import do_nothing

pytestmark = pytest.mark.unit

ALL = ResolvedTarget(ranks=(0, 1))
CLUSTER = Cluster(1, 2, data_parallel=2, pipeline=1, num_layers=1, num_microbatches=2)
TIMEOUT_SECONDS = 60.0
SLEEPS = ("sleep", "300")
# What lives on after the notice, until SIGKILL.
DEAF = ("sh", "-c", "trap '' TERM USR1; exec sleep 300")
# A batch script or a wrapper: SIGTERM ends it, and nothing of it is passed on.
SHELL = ("sh", "-c", "echo; read line; exit 0")


class Command:
    """Its own process, a launcher, two ranks, and a process that rank 1 has started."""

    def __init__(self, processes: Sequence[ProcessId]) -> None:
        first, launcher, rank_0, rank_1, worker = processes
        self.first = OwnedProcess("launcher", first)
        self.launcher = OwnedProcess("launcher", launcher)
        self.ranks = (OwnedProcess("rank", rank_0, rank=0), OwnedProcess("rank", rank_1, rank=1))
        self.worker = OwnedProcess("data-worker", worker, rank=1)

    def command_processes(self) -> tuple[OwnedProcess, ...]:
        return (self.first, self.launcher, *self.ranks, self.worker)

    def first_processes(self) -> tuple[OwnedProcess, ...]:
        return (self.first,)

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        return tuple(self.ranks[rank] for rank in ranks)


@contextmanager
def command_of(*words: Sequence[str]) -> Iterator[Command]:
    """Of the command's own process, the launcher, the ranks and the worker; one for all of those left out."""
    each = [*words, *([words[-1]] * (5 - len(words)))]
    children = [subprocess.Popen(one, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) for one in each]
    try:
        for child, one in zip(children, each, strict=True):
            while one == DEAF and Path(f"/proc/{child.pid}/comm").read_text() != "sleep\n":
                time.sleep(0.001)
        yield Command([ProcessId.of(child.pid) for child in children])
    finally:
        for child in children:
            child.kill()
            child.communicate()


def context_of(command: Command) -> FaultContext:
    return FaultContext(processes=command, inside=None, watch=Watch(), run_folder=None)


def preempt(command: Command, **parameters: Any) -> dict[str, Any]:
    """The evidence of one."""

    async def run() -> dict[str, Any]:
        fault, context = Preempt(PreemptParameters(**{"grace": "60s", **parameters})), context_of(command)
        act = fault.prepare(ALL, context)
        await fault.apply(act, context)
        try:
            return await fault.verify(act, context, TIMEOUT_SECONDS)
        finally:
            await fault.lift(act, context)

    return asyncio.run(run())


def notified(evidence: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(one["role"], one["rank"]) for one in evidence["notices"] if one["sent"]]


def killed(evidence: dict[str, Any]) -> set[int]:
    return {one["pid"] for one in evidence["killed"]}


def pids(*processes: OwnedProcess) -> set[int]:
    return {owned.process.pid for owned in processes}


def test_all_get_the_notice_the_launchers_last_and_the_grace_is_over_when_they_have_ended() -> None:
    with command_of(SLEEPS) as command:
        evidence = preempt(command)
        assert notified(evidence) == [
            ("rank", 0),
            ("rank", 1),
            ("data-worker", 1),
            ("launcher", None),
            ("launcher", None),
        ]
        assert not killed(evidence) and evidence["used_seconds"] < 60.0
        assert [(one["rank"], one["action"], one["killed"]) for one in evidence["ranks"]] == [
            (0, "default", False),
            (1, "default", False),
        ]


def test_who_does_not_end_is_killed_at_the_end_of_the_grace() -> None:
    with command_of(SLEEPS, SLEEPS, DEAF, SLEEPS) as command:
        evidence = preempt(command, grace="300ms")
        assert killed(evidence) == pids(command.ranks[0])
        assert evidence["used_seconds"] >= 0.3
        assert [(one["action"], one["killed"]) for one in evidence["ranks"]] == [("ignored", True), ("default", False)]


@pytest.mark.parametrize(
    ("deliver", "who"),
    [
        ("rank=1", [("rank", 1)]),
        ("launcher", [("launcher", None)]),
        ("slurm-batch", [("launcher", None)]),
    ],
)
def test_only_those_get_it_that_the_scheduler_gives_it_to(deliver, who) -> None:
    with command_of(SHELL, SLEEPS) as command:
        evidence = preempt(command, deliver=deliver, grace="200ms")
        assert notified(evidence) == who
        reached = pids(command.first) if deliver == "slurm-batch" else {one["pid"] for one in evidence["notices"]}
        assert killed(evidence) == pids(*command.command_processes()) - reached


@pytest.mark.parametrize(("deliver", "who"), [("slurm-step", {"rank"}), ("slurm-cancel", {"rank", "shell"})])
def test_slurm_signals_tasks_and_not_what_they_have_started(deliver, who) -> None:
    """As a real `scancel` does: see tests/cluster/test_preemption.py."""
    script = "sh -c 'sleep 300 & echo $! && wait' & echo $! && wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        printed = [int(shell.stdout.readline()) for _ in range(2)]
        first = OwnedProcess("launcher", ProcessId.of(shell.pid))
        child = next(pid for pid in printed if parent_of(ProcessId.of(pid)) == ProcessId.of(min(printed)))
        task = OwnedProcess("rank", ProcessId.of(min(printed)), rank=0)
        worker = OwnedProcess("data-worker", ProcessId.of(child), rank=0)
        command = Command([one.process for one in (first, first, task, task, worker)])
        command.command_processes = lambda: (first, task, worker)  # type: ignore[method-assign]
        try:
            fault = Preempt(PreemptParameters(deliver=deliver))
            fault.prepare(ALL, context_of(command))
            names = {task.process.pid: "rank", worker.process.pid: "worker", shell.pid: "shell"}
            assert {names[notice.owned.process.pid] for notice in fault._notices} == who
        finally:
            for owned in (worker, task, first):
                owned.process.signal(signal.SIGKILL)


def test_the_kernel_drops_what_a_first_process_does_not_handle() -> None:
    with command_of(SLEEPS) as command:
        evidence = preempt(command, deliver="pid1", grace="200ms")
        (notice,) = evidence["notices"]
        assert (notice["pid"], notice["action"]) == (command.first.process.pid, "default")
        assert notice["dropped"] and not notice["sent"]
        assert killed(evidence) == pids(*command.command_processes())


@pytest.mark.parametrize("deliver", ["pid1", "slurm-batch"])
def test_all_others_end_with_the_first_process(deliver) -> None:
    trapping = ("bash", "-c", "trap 'exit 0' TERM; kill -STOP $$; while :; do sleep 0.01; done")
    with command_of(trapping, DEAF) as command:
        while not is_stopped(command.first.process):
            time.sleep(0.001)
        command.first.process.signal(signal.SIGCONT)
        evidence = preempt(command, deliver=deliver)
        assert evidence["used_seconds"] < 60.0
        assert killed(evidence) == pids(*command.command_processes()) - pids(command.first)


def test_ranks_get_it_one_after_the_other() -> None:
    with command_of(SLEEPS) as command:
        evidence = preempt(command, skew="400ms")
        first, second = (one["seconds"] for one in evidence["ranks"])
        assert first < 0.4 <= second


def test_a_preemption_that_notifies_nobody_is_not_seen(monkeypatch) -> None:
    monkeypatch.setattr(Preempt, "apply", do_nothing)
    with command_of(SLEEPS) as command:
        with pytest.raises(EffectNotSeen) as raised:
            preempt(command, grace="10ms")
        assert raised.value.why.code == "still_running"
        assert all(owned.process.is_running() for owned in command.command_processes())


def test_a_grace_that_is_broken_off_kills_nobody() -> None:
    async def run(command: Command) -> None:
        fault, context = Preempt(PreemptParameters(grace="60s")), context_of(command)
        act = fault.prepare(ALL, context)
        await fault.apply(act, context)
        await fault.lift(act, context)
        assert fault.undo(act.undo_record)["processes"] == 5

    with command_of(DEAF) as command:
        asyncio.run(run(command))
        assert all(owned.process.is_running() for owned in command.command_processes())


def test_a_command_that_is_gone_gets_no_notice() -> None:
    with command_of(SLEEPS) as command:
        command.command_processes = tuple  # type: ignore[method-assign]
        with pytest.raises(TargetNotFound):
            Preempt(PreemptParameters()).prepare(ALL, context_of(command))


@pytest.mark.parametrize(
    "parameters", [{"signal": "SIGKILL"}, {"signal": "SIGSTOP"}, {"deliver": "rank"}, {"requeue": 2}, {"grace": "0s"}]
)
def test_what_is_no_preemption_is_refused(parameters) -> None:
    with pytest.raises(ValidationError):
        PreemptParameters(**parameters)


@pytest.mark.parametrize("parameters", [{"deliver": "rank=2"}, {"skew": "40s", "grace": "30s"}])
def test_what_cannot_come_to_pass_is_refused_before_the_start(parameters) -> None:
    with pytest.raises(UsageError):
        Preempt(PreemptParameters(**parameters)).check(ALL, RunContext(CLUSTER))


def test_the_command_is_started_again_unless_asked_otherwise() -> None:
    assert Preempt(PreemptParameters()).requeue == 1
    assert Preempt(PreemptParameters(requeue=0)).requeue == 0
