"""One run from start to verdict: start the job, fire the incidents, repair, run the baseline, leave nothing behind.

The conductor writes the event log and decides nothing about the verdict: that is computed from the log afterwards.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.errors import ChaosError, EnvironmentFailure
from chaos.experiment.command_job import CommandConfig
from chaos.experiment.experiment import Experiment, experiment_hash
from chaos.faults import registry
from chaos.faults.base import Fault, FaultContext
from chaos.faults.watch import Watch
from chaos.host.inherited import why
from chaos.host.run_files import EVENTS_FILE, LOGS_FOLDER
from chaos.injection.active import may_fire
from chaos.injection.agent_sessions import AgentSessions
from chaos.injection.executor import HostExecutor
from chaos.injection.injector import Injector
from chaos.injection.joint_act import Hosts
from chaos.plan.incident import Incident
from chaos.undo.guard import Farewell
from harness.analysis.state import RunState
from harness.backends.base import AnyConfig, BackendSetup, Outcome, RunningJob, checkpoint_folders, kind_of
from harness.control.control_server import ControlServer
from harness.control.recorder import Recorder
from harness.judging.early_end import EarlyEnd
from harness.judging.gates import HaltCondition
from harness.live.live import RunView
from harness.run.baseline_after import BaselineAfter
from harness.run.baseline_beside import BaselineBeside
from harness.run.checkpoint_checks import CheckpointChecks
from harness.run.job_run import JobRun
from harness.run.overlaps import Overlaps
from harness.run.restarts import Restarts
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.clocks import this_clock
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import BASELINE_JOB, MAIN_JOB, Event
from mecefo_runtime.system.host import this_host
from mecefo_runtime.system.job_records import JobFailed, Regrouped, Restarting, StepCommitted
from mecefo_runtime.system.run_records import (
    Halted,
    IncidentsPlanned,
    Injected,
    Interrupted,
    Residue,
    RunEnded,
    RunStarted,
    UndoFailed,
    Undone,
    Warned,
)
from mecefo_runtime.system.wire import new_token

# What is active when the job ends is undone before its processes are killed; what only their end lifts takes longer.
UNDO_FIRST_SECONDS = 2.0


class Conductor:
    """Conducts one run in `folder`, with containers in the Docker engine at `engine`, if that is named.

    `faults` is replaced in tests, to see what a fault that does nothing comes to.
    """

    def __init__(
        self,
        experiment: Experiment,
        incidents: Sequence[Incident],
        job: AnyConfig,
        folder: Path,
        state: RunState,
        view: RunView,
        faults: Mapping[str, type[Fault[Any]]] | None = None,
        engine: str | None = None,
        ranks_metrics: str = "",
    ) -> None:
        self._experiment = experiment
        self._incidents = {incident.incident: incident for incident in incidents}
        self._job = job
        self._folder = folder
        self._state = state
        self._view = view
        self._faults = registry() if faults is None else faults
        self._recorder = Recorder(folder / EVENTS_FILE)
        self._emitter = Emitter(self._on_event, "conductor")
        self._control = ControlServer(self._on_event)
        logs = folder / LOGS_FOLDER
        try:
            logs.mkdir(exist_ok=True)
        except OSError as error:
            raise EnvironmentFailure(f"cannot make the folder {logs}: {why(error)}") from error
        needs = [self._faults[incident.fault].needs for incident in incidents]
        setup = BackendSetup(
            experiment, job, needs, folder, logs, self._control, new_token(), self._emitter, engine, ranks_metrics
        )
        self._backend = kind_of(experiment.nodes_on).backend(setup)
        self._executor = self._executor_here(logs, engine)
        self._overlaps = Overlaps(self._emitter)
        keeps_checkpoints = job.traits.is_user_script and job.traits.keeps_own_checkpoints
        self._checkpoints = CheckpointChecks(self._emitter) if keeps_checkpoints else None
        self._early_end = EarlyEnd(experiment.gates, state, self._emitter, self._finish)
        self._halts = [HaltCondition.parse(text) for text in experiment.halt]
        self._injector: Injector | None = None
        # Incidents whose processes have a grace.
        self._preempting: set[int] = set()
        self._undoing: asyncio.Task[None] | None = None
        self._repairs = Restarts(
            self._incidents,
            self._faults,
            self._emitter,
            lambda: self._main.running,
            state.usual_step_seconds,
            job.steps,
        )
        self._main: JobRun = JobRun(
            MAIN_JOB,
            job,
            self._backend,
            self._on_event,
            state,
            self._awaited_until_seconds,
            self._may_be_repaired,
        )
        self._baseline: BaselineAfter[JobConfig] | BaselineAfter[CommandConfig] | None = None
        if experiment.twin and isinstance(job, CommandConfig):
            self._baseline = BaselineAfter(job, self._baseline_run)
        elif experiment.twin and isinstance(job, JobConfig):
            can_run_beside = self._backend.can_run_beside
            self._baseline = BaselineBeside(job, self._baseline_run, self._emitter, can_run_beside=can_run_beside)
        self._end: asyncio.Future[str] | None = None
        self._end_message = ""
        self._log_failure: EnvironmentFailure | None = None
        self._main_outcome: Outcome | None = None

    async def run(self) -> None:
        """Conduct the run. Errors on the way are in the log, and decide the verdict.

        Raises:
            EnvironmentFailure: the event log could not be written.
        """
        self._end = asyncio.get_running_loop().create_future()
        # A mistake of ours, which is raised after the end, must not look like a completed run.
        reason, message = "failed", "the tool broke down"
        with _Signals(self._on_signal):
            try:
                self._announce()
                await self._unless_ended(self._open())
                await self._unless_ended(self._run_main())
                # A command that died of a fault: whether it comes through without one is worth knowing.
                is_comparable = self._main_outcome == "completed" or isinstance(self._baseline, BaselineAfter)
                if self._baseline is not None and is_comparable:
                    await self._unless_ended(self._baseline.finish())
                reason, message = "completed", ""
            except _Ended as ended:
                reason, message = ended.reason, ended.message
            except ChaosError as error:
                reason, message = "failed", str(error)
            finally:
                await self._close(reason, message)
        if self._log_failure is not None:
            raise self._log_failure

    def _executor_here(self, logs: Path, engine: str | None) -> HostExecutor:
        return HostExecutor(
            self._faults,
            self._folder,
            logs,
            folders=checkpoint_folders(self._job),
            engine=engine,
            on_lapse=self._on_lapse,
            on_loss=self._on_watchdog_lost,
        )

    # ---- the run ----

    def _announce(self) -> None:
        self._emitter.emit(
            RunStarted(
                experiment=self._experiment.model_dump(mode="json"),
                experiment_hash=experiment_hash(self._experiment),
                seed=self._experiment.seed,
                gates=[str(gate) for gate in self._experiment.gates],
                dilation_ratio=self._job.start_record().dilation_ratio,
                machine={
                    "cores": len(os.sched_getaffinity(0)),
                    "platform": platform.platform(),
                    "python": platform.python_version(),
                },
                own_host=tuple(this_host().to_json()),
                own_clock=this_clock(),
            )
        )
        self._emitter.emit(
            IncidentsPlanned(incidents=tuple(incident.planned() for incident in self._incidents.values()))
        )

    async def _open(self) -> None:
        has_undo = any(self._faults[incident.fault].has_undo for incident in self._incidents.values())
        self._executor.open(has_watchdog=has_undo or self._backend.may_outlive)
        self._overlaps.start(self._executor.run.run)
        is_user_script = self._job.traits.is_user_script
        await self._control.open(self._folder, may_be_relative=not is_user_script, may_change_user=is_user_script)
        if (reach := self._backend.reach) is not None:
            self._executor.note_hosts(*reach)
        await self._backend.open()
        await self._executor.ready()

    async def _run_main(self) -> None:
        cluster = self._job.cluster()
        limits = self._experiment.limits
        self._main.tell_start()
        running = await self._main.prepare(with_agents=True)
        sessions, emitter = AgentSessions(), Emitter(self._on_event, "injector")
        context = self._fault_context(running, sessions, emitter)
        self._executor.attend(context)
        for executor in self._backend.executors:
            executor.attend(context)
            executor.on_lapse = self._on_lapse
        self._injector = self._control.agents = Injector(
            list(self._incidents.values()),
            self._faults,
            frozenset(range(cluster.num_ranks)),
            context.watch,
            sessions,
            Hosts([self._executor, *self._backend.executors], cluster, self._host_of),
            emitter.emit,
            self._experiment.seed,
            may_fire=lambda ranks, incident: may_fire(ranks, incident, limits, cluster),
            cluster=cluster,
            traits=self._job.traits,
        )
        try:
            await running.start()
            self._injector.start()
            self._main_outcome = await self._finish_main(self._main)
        finally:
            await (self._undoing or self._injector.finish())
            self._injector = None
        if self._checkpoints is not None:
            await self._checkpoints.finish()

    def _host_of(self, node: int) -> str:
        return self._backend.host_of(node) or self._executor.host

    def _fault_context(self, running: RunningJob, sessions: AgentSessions, emitter: Emitter) -> FaultContext:
        checkpoint = self._job.checkpoint
        return FaultContext(
            processes=running,
            inside=sessions,
            watch=Watch(),
            run_folder=self._folder,
            checkpoint_folder=Path(checkpoint.folder) if checkpoint is not None else None,
            has_foreign_checkpoints=self._job.traits.keeps_own_checkpoints,
            emit=emitter.emit,
            links=running.links,
            cluster=self._job.cluster(),
            hosts=self._backend.hosts,
        )

    async def _finish_main(self, main: JobRun) -> Outcome:
        outcome: Outcome = "stopped"
        try:
            outcome = await main.finish(self._before_stop)
        finally:
            main.tell_end(outcome)
        return outcome

    async def _before_stop(self) -> None:
        await self._repairs.close()
        has_ended_itself = self._end is None or not self._end.done()
        if self._checkpoints is not None and self._has_damaged_files and has_ended_itself:
            # Before the files are put back.
            await self._checkpoints.look_at_end()
        if self._injector is not None:
            self._undoing = asyncio.create_task(self._injector.finish())
            await asyncio.wait({self._undoing}, timeout=UNDO_FIRST_SECONDS)

    @property
    def _has_damaged_files(self) -> bool:
        return any(self._faults[incident.fault].scope == "checkpoint" for incident in self._incidents.values())

    def _awaited_until_seconds(self) -> float:
        """Until when `chaos` made the job stand still: something was to be repaired, or it had its grace."""
        if self._preempting:
            return asyncio.get_running_loop().time()
        return self._repairs.awaited_until_seconds

    def _may_be_repaired(self) -> bool:
        return self._repairs.are_due or (self._injector is not None and self._injector.is_striking)

    def _baseline_run(self, job: AnyConfig) -> JobRun:
        # No fault is for it: its agents are told so, and train on.
        self._control.agents = None if job.traits.is_user_script else self._control.agents
        return JobRun(BASELINE_JOB, job, self._backend, self._on_event, self._state)

    async def _close(self, reason: str, message: str) -> None:
        await self._overlaps.stop()
        if self._checkpoints is not None:
            await self._checkpoints.close()
        if self._baseline is not None:
            await self._baseline.stop()
        with suppress(ChaosError):
            await self._backend.close()
        await self._control.close()
        for job in self._backend.jobs:
            # The last events may have told of processes that nobody knew of before.
            await job.stop()
        elsewhere = Farewell.of_all(await asyncio.gather(*(one.close() for one in self._backend.executors)))
        farewell = Farewell.of_all((elsewhere, await self._executor.close(is_clean_elsewhere=elsewhere.is_clean)))
        for undone in farewell.undone:
            number, fault, evidence = undone["incident"], undone["fault"], undone["evidence"]
            self._emitter.emit(Undone(incident=number, fault=fault, evidence=evidence))
        known = [owned for job in self._backend.jobs for owned in job.leftovers()]
        pids = {owned.process.pid for owned in known if owned.process.is_here}
        self._emitter.emit(
            Residue(
                processes=(
                    *(owned.to_dict() for owned in known),
                    *(one for one in farewell.processes if "host" in one or one["pid"] not in pids),
                ),
                undo_pending=tuple(farewell.undo_pending),
                left=tuple(farewell.left),
            )
        )
        # This one too: a log with fewer has lost some.
        num_events = self._recorder.num_events + 1
        self._emitter.emit(RunEnded(reason=reason, message=message, num_events=num_events))
        self._recorder.close()

    # ---- what happens ----

    def _on_event(self, event: Event) -> None:
        if self._log_failure is None:
            try:
                self._recorder.write(event)
            except EnvironmentFailure as error:
                self._log_failure = error
                self._finish("failed", str(error))
        record = self._state.feed(event)
        self._view.feed(event)
        self._early_end.feed(event)
        if event.job == BASELINE_JOB and self._baseline is not None and self._baseline.run is not None:
            self._baseline.run.on_event(event)
            if isinstance(record, StepCommitted):
                self._baseline.run.on_step(record)
        if self._checkpoints is not None and event.job == MAIN_JOB and record is not None:
            self._checkpoints.feed(record)
        if self._main.running is None or event.job != MAIN_JOB:
            return
        self._main.on_event(event)
        if self._injector is not None:
            self._injector.on_event(event)
        match record:
            case StepCommitted():
                self._on_step(record)
            case Restarting():
                self._repairs.on_restarting(record.ranks)
            case Regrouped() | JobFailed():
                self._repairs.on_settled()
            case Undone() | UndoFailed():
                self._preempting.discard(record.incident)
            case Injected():
                if record.requeue is not None:
                    self._preempting.add(record.incident)
                self._repairs.on_injected(record.incident, record.step or 0)

    def _on_step(self, record: StepCommitted) -> None:
        step = record.step or 0
        self._main.on_step(record)
        self._repairs.on_step(step)
        if self._baseline is not None:
            self._baseline.on_main_step()
        for condition in self._halts:
            if condition.check(record):
                self._emitter.emit(Halted(condition=condition.text), step=step)
                self._finish("halted", condition.text)

    # ---- the end ----

    def _finish(self, reason: str, message: str) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(reason)
            self._end_message = message

    async def _unless_ended(self, work: Any) -> None:
        """Do `work`, unless the run is ended meanwhile: then cancel it, let it clean up, and raise _Ended."""
        assert self._end is not None
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, self._end}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Ctrl-C before our handlers were in place: asyncio's own has cancelled us.
            self._on_signal(signal.SIGINT)
        if not self._end.done():
            await task
            return
        task.cancel()
        with suppress(asyncio.CancelledError, ChaosError):
            await task
        raise _Ended(self._end.result(), self._end_message)

    def _on_lapse(self, text: str) -> None:
        # What was undone behind the injector's back was not active for as long as it should have been.
        self._emitter.emit(Halted(condition=text), step=self._main.committed_steps or None)
        self._finish("halted", text)

    def _on_watchdog_lost(self, text: str, is_replaced: bool) -> None:
        next_one = "a new one was started" if is_replaced else "no new one could be started"
        self._emitter.emit(Warned(message=f"{text}; {next_one}"))
        if not is_replaced:
            self._finish("failed", f"{text}, and without a watchdog nothing is injected")

    def _on_signal(self, number: signal.Signals) -> None:
        self._emitter.emit(Interrupted(signal=number.name))
        self._finish("interrupted", number.name)


class _Ended(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class _Signals:
    """Ctrl-C, SIGTERM and a closed terminal end the run in order while this is entered.

    Under `nohup`, which ignores SIGHUP, a closed terminal is to end nothing.
    """

    def __init__(self, on_signal: Callable[[signal.Signals], None]) -> None:
        self._on_signal = on_signal
        is_for_good = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._numbers = (signal.SIGINT, signal.SIGTERM, *(() if is_for_good else (signal.SIGHUP,)))

    def __enter__(self) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)
