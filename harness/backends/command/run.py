"""A running external job: its ranks, its end, and how it is stopped.

Every process that the command starts carries CHAOS_RUN in its environment: by that mark, its pid and its start time it
is known to be this run's.
"""

from __future__ import annotations

import asyncio
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from chaos.errors import EnvironmentFailure
from chaos.experiment.command_job import CommandConfig
from chaos.external.identity import JOB_VARIABLE
from chaos.faults.base import LauncherLeft, LinkHost, OwnedProcess
from chaos.host.run_processes import RUN_VARIABLE
from chaos.in_process.protocol import Start
from harness.analysis.command.failure_cause import EXITED, PIPE, FailureCause
from harness.analysis.command.unseen import Unseen
from harness.analysis.job_failures import job_failed
from harness.analysis.words import count, exit_text
from harness.backends.command.attempts import (
    AttemptBegan,
    Attempts,
    Decision,
    GroupRejoined,
    Hello,
    RankEnded,
    RankStarted,
    Stopping,
    deciding_end,
)
from harness.backends.command.failing import FailureFacts, failure_reason, is_pipe
from harness.backends.command.hang_rule import HangRuleWatch
from harness.backends.command.known_states import KnownStates
from harness.backends.command.launcher_log import LOST_STORE, OLD_ADDRESSES, STORE_SETTING, LauncherLog, LogSteps
from harness.backends.command.launches import Launch, restarts_of
from harness.backends.command.other_users import OtherUser, other_user_of
from harness.backends.command.rank_launchers import RankLaunchers, is_shell
from harness.backends.command.requeue import Requeues
from harness.backends.command.timeouts import timeouts_of
from harness.backends.ending_job import EndingJob
from harness.control.control_server import ControlServer
from harness.node.exits import REAPED_SECONDS
from harness.node.process_table import ProcessTable
from harness.node.process_tree import first_of, with_roles
from harness.node.processes_by_env import environment_of, processes_of_run, store_of
from mecefo_runtime.system.command_records import NoStepSeen, OrphansEnded, TimeoutsConfigured
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.job_records import (
    AttemptStarted,
    CommandRequeued,
    CulpritNamed,
    JobFailed,
    ProcessExited,
    ProcessStarted,
    Rejoined,
)
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import Warned
from mecefo_runtime.system.wire import Message

STOP_TIMEOUT_SECONDS = 5.0
# What the command started may end on its own after it; and what it said last may still be on the way.
FAREWELL_SECONDS = 3.0
# Each look goes through all processes of the machine.
SEARCH_POLL_SECONDS = 0.1
# How soon a launcher's word on who failed is heard: a line of its log.
BLAME_POLL_SECONDS = 0.05
# Until a rank reports: how often it is looked whether the command runs as another user.
USER_POLL_SECONDS = 0.5


class CommandRun(EndingJob, ABC):
    """One command with all that it started, on one node or once on each.

    `_has_hosts`: each node is a host of its own, so that the command's own process there goes with it.
    `logs` are the files that it prints into, by the node that it is started on.
    """

    _has_hosts: ClassVar[bool] = False

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
        # Of all hosts that it runs on.
        self._table = ProcessTable()
        self._control = control
        self.name = name
        self._job = job
        self._run_id = run_id
        self._logs = logs
        self._emitter = emitter
        self.links: LinkHost | None = None
        self._launchers: dict[int, OwnedProcess] = {}
        self._attempts = Attempts()
        self._rank_launchers = RankLaunchers(self._is_own)
        self._known_states = KnownStates()
        self._log_steps: LogSteps | None = None
        self._hang_rule: HangRuleWatch | None = None
        self._are_timeouts_told = False
        self._exits: dict[ProcessId, asyncio.Task[None]] = {}
        self._waiting: asyncio.Task[None] | None = None
        self._launcher_logs = {node: LauncherLog(log) for node, log in logs.items()}
        # What the command ended with on each node, in the order of the ends.
        self._codes: dict[int, int] = {}
        self._unobserved: set[int] = set()
        self._are_over = asyncio.Event()
        self._is_stopping = False
        self._facts = FailureFacts()
        self._requeues = Requeues()
        self._other_user: OtherUser | None = None
        self._user_looked_seconds = -USER_POLL_SECONDS
        # What is said of a process that the kernel ended for want of memory.
        self._out_of_memory = ""

    @abstractmethod
    async def start(self) -> None:
        """Start the command.

        Raises:
            EnvironmentFailure: it cannot be started.
        """

    @abstractmethod
    async def _start_again(self) -> None:
        """Start the very same command once more; nothing of the last start runs.

        Raises:
            EnvironmentFailure: it cannot be started.
        """

    def _has_begun(self, node: int, process: ProcessId) -> None:
        """The command runs on `node`."""
        self._launchers[node] = OwnedProcess("launcher", process, node=node if len(self._logs) > 1 else None)
        self._emitter.of_host(process.host).emit(_started(self._launchers[node]))

    def _follow(self) -> None:
        """From the start on: until the job is over."""
        self._control.start_of = self._start_of
        self._control.on_refused = self._on_refused
        self._follow_log()
        if self._job.hang_rule is not None:
            self._hang_rule = HangRuleWatch(self._job.hang_rule, time.monotonic())
        self._waiting = asyncio.create_task(self._wait_for_end())

    def _follow_log(self) -> None:
        if self._job.step_from is not None and 0 in self._launchers:
            process = self._launchers[0].process
            self.on_agent({"rank": 0, "node": 0, "attempt": 1, "world_size": 1}, process)
            emitter = self._emitter.of_rank(0)
            self._log_steps = LogSteps(self._job.step_from, process, emitter, lambda: self._control.agents)
            self._log_steps.connect()

    # ---- where it runs ----

    def _own_processes(self) -> list[ProcessId]:
        """All that the command started, and itself."""
        return processes_of_run(self._run_id)

    def _is_own(self, pid: int) -> bool:
        """Whether the command started the process that has this pid now."""
        return environment_of(pid).get(RUN_VARIABLE) == self._run_id

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
        """The processes of `ranks` on this host, each the one that reported last."""
        known = self._attempts.ranks
        return tuple(known[rank] for rank in ranks if rank in known and known[rank].process.is_here)

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """All ranks of `nodes`, and who starts no others, if that is no rank."""
        ranks = tuple(owned for rank, owned in self._attempts.ranks.items() if self._node_of(rank) in nodes)
        known = {one.process for one in ranks}
        launchers = (owned for owned in self._launchers_on(nodes) if owned.process not in known)
        # The agents of other hosts know what is there.
        return tuple(owned for owned in (*launchers, *ranks, *self._hosts(nodes)) if owned.process.is_here)

    def _node_of(self, rank: int) -> int:
        """On which node a rank counts: on the one that it tells of.

        Where all ranks tell of the same one, and the plan has several, they are nodes in name only, as planned.
        """
        cluster, known = self._job.cluster(), self._attempts.ranks
        told = {owned.node for owned in known.values()}
        if len(told) == 1 and cluster.nodes > 1 and not self._has_hosts and rank < cluster.num_ranks:
            return cluster.node_of(rank)
        return known[rank].node or 0

    def _launchers_on(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The launchers that end with `nodes`: those that have no rank elsewhere.

        Before the first rank has reported, the command's own process, unless that is a shell.
        """
        if not self._attempts.ranks:
            own = (owned for node, owned in self._launchers.items() if node in nodes)
            return tuple(owned for owned in own if not is_shell(owned.process.local_pid))
        found = self._rank_launchers.on(nodes, self._node_of)
        return tuple(
            OwnedProcess("launcher", process, node=served[0] if self._job.nodes > 1 else None)
            for process, served in found.items()
            if set(served) <= set(nodes)
        )

    def launchers_left(self, nodes: tuple[int, ...]) -> tuple[LauncherLeft, ...]:
        """See `chaos.faults.base.LauncherHost`."""
        found = self._rank_launchers.on(nodes, self._node_of)
        return tuple(LauncherLeft(process, served) for process, served in found.items() if set(served) - set(nodes))

    def launcher_of(self, rank: int) -> ProcessId | None:
        """See `chaos.faults.base.LauncherHost`."""
        return self._rank_launchers.of(rank)

    def role_processes(self, role: str) -> tuple[OwnedProcess, ...]:
        """The launcher is the one of the ranks of node 0; the store is the process that listens on MASTER_PORT."""
        if role == "launcher":
            return self._launcher()
        if role != "store":
            return ()
        process = store_of(self._own_processes())
        if process is None:
            return ()
        known = (owned for owned in self._all() if owned.process == process)
        return (next(known, OwnedProcess("launcher", process)),)

    def _launcher(self) -> tuple[OwnedProcess, ...]:
        """Also one that a shell or a loop around it has started; where there is none, the command's own process."""
        own = {owned.process: owned for node, owned in self._launchers.items() if node == 0}
        found = self._rank_launchers.on((0,), self._node_of) if self._attempts.ranks else {}
        processes = tuple(found) or tuple(own)
        return tuple(own.get(one, OwnedProcess("launcher", one)) for one in processes if one.is_here)

    def command_processes(self) -> tuple[OwnedProcess, ...]:
        """See `chaos.faults.base.CommandHost`."""
        launchers = self._rank_launchers.on(tuple(range(self._job.nodes)), self._node_of)
        # A script that no launcher starts is a rank.
        known = {owned.process: owned for owned in (*self._launchers.values(), *self._attempts.ranks.values())}
        running = {process for process in known if process.is_here and process.is_running()}
        return with_roles(sorted({*self._own_processes(), *running}, key=lambda one: one.pid), known, launchers)

    def first_processes(self) -> tuple[OwnedProcess, ...]:
        """See `chaos.faults.base.CommandHost`."""
        own = tuple(owned for owned in self._launchers.values() if owned.process.is_here)
        return own or first_of(self.command_processes())

    def _all(self) -> tuple[OwnedProcess, ...]:
        return (*self._attempts.ranks.values(), *self._launchers.values())

    # ---- what happens ----

    async def on_launch(self, process: ProcessId, node: int | None = None) -> None:
        """A process that was started with RANK greets, before its script begins: from now on its end is followed.

        `node`: its host is that node, whatever the launcher counts as one.
        """
        environment = self._table.environment(process)
        is_ours = environment.get(RUN_VARIABLE) == self._run_id and environment.get(JOB_VARIABLE, MAIN_JOB) == self.name
        # With --step-from the command itself stands for all of its ranks.
        is_wanted = is_ours and self._job.step_from is None
        launch = Launch.of(process, environment, self._table, time.monotonic()) if is_wanted else None
        if launch is None:
            return
        if node is not None:
            launch.node = node
        earlier = self._attempts.process_before(launch)
        if earlier is not None and not self._table.is_running(earlier) and earlier in self._exits:
            # Whether this is a restart depends on how that one ended.
            await asyncio.wait({self._exits[earlier]}, timeout=REAPED_SECONDS)
        self._look_for_gone()
        self._act(self._attempts.greet(launch))
        self._follow_exit(launch.process)
        # It goes on when this returns, and may be over in a moment: by then its end has to be waited for.
        await asyncio.sleep(0)

    def on_agent(self, hello: Message, process: ProcessId) -> int:
        """A rank reports for the first time; returns which of its starts this is, from 1.

        What the launcher counts is believed as long as it counts at all: a shell loop around a script does not.
        """
        rank, replica = int(hello["rank"]), hello.get("replica")
        is_marked = self._table.environment(process).get(RUN_VARIABLE) == self._run_id
        world_size = int(hello.get("world_size") or 1)
        if is_marked and not self._attempts.ranks:
            self._compare_with_plan(world_size, has_groups=replica is not None)
        reported = Hello(
            owned=OwnedProcess("rank", process, rank=rank, node=int(hello["node"])),
            rank=rank,
            start_count=int(hello["attempt"]),
            world_size=world_size,
            ancestors=self._table.ancestors(process),
            blamed_as=self._where(process, hello),
            replica=None if replica is None else int(replica),
            is_marked=is_marked,
        )
        self._look_for_gone()
        attempt, decisions = self._attempts.report(reported)
        if not is_marked:
            self._emitter.emit(
                Warned(message=f"rank {rank} (pid {process.pid}) is not marked as a process of this run")
            )
            return attempt
        self._rank_launchers.note(rank, process)
        self._act(decisions)
        self._follow_exit(process)
        return attempt

    def _compare_with_plan(self, world_size: int, *, has_groups: bool) -> None:
        """Warn where the job has another number of ranks than was planned."""
        num_ranks = self._job.cluster().num_ranks
        # How many groups there are need not be known yet.
        if world_size > num_ranks if has_groups else world_size != num_ranks:
            self._emitter.emit(
                Warned(
                    message=f"the job has {count(world_size, 'rank')}, and the plan expected {num_ranks}: "
                    "give the numbers with --nodes and --gpus-per-node"
                )
            )

    def _start_of(self, attempt: int) -> Start:
        """The state of the run, for a rank of that attempt."""
        # The first one that trains continues from nothing that was seen in this run.
        is_later = attempt > 1 and self._attempts.num_steps > 0
        return Start(is_later, self._known_states.steps_by_digest() if is_later else {})

    def _look_for_gone(self) -> None:
        running = self._attempts.running()
        self._attempts.see_gone(process for process in running if not self._table.is_running(process))

    def _act(self, decisions: Iterable[Decision]) -> None:
        """Report what has been decided."""
        for decision in decisions:
            match decision:
                case AttemptBegan(number, world_size, process, began_seconds):
                    num_restarts, max_restarts = restarts_of(self._table.environment(process))
                    begun = AttemptStarted(
                        attempt_number=number,
                        world_size=world_size,
                        num_restarts=num_restarts,
                        max_restarts=max_restarts,
                    )
                    self._emitter.of_host(process.host).emit(begun, monotonic_seconds=began_seconds)
                case RankStarted(owned, rank, attempt, began_seconds):
                    parent = self._table.parent(owned.process)
                    self._tell_timeouts(owned.process)
                    started = ProcessStarted(
                        **_started(owned).given(),
                        started_rank=rank,
                        rank_attempt=attempt,
                        parent_pid=None if parent is None else parent.pid,
                    )
                    self._emitter.of_host(owned.process.host).emit(started, monotonic_seconds=began_seconds)
                case RankEnded(process, rank, attempt, exit_code):
                    ended = ProcessExited(
                        role="rank",
                        exited_pid=process.pid,
                        exit=exit_code,
                        exited_rank=rank,
                        rank_attempt=attempt,
                    )
                    self._emitter.of_host(process.host).emit(ended)
                case GroupRejoined(attempt, ranks):
                    self._emitter.emit(Rejoined(epoch=attempt, ranks=ranks))

    def _tell_timeouts(self, process: ProcessId) -> None:
        """Once: the time-outs that the first rank to start was given."""
        if not self._are_timeouts_told:
            self._are_timeouts_told = True
            found = timeouts_of(self._job.command, self._table.environment(process))
            if found:
                self._emitter.emit(TimeoutsConfigured(timeouts=found))

    def _follow_exit(self, process: ProcessId) -> None:
        if process not in self._exits:
            self._exits[process] = asyncio.create_task(self._tell_exit(process))

    def note(self, event: Event) -> None:
        """Count the steps, and the ranks that came to their end or back; keep what a later start may continue from."""
        self._facts.note(event)
        self._requeues.note(event)
        self._known_states.note(event)
        if event.kind == "step_committed":
            self._act(self._attempts.commit(event.pid))
        elif event.kind == "ended_without_step":
            self._attempts.end_without_step(is_compiled=bool(event.fields.get("is_compiled")))
        elif event.kind == "rank_finished" and event.rank is not None:
            self._attempts.finish(event.rank)

    def on_out_of_memory(self, why: Exception) -> None:
        """The kernel ended a process of a node: where the command does not get over that, it is told why."""
        self._out_of_memory = f": {why}"

    def why_unseen(self) -> Unseen:
        """See `RunningJob`."""
        if self._log_steps is not None:
            return "not_in_log"
        return "other_user" if self._unheard_user() is not None else self._attempts.why_unseen()

    def _unheard_user(self) -> OtherUser | None:
        """The other user that the command runs as, if no rank has reported."""
        return None if self._attempts.ranks or self._log_steps is not None else self._other_user

    def _on_refused(self, uid: int, pid: int | None) -> None:
        """The control server refused a process. A process that does not bear the run's mark is a stranger."""
        if pid is not None and environment_of(pid).get(RUN_VARIABLE) == self._run_id:
            self._other_user = OtherUser(uid)
            message = f"pid {pid}, a process of {self._other_user}, is not observed: no process of this run started it"
            self._emitter.emit(Warned(message=message))

    def _look_for_other_user(self) -> None:
        now = time.monotonic()
        if self._attempts.ranks or self._other_user is not None:
            return
        if now - self._user_looked_seconds >= USER_POLL_SECONDS:
            self._user_looked_seconds = now
            self._other_user = other_user_of(self._own_processes())

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
            ended = ProcessExited(role="launcher", exited_pid=owned.process.pid, exit=code)
            self._emitter.of_host(owned.process.host).emit(ended)
        self._codes.setdefault(node, code)
        self._see_whether_over()

    def _lose_sight(self, node: int) -> None:
        """How the command ends on `node` will not be known."""
        self._launchers.pop(node, None)
        self._unobserved.add(node)
        self._see_whether_over()

    def _see_whether_over(self) -> None:
        if self._codes.keys() | self._unobserved >= self._logs.keys():
            self._are_over.set()

    async def _wait_for_end(self) -> None:
        await self._until_over()
        while await self._begins_again():
            await self._until_over()
        await self._until_gone(FAREWELL_SECONDS)
        if not self._is_stopping and (left := self._kill_own()):
            ranks = sorted({rank for one in left if (rank := self._attempts.rank_of(one)) is not None})
            pids = tuple(sorted(one.pid for one in left))
            self._emitter.emit(OrphansEnded(num_processes=len(left), ranks=tuple(ranks), pids=pids))
        if not self._is_stopping and (pids := await self._kill_elsewhere()):
            self._emitter.emit(OrphansEnded(num_processes=len(pids), ranks=(), pids=pids))
        await self._control.drained(FAREWELL_SECONDS)
        if self._outcome.done():
            return
        if exits := list(self._exits.values()):
            await asyncio.wait(exits, timeout=FAREWELL_SECONDS)
        if self._outcome.done():
            return
        if not self._codes:
            self._fail(job_failed(Reason("command_unobserved")))
            return
        node, code = deciding_end(self._codes)
        if code == 0:
            self._end_well(node)
            return
        if self._tells_of_killed(code) and self._attempts.has_completed():
            told = "all ranks of the newest attempt have completed: that code is of processes that were killed before"
            self._emitter.emit(Warned(message=f"the command ended with {exit_text(code)}, and {told}"))
            self._end_well(node)
            return
        where = f" on node {node}" if len(self._logs) > 1 else ""
        how = "was" if code < 0 else "ended with"
        log = self._launcher_logs[node]
        memory = self._out_of_memory if code else ""
        ended = f"the command{where} {how} {exit_text(code)}{memory}"
        if code > 0 and log.has_failed_restart and self._start_setting(STORE_SETTING) != "1":
            ended = f"{ended}{OLD_ADDRESSES}"
        if code > 0 and log.has_lost_store and self._attempts.num_steps:
            ended = f"{ended}{LOST_STORE}"
        if code < 0:
            failed = job_failed(Reason("command_killed", sentence=ended))
            self._fail(JobFailed(**failed.given(), exit=code))
            return
        cause = self._facts.cause(log.printed())
        printed = None if self._attempts.num_steps else log.last_lines()
        reason = failure_reason(ended, cause, self._logs[node].name, log.last_words(), printed)
        failed = job_failed(Reason("command_failed", sentence=f"{reason}{self._hint(node)}"))
        self._fail(JobFailed(**failed.given(), exit=code, cause=None if cause is None else to_json(cause)))

    async def _until_over(self) -> None:
        """Until the command has ended on all nodes, and what it was preempted for is over."""
        ending = asyncio.create_task(self._are_over.wait())
        try:
            while True:
                await asyncio.wait({ending}, timeout=BLAME_POLL_SECONDS)
                self._tell_culprits()
                self._look_for_other_user()
                if ending.done() and (self._is_stopping or not self._requeues.is_under_way):
                    break
                if ending.done():
                    # Others may still use their grace.
                    await asyncio.sleep(BLAME_POLL_SECONDS)
        finally:
            ending.cancel()
        self._tell_culprits()
        if self._log_steps is not None:
            self._log_steps.close()

    async def _begins_again(self) -> bool:
        """Whether the command was preempted, and has been started again."""
        if self._is_stopping or self._outcome.done() or not self._requeues.take():
            return False
        self._kill_own()
        await self._kill_elsewhere()
        await self._until_gone(FAREWELL_SECONDS)
        await self._control.drained(FAREWELL_SECONDS)
        if exits := list(self._exits.values()):
            await asyncio.wait(exits, timeout=FAREWELL_SECONDS)
        # `stop` may have been called: it ends what runs, and nothing more may be started.
        if self._is_stopping or self._outcome.done():
            return False
        exit_code = deciding_end(self._codes)[1] if self._codes else None
        self._emitter.emit(CommandRequeued(number=self._requeues.number, exit=exit_code))
        self._codes.clear()
        self._unobserved.clear()
        self._are_over.clear()
        self._facts = FailureFacts()
        try:
            await self._start_again()
        except EnvironmentFailure as failure:
            self._fail(job_failed(Reason("command_failed", sentence=str(failure))))
            return False
        self._follow_log()
        return True

    def _tells_of_killed(self, code: int) -> bool:
        """Whether the command ends with that code also where others have gone on without those that were killed."""
        return False

    def _end_well(self, node: int) -> None:
        """The command has ended with exit code 0: it completed, unless none of its ranks did."""
        if self._has_lost_all():
            self._finish("failed")
            return
        if not self._attempts.num_steps:
            # A pipe hides the exit code of a program that failed.
            cause = self._facts.cause(self._launcher_logs[node].printed())
            user = self._unheard_user()
            self._emitter.emit(
                NoStepSeen(
                    why=self.why_unseen(),
                    user=None if user is None else str(user),
                    unreachable=None if user is None else user.unreachable(self._control.address),
                    cause=None if cause is None else to_json(cause),
                    is_pipe=is_pipe(self._job.command),
                )
            )
        self._finish("completed")

    def _has_lost_all(self) -> bool:
        """Whether no rank came to its end, though the command says that all is well; the job failed then."""
        if (lost := self._attempts.last_lost()) is None:
            return False
        node = min(self._logs)
        log, ended = self._launcher_logs[node], "the command ended with exit code 0, but none of its ranks completed"
        cause = self._facts.cause(log.printed())
        if cause is None:
            cause = FailureCause(EXITED, lost[0], exit=lost[1])
        reason = failure_reason(ended, cause, self._logs[node].name, "")
        hint = f". {PIPE}" if is_pipe(self._job.command) else ""
        failed = job_failed(Reason("no_rank_completed", sentence=f"{reason}{hint}"))
        self._emitter.emit(JobFailed(**failed.given(), exit=0, cause=to_json(cause)))
        return True

    def _hint(self, node: int) -> str:
        """What may have been in its way there, as a sentence after the reason."""
        return ""

    def _fail(self, failed: JobFailed) -> None:
        """The job has failed, and nothing else is said of how it ended."""
        if not self._outcome.done():
            self._emitter.emit(failed)
            self._finish("failed")

    async def _tell_exit(self, process: ProcessId) -> None:
        """Wait for its end."""
        code = await self._table.exit(process)
        self._exits.pop(process, None)
        self._act(self._attempts.end(process, code))

    def _tell_culprits(self) -> None:
        """Say whom the launcher blames; a process that has not reported as a rank is nobody whom a fault can affect."""
        every: list[str] = []
        for node, log in self._launcher_logs.items():
            lines = log.new_lines()
            every += lines
            if self._log_steps is not None:
                for line in lines:
                    self._log_steps.feed(line)
            for pid in log.culprits(lines):
                if (rank := self._attempts.blamed(node, pid)) is not None:
                    self._emitter.emit(CulpritNamed(ranks=(rank,), how="torchrun"))
        if self._hang_rule is not None:
            for record in self._hang_rule.read(every, time.monotonic()):
                self._emitter.emit(record)

    # ---- stopping ----

    async def stop(self) -> None:
        """SIGTERM to the launchers, so that they can end their ranks in order; then SIGKILL to all that is left."""
        self._is_stopping = True
        self._finish("stopped")
        clock = asyncio.get_running_loop()
        launchers = self._running_launchers()
        stopping = Stopping(STOP_TIMEOUT_SECONDS, has_launchers=bool(launchers))
        while (act := stopping.act(clock.time(), has_processes=self._has_processes())) != "over":
            if act == "ask":
                for process in launchers:
                    self._ask_to_end(process)
            elif act == "kill":
                self._kill_own()
                await self._kill_elsewhere()
            await asyncio.sleep(SEARCH_POLL_SECONDS)
        await self._kill_elsewhere()
        await self._bury()
        if exits := list(self._exits.values()):
            await asyncio.wait(exits, timeout=STOP_TIMEOUT_SECONDS)
        for task in exits:
            task.cancel()

    def _running_launchers(self) -> list[ProcessId]:
        launchers = (owned.process for owned in self._launchers.values())
        return [process for process in launchers if self._table.is_running(process)]

    def _has_processes(self) -> bool:
        return bool(self._own_processes() or self._running_launchers())

    def _ask_to_end(self, launcher: ProcessId) -> None:
        launcher.signal(signal.SIGTERM)
        # A stopped process takes no SIGTERM.
        launcher.signal(signal.SIGCONT)

    async def _kill_elsewhere(self) -> tuple[int, ...]:
        """SIGKILL to all that it has started on other hosts; returns the pids of what there was."""
        return ()

    @abstractmethod
    async def _bury(self) -> None:
        """All that it started is dead: wait until that is known."""

    def leftovers(self) -> tuple[OwnedProcess, ...]:
        """The processes of the command that still run, by their environment."""
        known = {owned.process: owned for owned in self._attempts.ranks.values()}
        return tuple(known.get(process, OwnedProcess("launcher", process)) for process in self._own_processes())

    def _kill_own(self) -> list[ProcessId]:
        """SIGKILL to all that carries our mark; returns what there was."""
        left = self._own_processes()
        for process in left:
            process.signal(signal.SIGKILL)
        return left

    async def _until_gone(self, timeout_seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while self._own_processes() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(SEARCH_POLL_SECONDS)


def _started(owned: OwnedProcess) -> ProcessStarted:
    process = owned.process
    return ProcessStarted(role=owned.role, started_pid=process.pid, start_ticks=process.start_ticks)
