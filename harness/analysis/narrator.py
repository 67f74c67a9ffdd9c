"""One sentence for each key event, none for other events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from chaos.faults import registry
from harness.analysis.contained import could_not
from harness.analysis.words import (
    count,
    evidence_text,
    exit_text,
    name_bytes,
    name_nodes,
    name_ranks,
    name_seconds,
    num_layers,
    one_line,
    target_text,
    when,
)
from mecefo_runtime.system.command_records import NoStepSeen, OrphansEnded, StateChecksums, StepsCounted
from mecefo_runtime.system.events import BASELINE_JOB, MAIN_JOB, Event
from mecefo_runtime.system.host import ForeignPid, pid_of
from mecefo_runtime.system.job_records import (
    AttemptStarted,
    CheckpointFailed,
    CheckpointRestored,
    CommandRequeued,
    CoordinatorRestarted,
    CulpritNamed,
    Detected,
    DrainRequested,
    JobEnded,
    JobFailed,
    JobStarted,
    LayoutTold,
    ProcessExited,
    RankFinished,
    Regrouped,
    Rejoined,
    Restarting,
    RestartStarted,
    SnapshotIntervalChosen,
    SnapshotRestored,
    SnapshotsProtected,
    SnapshotsUnprotected,
    StepCommitted,
    StepUnfit,
    TransferDamaged,
)
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.records import parse
from mecefo_runtime.system.run_records import (
    Aborted,
    ContainerReady,
    Halted,
    Held,
    HostLost,
    HostReached,
    IncidentsPlanned,
    Injected,
    Interrupted,
    NodesStarting,
    NotDue,
    RepairStarted,
    Residue,
    RunEnded,
    RunOverlapped,
    UndoFailed,
    Undone,
    Unverified,
    Verified,
    Warned,
)

_HOW_NOTICED = {
    "supervisor": "their supervisor saw the processes exit",
    "connection": "their connections closed",
    "heartbeat": "their heartbeats stopped",
    "peers": "peers cannot reach them",
    "health": "their values were corrupted",
}
_HOW_NOTICED_ONE = {
    how: words.replace("processes", "process").replace("their", "its").replace("them", "it")
    for how, words in _HOW_NOTICED.items()
}
_HELD: Mapping[Any, str] = {
    "snapshot": "{whom} held in the middle of copying the snapshot of step {step}",
    "encode": "node {node}'s snapshot process held while it encodes the snapshot of step {step}",
}
_REJECTED = {
    "repeat": "it is recomputed",
    "skip": "it is skipped",
    "evict": "the rank is evicted",
    "heal": "its state is restored from peers",
}

# Where in its sources gloo was, and its guesses at the cause: the log keeps them.
_GLOO_NOISE = re.compile(r"\[\S*/gloo/\S*:\d+\] | This is typically caused by .*", re.DOTALL)
# This many in a row get one line each; later ones only each time that the number has doubled.
_REJECTED_TOLD = 4
_MAX_NAMED_HOSTS = 8
# Most of a log, and nothing is told of them.
_FREQUENT = frozenset({StepCommitted.KIND, StateChecksums.KIND})


def _on_host(pid: object) -> str:
    return f" on {pid.host}" if isinstance(pid, ForeignPid) else ""


def _hosts_in_short(names: Sequence[str]) -> str:
    if len(names) <= _MAX_NAMED_HOSTS:
        return ", ".join(names)
    return f"{', '.join(names[:_MAX_NAMED_HOSTS])} and {len(names) - _MAX_NAMED_HOSTS} others"


class Narrator:
    """Tells a run's events, in the order fed. It remembers just what later sentences refer to."""

    def __init__(self) -> None:
        self._injected: dict[int, Injected] = {}
        self._is_striking = False
        self._killed_pids: set[int] = set()
        # How many steps each job is to have.
        self._steps: dict[str, int] = {}
        # How often in a row a step of a job was found rejected, and which was the last.
        self._rejected: dict[str, tuple[int, int]] = {}
        # Jobs whose processes end because the job is over.
        self._ending: set[str] = set()
        # Jobs whose ranks all end, to be started again.
        self._restarting: set[str] = set()
        # Nodes that are up, of those that a run begins with.
        self._nodes_up: set[str] = set()
        self._num_nodes = 0
        # Hosts whose agents are ready, until the job starts.
        self._hosts: list[str] = []
        # Processes of ranks that reported their end.
        self._finished_pids: set[int] = set()
        # Jobs that are commands, whose ranks have several attempts.
        self._commands: set[str] = set()
        # The newest attempt of each, and those in which a later one began without the number of its first step.
        self._attempts: dict[str, int] = {}
        self._is_requeued = False
        self._not_counted: set[str] = set()

    def tell(self, event: Event) -> str | None:
        """What happened, in one sentence without its time and step; None when it is no key event."""
        if event.kind == StepCommitted.KIND and (event.step or 0) >= self._steps.get(event.job, 0) > 0:
            self._ending.add(event.job)
        if event.kind in _FREQUENT:
            return None
        try:
            sentence = self._sentence(parse(event))
        except Exception as error:
            # Of a damaged log, or of one by another version: the others are told all the same.
            sentence = could_not(f"sentence of {event.kind}", error)
        if sentence is None:
            return None
        return one_line(sentence if event.job == MAIN_JOB else f"fault-free baseline: {sentence}")

    def _sentence(self, record: Record) -> str | None:
        parts = (
            self._of_the_start,
            self._of_an_incident,
            self._of_the_membership,
            self._of_processes,
            self._of_the_end,
            _of_saved_state,
            _of_others,
        )
        return next((sentence for part in parts if (sentence := part(record)) is not None), None)

    def _of_the_start(self, record: Record) -> str | None:
        match record:
            case IncidentsPlanned(incidents=incidents) if incidents:
                planned = [f"{one.fault} on {target_text(one.target)} {when(one)}" for one in incidents]
                return f"planned: {'; '.join(planned)}"
            case NodesStarting():
                self._num_nodes = record.num_nodes or 0
                return f"starting {count(self._num_nodes, 'node')}: containers of the image {record.image}"
            case ContainerReady():
                return self._container_ready(record)
            case HostReached():
                return self._host_reached(record)
            case JobStarted():
                return self._job_started(record)
            case AttemptStarted(attempt_number=number):
                self._attempts[record.job] = number
                ranks = count(record.world_size or 0, "rank")
                if number > 1 and self._is_requeued:
                    self._is_requeued = False
                    return f"the job has started again: attempt {number}, {ranks}"
                return f"{ranks} found" if number == 1 else f"the launcher restarted the job: attempt {number}, {ranks}"
            case CommandRequeued(exit=code):
                self._is_requeued = True
                how = "has ended" if code is None else f"was {exit_text(code)}"
                how = f"has ended with {exit_text(code)}" if code is not None and code >= 0 else how
                return f"requeue: the command {how}, and is started again"
            case StepsCounted(count_kept_by="nobody") if self._attempts.get(record.job, 1) > 1:
                self._not_counted.add(record.job)
        return None

    def _container_ready(self, ready: ContainerReady) -> str | None:
        kind, _, node = str(ready.container).partition("-")
        if kind != "node":
            return None
        self._nodes_up.add(node)
        of_all = f", {len(self._nodes_up)} of {self._num_nodes}" if (ready.container_attempt or 1) == 1 else ""
        return f"node {node} is up{of_all}: its container was ready after {name_seconds(ready.start_seconds)}"

    def _host_reached(self, reached: HostReached) -> str | None:
        name = reached.reached[0] if reached.reached else "a host"
        if reached.num_starts == 1 and not reached.healed:
            # They are named together when the job starts.
            self._hosts.append(name)
            return None
        healed = f"; undone there: {', '.join(reached.healed)}" if reached.healed else ""
        return f"{name} is observed again, from now on{healed}"

    def _job_started(self, started: JobStarted) -> str:
        self._steps[started.job] = started.steps or 0
        if started.command:
            self._commands.add(started.job)
            agents = f"agents are ready on {_hosts_in_short(self._hosts)}; " if self._hosts else ""
            self._hosts = []
            return f"{agents}job started: {started.command}"
        steps = count(started.steps or 0, "step")
        steps += f", emulated {started.emulation['device']}" if started.emulation else ""
        steps += f", snapshots {started.snapshots}" if started.snapshots else ""
        without = ", no faults (baseline)" if started.job == BASELINE_JOB else ""
        return f"job started: {count(started.num_ranks or 0, 'rank')}, {steps}{without}"

    def _of_an_incident(self, record: Record) -> str | None:
        match record:
            case Held(held_rank=rank, phase=phase):
                self._is_striking = True
                whom = "the target" if rank is None else f"rank {rank}"
                how = _HELD.get(phase, f"{whom} held in the {phase} phase of the step")
                return how.format(whom=whom, node=record.held_node, step=record.step)
            case Injected():
                self._injected[record.incident] = record
                self._killed_pids.update(pid for process in record.processes if (pid := pid_of(process)))
                whom = _whom(record)
                return f"{record.fault} applied to {target_text(record.target)}{': ' if whom else ''}{whom}"
            case Verified():
                self._is_striking = False
                return _verified(record, self._injected.get(record.incident))
            case Unverified(incident=incident, reason=reason):
                self._is_striking = False
                if incident not in self._injected:
                    return f"incident {incident} was NOT injected: {reason}"
                return f"the fault could NOT be verified: {reason}"
            case NotDue(incident=incident, reason=reason):
                return f"incident {incident} did not fire: {reason}"
            case RepairStarted(nodes=nodes, ranks=ranks):
                whom = " with ".join(filter(None, (name_nodes(nodes), name_ranks(ranks)))) or "the target"
                return f"repair: {whom} {'restart' if len(nodes or ranks) > 1 else 'restarts'}"
            case Undone():
                return _undone(record, self._injected.get(record.incident))
            case UndoFailed(reason=reason):
                return f"a fault could NOT be undone: {reason}. see ledger.jsonl in the run's folder"
        return None

    def _of_the_membership(self, record: Record) -> str | None:
        match record:
            case Detected(lost=lost, how="drain"):
                return f"{name_ranks(lost)} released by the job, after the step was committed"
            case Detected(lost=lost):
                ways, how = _HOW_NOTICED_ONE if len(lost) == 1 else _HOW_NOTICED, str(record.how)
                return f"failure of {name_ranks(lost)} detected: {ways.get(how, how)}"
            case CulpritNamed(ranks=ranks, how=how):
                return f"{how} names {name_ranks(ranks)} as the first to fail"
            case DrainRequested(leaving_node=node, ranks=ranks):
                return f"node {node} will be drained: {name_ranks(ranks)} leave the job in an orderly way"
            case LayoutTold():
                return _layout(record)
            case Regrouped():
                return _regrouped(record)
            case StepUnfit():
                return self._step_unfit(record)
            case HostLost(lost=(str(name), *_), message=message):
                return f"{name} is not observed from now on: {message}"
            case Restarting():
                self._restarting.add(record.job)
                return "all ranks exit; the job restarts when all of them can"
            case RestartStarted(ranks=ranks):
                self._restarting.discard(record.job)
                return f"{count(len(ranks), 'rank')} restart"
            case Rejoined(ranks=ranks):
                return f"{name_ranks(ranks)} rejoined the job"
            case CoordinatorRestarted(members=members):
                return f"the coordinator has restarted: it collected the state from {count(len(members), 'rank')}"
        return None

    def _step_unfit(self, unfit: StepUnfit) -> str | None:
        number, last_step = self._rejected.get(unfit.job, (0, -1))
        step = unfit.step or 0
        number = number + 1 if step - last_step <= 1 else 1
        self._rejected[unfit.job] = (number, step)
        sentence = f"step rejected ({unfit.reason}): {_REJECTED.get(unfit.verdict)}"
        if number <= _REJECTED_TOLD:
            return sentence
        # A model that is corrupted permanently corrupts every later step.
        return f"{sentence}; {number} times in a row" if number & (number - 1) == 0 else None

    def _of_processes(self, record: Record) -> str | None:
        match record:
            case RankFinished():
                self._finished_pids.add(record.pid)
            case ProcessExited():
                return self._process_exited(record)
            case OrphansEnded(ranks=ranks):
                among = f", {name_ranks(ranks)} among them" if ranks else ""
                left = count(record.num_processes, "process")
                return f"the command is over: {left} that it left running ended by chaos{among}"
        return None

    def _process_exited(self, exited: ProcessExited) -> str | None:
        # Between the hold and the proof the target's processes end one by one, often before their pids were announced;
        # and once the job is over, all of them are ended.
        by_design = self._is_striking or exited.exited_pid in self._killed_pids or exited.job in self._ending
        # How a rank of another launcher ended is unknown, but one that reported its end has completed.
        by_design = by_design or (exited.exit is None and exited.exited_pid in self._finished_pids)
        by_design = by_design or (exited.role == "rank" and exited.job in self._restarting)
        if exited.role == "launcher":
            # What it leaves behind is ended, by itself or by us.
            self._ending.add(exited.job)
        if by_design or exited.exit == 0:
            return None
        who = "snapshot process" if exited.role == "snapshots" else f"process of {exited.role}"
        if exited.exited_rank is not None:
            who = f"process of rank {exited.exited_rank}"
            if exited.job in self._commands and exited.rank_attempt is not None:
                who += f" (pid {exited.exited_pid}{_on_host(exited.exited_pid)}, attempt {exited.rank_attempt})"
        elif exited.exited_node is not None:
            who += f" of node {exited.exited_node}"
        how = f": {exit_text(exited.exit)}" if exited.exit is not None else ""
        return f"{who} ended unexpectedly{how}"

    def _of_the_end(self, record: Record) -> str | None:
        match record:
            case JobEnded() if record.job == MAIN_JOB:
                # The baseline may now be ended and begun again.
                self._ending.update((MAIN_JOB, BASELINE_JOB))
            case JobEnded() | JobFailed() | NoStepSeen():
                self._ending.add(record.job)
            case Halted() | Aborted() | Interrupted():
                self._ending.update((MAIN_JOB, BASELINE_JOB))
        match record:
            case NoStepSeen():
                return "the command ended with exit code 0, and no training step was seen in it"
            case JobFailed(reason=reason):
                return f"the job cannot continue: {reason}"
            case JobEnded(outcome=outcome) if record.job in self._not_counted:
                return f"job {outcome}; how many steps are committed is not known"
            case JobEnded(outcome=outcome):
                return f"job {outcome} with {count(record.steps_committed or 0, 'step')} committed"
            case Halted(condition=condition):
                return f"halted: {condition}"
            case Aborted(gate=gate, reason=reason):
                return f"gate '{gate}' is certain to fail, the run ends: {reason}"
            case Interrupted(signal=signal):
                return f"interrupted by {signal}; cleaning up"
            case Residue():
                nouns = {"process": record.processes, "fault not undone": record.undo_pending, "thing": record.left}
                left = [count(len(those), noun) for noun, those in nouns.items() if those]
                return f"left behind: {', '.join(left)}. see ledger.jsonl and events.jsonl" if left else None
            case RunEnded(reason="failed"):
                # What was completed, halted, interrupted or aborted has an event of its own. Why the tool failed is the
                # first sentence of the verdict, which follows.
                return "run failed"
        return None


def _of_saved_state(record: Record) -> str | None:
    match record:
        case TransferDamaged(unit=unit, source_rank=source):
            what = unit.replace("layer.", "layer ")
            return f"the state of {what} from rank {source} reached rank {record.rank} damaged"
        case CheckpointFailed(reason=reason):
            return f"checkpoint not saved by rank {record.rank}: {reason}"
        case CheckpointRestored():
            return f"all ranks continue from the checkpoint of step {record.step}"
        case SnapshotRestored(rebuilt_nodes=nodes):
            rebuilt = f", those of {name_nodes(nodes)} from parity" if nodes else ""
            return f"all ranks continue from the snapshots of step {record.step} in the nodes' memory{rebuilt}"
        case SnapshotsUnprotected(nodes=nodes):
            those, left = f"those of step {record.step}", record.losses_left or "no"
            return f"the snapshots of {name_nodes(nodes)} are lost: {those} survive {left} more losses in its group"
        case SnapshotsProtected():
            what = "the lost ones were rebuilt" if record.is_reencoded else "by newer ones"
            return f"the snapshots of step {record.step} are protected after {name_seconds(record.seconds)}: {what}"
        case SnapshotIntervalChosen():
            cost, mtbf = name_seconds(record.stopped_seconds), name_seconds(record.mtbf_seconds)
            steps = count(record.every_steps, "step")
            return f"snapshots every {steps} from now on: one stops training for {cost}, and losses are {mtbf} apart"
    return None


def _of_others(record: Record) -> str | None:
    match record:
        case RunOverlapped():
            where = record.folder or f"{record.other_run}, of the user with the number {record.uid}"
            if record.ended_monotonic is not None:
                return f"the other run of chaos has ended: {where}"
            return f"another run of chaos shares this machine, and times are longer: {where}"
        case Warned(message=message):
            return f"warning: {_GLOO_NOISE.sub('', message)}"
    return None


def _verified(verified: Verified, injected: Injected | None) -> str:
    evidence = evidence_text(verified.evidence)
    if injected is None or not injected.is_loss:
        return f"verified: {evidence}" if evidence else "verified"
    whom, target = _whom(injected), target_text(injected.target)
    # Some are killed from outside, some end of what happens in them.
    kind = registry().get(str(injected.fault))
    how = "killed" if kind is not None and kind.kills else "ended"
    if _is_of_ranks_only(verified.evidence):
        return f"verified: {whom} of {target} {how}; the launcher serves other nodes too and was left running"
    return f"verified: {target} {how}, " + (f"process exit of {whom} confirmed" if whom else evidence)


def _undone(undone: Undone, injected: Injected | None) -> str | None:
    if injected is None or not injected.goes_on:
        return None
    evidence = undone.evidence
    # Whose pids it was, and who undid it, is for the log.
    how = evidence_text(evidence["undone"] if isinstance(evidence, Mapping) and "undone" in evidence else evidence)
    kind = registry().get(str(injected.fault))
    is_shown = bool(how) and (kind is None or kind.shows_undo)
    return f"{injected.fault} undone{f': {how}' if is_shown else ''}"


def _layout(layout: LayoutTold) -> str | None:
    if layout.reason == "heal":
        return "corrupted state is replaced from peers"
    if layout.reason not in ("loss", "retry", "balance", "drain"):
        return None
    ranks = count(len(layout.members or ()), "rank")
    if layout.num_fetched_in_background and layout.reason == "loss":
        units = count(layout.num_fetched_in_background, "unit")
        return f"{ranks} continue with the state they have; {units} of state are fetched in the background"
    again = " again" if layout.reason == "retry" else ""
    degraded, projected = (num_layers(layout.layout, how) for how in ("degraded", "projected"))
    approximated = f", {count(degraded, 'layer')} approximated" if degraded else ""
    approximated += f", {count(projected, 'layer')} with low-rank weight gradients" if projected else ""
    if layout.stack_depth:
        replicas = count(len((layout.layout or {}).get("replicas") or ()), "replica")
        return f"{replicas} compute all shards of a step, at most {layout.stack_depth} each{approximated}"
    return f"layers redistributed{again} over {ranks}{approximated}"


def _regrouped(regrouped: Regrouped) -> str:
    ranks = count(len(regrouped.members or ()), "rank")
    if regrouped.reason == "start":
        return f"{ranks} connected; training begins"
    size, seconds = regrouped.transfer_bytes, regrouped.transfer_seconds
    moved = f"; {name_bytes(size)} of state transferred in {seconds:.2f} s" if size else ""
    why = "; ".join(f"no {rung}: {reason}" for rung, reason in regrouped.passed_over.items())
    return f"process groups rebuilt: {ranks} reconnected{moved}{f' ({why})' if why else ''}"


def _is_of_ranks_only(evidence: object) -> bool:
    return isinstance(evidence, Mapping) and bool(evidence.get("ranks_only"))


def _whom(injected: Injected) -> str:
    """`ranks 4 and 5 (5 processes)`."""
    processes, named = count(len(injected.processes), "process"), name_ranks(injected.ranks)
    if not injected.processes:
        return named
    return f"{named} ({processes})" if named else processes
