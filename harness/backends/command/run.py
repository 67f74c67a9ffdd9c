"""A running external job: its ranks, its end, and how it is stopped.

Every process that the command starts carries CHAOS_RUN in its environment: by that mark, its pid and its start time it
is known to be this run's.
"""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.experiment.command_job import CommandConfig
from chaos.faults.base import LinkHost, OwnedProcess
from chaos.host.run_processes import RUN_VARIABLE
from harness.analysis.command.failure_cause import EXITED, FailureCause
from harness.analysis.words import count, exit_text
from harness.backends.command.endings import COMPILED, NO_AGENT, NO_STEP, NOT_IN_LOG, NOTHING_TO_DO, deciding_end
from harness.backends.command.failing import PIPE, FailureFacts, failure_reason, is_pipe
from harness.backends.command.launcher_log import OLD_ADDRESSES, STORE_SETTING, LauncherLog
from harness.backends.command.log_steps import LogSteps
from harness.backends.command.processes_by_env import environment_of, listener_on, processes_of_run
from harness.backends.ending_job import EndingJob
from harness.backends.exits import exit_of
from harness.control.control_server import ControlServer
from mecefo_runtime.system.events import Emitter, Event
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.wire import Message

STOP_TIMEOUT_SECONDS = 5.0
# What the command started may end on its own after it; and what it said last may still be on the way.
FAREWELL_SECONDS = 3.0
# Each look goes through all processes of the machine.
SEARCH_POLL_SECONDS = 0.1
# How soon a launcher's word on who failed is heard: a line of its log.
BLAME_POLL_SECONDS = 0.05


class CommandRun(EndingJob, ABC):
    """One command with all that it started, on one node or once on each.

    `logs` are the files that it prints into, by the node that it is started on.
    """

    def __init__(
        self,
        control: ControlServer,
        name: str,
        job: CommandConfig,
        run_id: str,
        logs: Mapping[int, Path],
        emitter: Emitter,
    ) -> None:
        super().__init__()
        self._control = control
        self.name = name
        self._job = job
        self._run_id = run_id
        self._logs = logs
        self._emitter = emitter
        self.links: LinkHost | None = None
        self._launchers: dict[int, OwnedProcess] = {}
        self._ranks: dict[int, OwnedProcess] = {}
        self._rank_attempts: dict[int, int] = {}
        # Of jobs of replica groups that live and die each by itself (torchft), and pid -> rank of those that are back.
        self._replica_of: dict[int, int] = {}
        self._coming_back: dict[int, int] = {}
        self._attempt = 0
        self._attempt_of_rank: dict[int, int] = {}
        self._num_steps = 0
        # A process made an optimizer and no step.
        self._has_idle = self._has_compiled = False
        self._log_steps: LogSteps | None = None
        # Of each rank's newest process: its exit code, where it did not say that it had come to its end.
        self._lost: dict[int, int] = {}
        self._finished: set[int] = set()
        self._exits: dict[int, asyncio.Task[None]] = {}
        self._waiting: asyncio.Task[None] | None = None
        self._launcher_logs = {node: LauncherLog(log) for node, log in logs.items()}
        # Of all starts: a launcher blames by the pid that it sees, when the rank may have been started again.
        self._rank_of_pid: dict[tuple[int, int], int] = {}
        # What the command ended with on each node, in the order of the ends.
        self._codes: dict[int, int] = {}
        self._are_over = asyncio.Event()
        self._is_stopping = False
        self._facts = FailureFacts()
        # What is said of a process that the kernel ended for want of memory.
        self._out_of_memory = ""

    @abstractmethod
    async def start(self) -> None:
        """Start the command.

        Raises:
            EnvironmentFailure: it cannot be started.
        """

    def _has_begun(self, node: int, process: ProcessId) -> None:
        """The command runs on `node`."""
        self._launchers[node] = OwnedProcess("launcher", process, node=node if len(self._logs) > 1 else None)
        self._emit_start(self._launchers[node])

    def _follow(self) -> None:
        """From the start on: until the job is over."""
        if self._job.step_from is not None and 0 in self._launchers:
            process = self._launchers[0].process
            self.on_agent({"rank": 0, "node": 0, "attempt": 1, "world_size": 1}, process)
            emitter = self._emitter.of_rank(0)
            self._log_steps = LogSteps(self._job.step_from, process, emitter, lambda: self._control.agents)
            self._log_steps.connect()
        self._waiting = asyncio.create_task(self._wait_for_end())

    # ---- where it runs ----

    def _own_processes(self) -> list[ProcessId]:
        """All that the command started, and itself."""
        return processes_of_run(self._run_id)

    @abstractmethod
    def _start_setting(self, name: str) -> str | None:
        """An environment variable of the command's, None where it has none of that name."""

    def _hosts(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """What goes with `nodes` beside the command and its ranks."""
        return ()

    def _where(self, process: ProcessId, hello: Message) -> tuple[int, int]:
        """On which start of the command's a rank that reports runs, and which pid its launcher knows it by."""
        return 0, process.pid

    # ---- what injectors ask ----

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The processes of `ranks`, each the one that reported last."""
        return tuple(self._ranks[rank] for rank in ranks if rank in self._ranks)

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """All ranks of `nodes`, and the command's own process on each on which it was started, if that is no rank."""
        ranks = tuple(owned for owned in self._ranks.values() if owned.node in nodes)
        known = {one.process for one in ranks}
        launchers = (owned for node, owned in self._launchers.items() if node in nodes)
        return (*(owned for owned in launchers if owned.process not in known), *ranks, *self._hosts(nodes))

    def role_processes(self, role: str) -> tuple[OwnedProcess, ...]:
        """The launcher is the command's own process, on node 0; the store is whoever of us listens on MASTER_PORT."""
        if role == "launcher":
            return (self._launchers[0],) if 0 in self._launchers else ()
        if role != "store":
            return ()
        marked = self._own_processes()
        ports = {environment_of(process.pid).get("MASTER_PORT") for process in marked} - {None, "", "0"}
        for port in sorted(port for port in ports if port is not None and port.isdecimal()):
            if (process := listener_on(int(port), marked)) is not None:
                known = (owned for owned in self._all() if owned.process == process)
                return (next(known, OwnedProcess("launcher", process)),)
        return ()

    def _all(self) -> tuple[OwnedProcess, ...]:
        return (*self._ranks.values(), *self._launchers.values())

    # ---- what happens ----

    def on_agent(self, hello: Message, process: ProcessId) -> int:
        """A rank reports for the first time; returns which of its starts this is, from 1.

        What the launcher counts is believed as long as it counts at all: a shell loop around a script does not.
        """
        rank, node = int(hello["rank"]), int(hello["node"])
        attempt = max(int(hello["attempt"]), self._rank_attempts.get(rank, 0) + 1)
        if environment_of(process.pid).get(RUN_VARIABLE) != self._run_id:
            self._emitter.emit(
                "warning", message=f"rank {rank} (pid {process.pid}) is not marked as a process of this run"
            )
            return attempt
        self._rank_attempts[rank] = attempt
        self._lost.pop(rank, None)
        self._finished.discard(rank)
        world_size = int(hello.get("world_size") or 1)
        replica = hello.get("replica")
        if replica is not None:
            self._replica_of[rank] = int(replica)
        num_ranks = self._job.cluster().num_ranks
        # How many groups there are need not be known yet.
        is_other = world_size > num_ranks if replica is not None else world_size != num_ranks
        if self._attempt == 0 and is_other:
            self._emitter.emit(
                "warning",
                message=f"the job has {count(world_size, 'rank')}, and the plan expected {num_ranks}: "
                "give the numbers with --nodes and --gpus-per-node",
            )
        if self._others_train_on(rank):
            self._coming_back[process.pid] = rank
            attempt_of_job = self._attempt
        elif replica is not None:
            # Of the first start each group reports by itself, too.
            attempt_of_job = self._attempt + (self._attempt == 0 or attempt > 1)
        else:
            attempt_of_job = attempt
        if attempt_of_job > self._attempt:
            self._attempt = attempt_of_job
            self._emitter.emit("attempt_started", attempt_number=attempt_of_job, world_size=world_size)
        owned = OwnedProcess("rank", process, rank=rank, node=node)
        self._ranks[rank] = owned
        self._rank_of_pid[self._where(process, hello)] = rank
        self._emit_start(owned, started_rank=rank, rank_attempt=attempt_of_job)
        if process.pid not in self._exits:
            self._exits[process.pid] = asyncio.create_task(self._tell_exit(owned))
        self._attempt_of_rank[rank] = attempt_of_job
        return attempt

    def _others_train_on(self, rank: int) -> bool:
        """Whether ranks of other replica groups are there while those of this one's group are started again."""
        replica = self._replica_of.get(rank)
        return rank in self._ranks and any(
            other in self._replica_of and self._replica_of[other] != replica and owned.process.is_running()
            for other, owned in self._ranks.items()
        )

    def note(self, event: Event) -> None:
        """Count the steps, and the ranks that came to their end or back."""
        self._facts.note(event)
        if event.kind == "step_committed":
            self._num_steps += 1
            if (back := self._coming_back.pop(event.pid, None)) is not None:
                group = sorted(rank for rank, one in self._replica_of.items() if one == self._replica_of[back])
                self._emitter.emit("rejoined", epoch=self._attempt, ranks=group)
        elif event.kind == "ended_without_step":
            self._has_idle = True
            self._has_compiled = self._has_compiled or bool(event.fields.get("is_compiled"))
        elif event.kind == "rank_finished" and event.rank is not None:
            self._finished.add(event.rank)

    def on_out_of_memory(self, why: Exception) -> None:
        """The kernel ended a process of a node: where the command does not get over that, it is told why."""
        self._out_of_memory = f": {why}"

    def violation_about_start(self) -> str:
        """Why it may be that no step was seen."""
        if self._log_steps is not None:
            return NOT_IN_LOG
        if self._has_idle and not self._ranks:
            return COMPILED if self._has_compiled else NOTHING_TO_DO
        return NO_STEP if self._ranks else NO_AGENT

    def cannot_begin(self) -> bool:
        """Never: when its launchers are gone it has ended."""
        return False

    def repair_node(self, node: int) -> None:
        """Nothing: the command's own launcher repairs, or nobody."""
        return

    def repair_rank(self, rank: int) -> None:
        """Nothing: the command's own launcher repairs, or nobody."""
        return

    def _has_ended(self, node: int, code: int) -> None:
        """The command has ended on `node`."""
        if (owned := self._launchers.pop(node, None)) is not None:
            self._emitter.emit("process_exited", role="launcher", exited_pid=owned.process.pid, exit=code)
        self._codes.setdefault(node, code)
        if self._codes.keys() >= self._logs.keys():
            self._are_over.set()

    async def _wait_for_end(self) -> None:
        ending = asyncio.create_task(self._are_over.wait())
        while not ending.done():
            await asyncio.wait({ending}, timeout=BLAME_POLL_SECONDS)
            self._tell_culprits()
        self._tell_culprits()
        if self._log_steps is not None:
            self._log_steps.close()
        await self._until_gone(FAREWELL_SECONDS)
        if not self._is_stopping and (left := self._kill_own()):
            message = f"the command is over: {count(left, 'process')} that it left running ended by chaos"
            self._emitter.emit("warning", message=message)
        await self._control.drained(FAREWELL_SECONDS)
        if self._outcome.done():
            return
        if exits := list(self._exits.values()):
            await asyncio.wait(exits, timeout=FAREWELL_SECONDS)
        if self._outcome.done():
            return
        node, code = deciding_end(self._codes)
        if code == 0 and self._num_steps:
            self._finish("failed" if self._has_lost_all() else "completed")
            return
        where = f" on node {node}" if len(self._logs) > 1 else ""
        how = "was" if code < 0 else "ended with"
        log = self._launcher_logs[node]
        memory = self._out_of_memory if code else ""
        ended = f"the command{where} {how} {exit_text(code)}{memory}"
        if code > 0 and log.has_failed_restart and self._start_setting(STORE_SETTING) != "1":
            ended = f"{ended}{OLD_ADDRESSES}"
        if code <= 0:
            # What ended it is told; or it has ended well, and no rank was seen.
            self._fail(f"{ended}, and {self.violation_about_start()}" if code == 0 else ended, exit=code)
            return
        cause = self._facts.cause(log.printed())
        reason = failure_reason(ended, cause, self._logs[node].name, log.last_lines())
        self._fail(f"{reason}{self._hint(node)}", exit=code, cause=None if cause is None else cause.to_dict())

    def _has_lost_all(self) -> bool:
        """Whether no rank came to its end, though the command says that all is well; the job failed then."""
        lost = {rank: code for rank, code in self._lost.items() if rank not in self._finished}
        if not lost or lost.keys() < self._ranks.keys():
            return False
        node = min(self._logs)
        log, ended = self._launcher_logs[node], "the command ended with exit code 0, but none of its ranks completed"
        cause = self._facts.cause(log.printed())
        if cause is None:
            rank, code = next(iter(lost.items()))
            cause = FailureCause(EXITED, rank, exit=code)
        reason = failure_reason(ended, cause, self._logs[node].name, "")
        hint = f". {PIPE}" if is_pipe(self._job.command) else ""
        self._emitter.emit("job_failed", reason=f"{reason}{hint}", exit=0, cause=cause.to_dict())
        return True

    def _hint(self, node: int) -> str:
        """What may have been in its way there, as a sentence after the reason."""
        return ""

    def _fail(self, reason: str, **known: Any) -> None:
        """The job has failed, and nothing else is said of how it ended."""
        if not self._outcome.done():
            self._emitter.emit("job_failed", reason=reason, **known)
            self._finish("failed")

    async def _tell_exit(self, owned: OwnedProcess) -> None:
        """Say so when a rank ends."""
        attempt = self._attempt_of_rank.get(owned.rank or 0, self._attempt)
        code = await exit_of(owned.process)
        self._exits.pop(owned.process.pid, None)
        if owned.rank is not None and self.rank_processes((owned.rank,))[0].process == owned.process:
            # It may have replaced itself (`os.execv`) and reported again.
            attempt = self._attempt_of_rank[owned.rank]
            if code:
                self._lost[owned.rank] = code
        self._emitter.emit(
            "process_exited",
            role="rank",
            exited_pid=owned.process.pid,
            exit=code,
            exited_rank=owned.rank,
            rank_attempt=attempt,
        )

    def _tell_culprits(self) -> None:
        """Say whom the launcher blames; a process that has not reported as a rank is nobody whom a fault can affect."""
        for node, log in self._launcher_logs.items():
            lines = log.new_lines()
            if self._log_steps is not None:
                for line in lines:
                    self._log_steps.feed(line)
            for pid in log.culprits(lines):
                if (rank := self._rank_of_pid.get((node, pid))) is not None:
                    self._emitter.emit("culprit_named", ranks=[rank], how="torchrun")

    # ---- stopping ----

    async def stop(self) -> None:
        """SIGTERM to the launchers, so that they can end their ranks in order; then SIGKILL to all that is left."""
        self._is_stopping = True
        self._finish("stopped")
        if running := [owned for owned in self._launchers.values() if owned.process.is_running()]:
            for owned in running:
                owned.process.signal(signal.SIGTERM)
                # A stopped process takes no SIGTERM.
                owned.process.signal(signal.SIGCONT)
            await self._until_gone(STOP_TIMEOUT_SECONDS)
        deadline = asyncio.get_running_loop().time() + STOP_TIMEOUT_SECONDS
        while self._kill_own() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(SEARCH_POLL_SECONDS)
        await self._bury()
        if exits := list(self._exits.values()):
            await asyncio.wait(exits, timeout=STOP_TIMEOUT_SECONDS)
        for task in exits:
            task.cancel()

    @abstractmethod
    async def _bury(self) -> None:
        """All that it started is dead: wait until that is known."""

    def leftovers(self) -> tuple[OwnedProcess, ...]:
        """The processes of the command that still run, by their environment."""
        known = {owned.process: owned for owned in self._ranks.values()}
        return tuple(known.get(process, OwnedProcess("launcher", process)) for process in self._own_processes())

    def _kill_own(self) -> int:
        """SIGKILL to all that carries our mark; returns how many there were."""
        left = self._own_processes()
        for process in left:
            process.signal(signal.SIGKILL)
        return len(left)

    async def _until_gone(self, timeout_seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while self._own_processes() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(SEARCH_POLL_SECONDS)

    def _emit_start(self, owned: OwnedProcess, **fields: Any) -> None:
        process = owned.process
        self._emitter.emit(
            "process_started", role=owned.role, started_pid=process.pid, start_ticks=process.start_ticks, **fields
        )
