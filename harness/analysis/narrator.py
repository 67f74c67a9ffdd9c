"""One sentence for each key event, none for other events."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
from mecefo_runtime.system.events import MAIN_JOB, TWIN_JOB, Event
from mecefo_runtime.system.host import pid_of

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


class Narrator:
    """Tells a run's events, in the order fed. It remembers just what later sentences refer to."""

    def __init__(self) -> None:
        self._injected: dict[int, Event] = {}
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
        # Processes of ranks that reported their end.
        self._finished_pids: set[int] = set()
        # Jobs that are commands, whose ranks have several attempts.
        self._commands: set[str] = set()
        # The newest attempt of each, and those in which a later one began without the number of its first step.
        self._attempts: dict[str, int] = {}
        self._not_counted: set[str] = set()

    def tell(self, event: Event) -> str | None:
        """What happened, in one sentence without its time and step; None when it is no key event."""
        if event.kind == "step_committed" and (event.step or 0) >= self._steps.get(event.job, 0) > 0:
            self._ending.add(event.job)
        teller = getattr(self, f"_tell_{event.kind}", None)
        try:
            sentence = teller(event, event.fields) if teller else None
        except Exception as error:
            # Of a damaged log, or of one by another version: the others are told all the same.
            sentence = could_not(f"sentence of {event.kind}", error)
        if sentence is None:
            return None
        return one_line(sentence if event.job == MAIN_JOB else f"fault-free baseline: {sentence}")

    def _tell_incidents_planned(self, event: Event, fields: Mapping[str, Any]) -> str | None:
        planned = [f"{i.get('fault')} on {target_text(i.get('target'))} {when(i)}" for i in fields.get("incidents", [])]
        return f"planned: {'; '.join(planned)}" if planned else None

    def _tell_nodes_starting(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._num_nodes = int(fields.get("num_nodes") or 0)
        return f"starting {count(self._num_nodes, 'node')}: containers of the image {fields.get('image')}"

    def _tell_container_ready(self, event: Event, fields: Mapping[str, Any]) -> str | None:
        kind, _, node = str(fields.get("container")).partition("-")
        if kind != "node":
            return None
        is_first = int(fields.get("container_attempt") or 1) == 1
        self._nodes_up.add(node)
        of_all = f", {len(self._nodes_up)} of {self._num_nodes}" if is_first else ""
        return f"node {node} is up{of_all}: its container was ready after {name_seconds(fields.get('start_seconds'))}"

    def _tell_job_started(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._steps[event.job] = int(fields.get("steps") or 0)
        ranks = count(fields.get("num_ranks") or 0, "rank")
        if fields.get("command"):
            self._commands.add(event.job)
            return f"job started: {fields['command']}"
        emulated = fields.get("emulation")
        steps = count(fields.get("steps") or 0, "step") + (f", emulated {emulated['device']}" if emulated else "")
        steps += f", snapshots {fields['snapshots']}" if fields.get("snapshots") else ""
        return f"job started: {ranks}, {steps}{', no faults (baseline)' if event.job == TWIN_JOB else ''}"

    def _tell_held(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._is_striking = True
        rank, node, phase = (fields.get(name) for name in ("held_rank", "held_node", "phase"))
        whom = "the target" if rank is None else f"rank {rank}"
        how = _HELD.get(phase, f"{whom} held in the {phase} phase of the step")
        return how.format(whom=whom, node=node, step=event.step)

    def _tell_orphans_ended(self, event: Event, fields: Mapping[str, Any]) -> str:
        ranks = fields.get("ranks") or ()
        among = f", {name_ranks(ranks)} among them" if ranks else ""
        left = count(int(fields.get("num_processes") or 0), "process")
        return f"the command is over: {left} that it left running ended by chaos{among}"

    def _tell_injected(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._injected[fields.get("incident", 0)] = event
        self._killed_pids.update(pid for process in fields.get("processes", ()) if (pid := pid_of(process)))
        whom = _whom(fields)
        return f"{fields.get('fault')} applied to {target_text(fields.get('target'))}{': ' if whom else ''}{whom}"

    def _tell_verified(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._is_striking = False
        injected = self._injected.get(fields.get("incident", 0))
        evidence = evidence_text(fields.get("evidence"))
        if injected is None or not injected.fields.get("is_loss"):
            return f"verified: {evidence}" if evidence else "verified"
        whom = _whom(injected.fields)
        target = target_text(injected.fields.get("target"))
        # Some are killed from outside, some end of what happens in them.
        kind = registry().get(str(injected.fields.get("fault")))
        how = "killed" if kind is not None and kind.kills else "ended"
        if _is_of_ranks_only(fields.get("evidence")):
            return f"verified: {whom} of {target} {how}; the launcher serves other nodes too and was left running"
        return (
            f"verified: {target} {how}, process exit of {whom} confirmed"
            if whom
            else f"verified: {target} {how}, {evidence}"
        )

    def _tell_unverified(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._is_striking = False
        if fields.get("incident", 0) not in self._injected:
            return f"incident {fields.get('incident')} was NOT injected: {fields.get('reason')}"
        return f"the fault could NOT be verified: {fields.get('reason')}"

    def _tell_not_due(self, event: Event, fields: Mapping[str, Any]) -> str:
        return f"incident {fields.get('incident')} did not fire: {fields.get('reason')}"

    def _tell_detected(self, event: Event, fields: Mapping[str, Any]) -> str:
        how = str(fields.get("how"))
        lost = fields.get("lost", ())
        if how == "drain":
            return f"{name_ranks(lost)} released by the job, after the step was committed"
        ways = _HOW_NOTICED_ONE if _size(lost) == 1 else _HOW_NOTICED
        return f"failure of {name_ranks(lost)} detected: {ways.get(how, how)}"

    def _tell_drain_requested(self, event: Event, fields: Mapping[str, Any]) -> str:
        ranks = name_ranks(fields.get("ranks", ()))
        return f"node {fields.get('leaving_node')} will be drained: {ranks} leave the job in an orderly way"

    def _tell_layout(self, event: Event, fields: Mapping[str, Any]) -> str | None:
        if fields.get("reason") == "heal":
            return "corrupted state is replaced from peers"
        if fields.get("reason") not in ("loss", "retry", "balance", "drain"):
            return None
        if (fetched := fields.get("num_fetched_in_background")) and fields["reason"] == "loss":
            ranks = count(_size(fields.get("members")), "rank")
            units = count(fetched, "unit")
            return f"{ranks} continue with the state they have; {units} of state are fetched in the background"
        again = " again" if fields["reason"] == "retry" else ""
        degraded, projected = (num_layers(fields.get("layout"), how) for how in ("degraded", "projected"))
        approximated = f", {count(degraded, 'layer')} approximated" if degraded else ""
        approximated += f", {count(projected, 'layer')} with low-rank weight gradients" if projected else ""
        if depth := fields.get("stack_depth"):
            replicas = count(_size((fields.get("layout") or {}).get("replicas")), "replica")
            return f"{replicas} compute all shards of a step, at most {depth} each{approximated}"
        return f"layers redistributed{again} over {count(_size(fields.get('members')), 'rank')}{approximated}"

    def _tell_regrouped(self, event: Event, fields: Mapping[str, Any]) -> str | None:
        ranks = count(_size(fields.get("members")), "rank")
        if fields.get("reason") == "start":
            return f"{ranks} connected; training begins"
        size, seconds = fields.get("transfer_bytes") or 0, fields.get("transfer_seconds") or 0.0
        moved = f"; {name_bytes(size)} of state transferred in {seconds:.2f} s" if size else ""
        why = "; ".join(f"no {rung}: {reason}" for rung, reason in (fields.get("passed_over") or {}).items())
        return f"process groups rebuilt: {ranks} reconnected{moved}{f' ({why})' if why else ''}"

    def _tell_step_unfit(self, event: Event, fields: Mapping[str, Any]) -> str | None:
        number, last_step = self._rejected.get(event.job, (0, -1))
        step = event.step or 0
        number = number + 1 if step - last_step <= 1 else 1
        self._rejected[event.job] = (number, step)
        verdict = _REJECTED.get(str(fields.get("verdict")))
        sentence = f"step rejected ({fields.get('reason')}): {verdict}"
        if number <= _REJECTED_TOLD:
            return sentence
        # A model that is corrupted permanently corrupts every later step.
        return f"{sentence}; {number} times in a row" if number & (number - 1) == 0 else None

    def _tell_transfer_damaged(self, event: Event, fields: Mapping[str, Any]) -> str:
        unit = str(fields.get("unit")).replace("layer.", "layer ")
        return f"the state of {unit} from rank {fields.get('source_rank')} reached rank {event.rank} damaged"

    def _tell_culprit_named(self, event: Event, fields: Mapping[str, Any]) -> str:
        return f"{fields.get('how')} names {name_ranks(fields.get('ranks', ()))} as the first to fail"

    def _tell_checkpoint_failed(self, event: Event, fields: Mapping[str, Any]) -> str:
        return f"checkpoint not saved by rank {event.rank}: {fields.get('reason')}"

    def _tell_checkpoint_restored(self, event: Event, fields: Mapping[str, Any]) -> str:
        return f"all ranks continue from the checkpoint of step {event.step}"

    def _tell_snapshot_restored(self, event: Event, fields: Mapping[str, Any]) -> str:
        rebuilt = f", those of {name_nodes(lost)} from parity" if (lost := fields.get("rebuilt_nodes")) else ""
        return f"all ranks continue from the snapshots of step {event.step} in the nodes' memory{rebuilt}"

    def _tell_snapshots_unprotected(self, event: Event, fields: Mapping[str, Any]) -> str:
        lost, left = name_nodes(fields.get("nodes") or ()), fields.get("losses_left") or "no"
        return f"the snapshots of {lost} are lost: those of step {event.step} survive {left} more losses in its group"

    def _tell_snapshots_protected(self, event: Event, fields: Mapping[str, Any]) -> str:
        what = "the lost ones were rebuilt" if fields.get("is_reencoded") else "by newer ones"
        after = name_seconds(fields.get("seconds"))
        return f"the snapshots of step {event.step} are protected after {after}: {what}"

    def _tell_snapshot_interval(self, event: Event, fields: Mapping[str, Any]) -> str:
        cost, mtbf = (name_seconds(fields.get(name)) for name in ("stopped_seconds", "mtbf_seconds"))
        steps = count(fields.get("every_steps") or 0, "step")
        return f"snapshots every {steps} from now on: one stops training for {cost}, and losses are {mtbf} apart"

    def _tell_restarting(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._restarting.add(event.job)
        return "all ranks exit; the job restarts when all of them can"

    def _tell_restart_started(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._restarting.discard(event.job)
        return f"{count(_size(fields.get('ranks')), 'rank')} restart"

    def _tell_repair_started(self, event: Event, fields: Mapping[str, Any]) -> str:
        nodes, ranks = name_nodes(fields.get("nodes", ())), name_ranks(fields.get("ranks", ()))
        whom = " with ".join(part for part in (nodes, ranks) if part) or "the target"
        num_first = _size(fields.get("nodes")) or _size(fields.get("ranks"))
        return f"repair: {whom} {'restart' if num_first > 1 else 'restarts'}"

    def _tell_rejoined(self, event: Event, fields: Mapping[str, Any]) -> str:
        return f"{name_ranks(fields.get('ranks', ()))} rejoined the job"

    def _tell_coordinator_restarted(self, event: Event, fields: Mapping[str, Any]) -> str:
        return (
            f"the coordinator has restarted: it collected the state from {count(_size(fields.get('members')), 'rank')}"
        )

    def _tell_undone(self, event: Event, fields: Mapping[str, Any]) -> str | None:
        injected = self._injected.get(fields.get("incident", 0))
        if injected is None or not injected.fields.get("goes_on"):
            return None
        evidence = fields.get("evidence")
        # Whose pids it was, and who undid it, is for the log.
        how = evidence_text(evidence["undone"] if isinstance(evidence, Mapping) and "undone" in evidence else evidence)
        kind = registry().get(str(injected.fields.get("fault")))
        is_shown = bool(how) and (kind is None or kind.shows_undo)
        return f"{injected.fields.get('fault')} undone{f': {how}' if is_shown else ''}"

    def _tell_undo_failed(self, event: Event, fields: Mapping[str, Any]) -> str:
        return f"a fault could NOT be undone: {fields.get('reason')}. see ledger.jsonl in the run's folder"

    def _tell_rank_finished(self, event: Event, fields: Mapping[str, Any]) -> None:
        self._finished_pids.add(event.pid)

    def _tell_process_exited(self, event: Event, fields: Mapping[str, Any]) -> str | None:
        # Between the hold and the proof the target's processes end one by one, often before their pids were announced;
        # and once the job is over, all of them are ended.
        by_design = self._is_striking or fields.get("exited_pid") in self._killed_pids or event.job in self._ending
        # How a rank of another launcher ended is unknown, but one that reported its end has completed.
        by_design = by_design or (fields.get("exit") is None and fields.get("exited_pid") in self._finished_pids)
        by_design = by_design or (fields.get("role") == "rank" and event.job in self._restarting)
        if fields.get("role") == "launcher":
            # What it leaves behind is ended, by itself or by us.
            self._ending.add(event.job)
        if by_design or fields.get("exit") == 0:
            return None
        who = "snapshot process" if fields.get("role") == "snapshots" else f"process of {fields.get('role')}"
        if fields.get("exited_rank") is not None:
            who = f"process of rank {fields['exited_rank']}"
            if event.job in self._commands and fields.get("rank_attempt") is not None:
                who += f" (pid {fields.get('exited_pid')}, attempt {fields['rank_attempt']})"
        elif fields.get("exited_node") is not None:
            who += f" of node {fields['exited_node']}"
        how = f": {exit_text(fields['exit'])}" if fields.get("exit") is not None else ""
        return f"{who} ended unexpectedly{how}"

    def _tell_attempt_started(self, event: Event, fields: Mapping[str, Any]) -> str:
        ranks, number = count(fields.get("world_size") or 0, "rank"), fields.get("attempt_number")
        self._attempts[event.job] = int(number or 1)
        return f"{ranks} found" if number == 1 else f"the launcher restarted the job: attempt {number}, {ranks}"

    def _tell_steps_counted(self, event: Event, fields: Mapping[str, Any]) -> None:
        if self._attempts.get(event.job, 1) > 1 and fields.get("count_kept_by") == "nobody":
            self._not_counted.add(event.job)

    def _tell_no_step_seen(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._ending.add(event.job)
        return "the command ended with exit code 0, and no training step was seen in it"

    def _tell_job_failed(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._ending.add(event.job)
        return f"the job cannot continue: {fields.get('reason')}"

    def _tell_job_ended(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._ending.add(event.job)
        if event.job == MAIN_JOB:
            # The baseline may now be ended and begun again.
            self._ending.add(TWIN_JOB)
        if event.job in self._not_counted:
            return f"job {fields.get('outcome')}; how many steps are committed is not known"
        return f"job {fields.get('outcome')} with {count(fields.get('steps_committed') or 0, 'step')} committed"

    def _tell_run_overlapped(self, event: Event, fields: Mapping[str, Any]) -> str:
        where = fields.get("folder") or f"{fields.get('other_run')}, of the user with the number {fields.get('uid')}"
        if fields.get("ended_monotonic") is not None:
            return f"the other run of chaos has ended: {where}"
        return f"another run of chaos shares this machine, and times are longer: {where}"

    def _tell_halted(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._ending.update((MAIN_JOB, TWIN_JOB))
        return f"halted: {fields.get('condition')}"

    def _tell_aborted(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._ending.update((MAIN_JOB, TWIN_JOB))
        return f"gate '{fields.get('gate')}' is certain to fail, the run ends: {fields.get('reason')}"

    def _tell_interrupted(self, event: Event, fields: Mapping[str, Any]) -> str:
        self._ending.update((MAIN_JOB, TWIN_JOB))
        return f"interrupted by {fields.get('signal')}; cleaning up"

    def _tell_residue(self, event: Event, fields: Mapping[str, Any]) -> str | None:
        nouns = {"processes": "process", "undo_pending": "fault not undone", "left": "thing"}
        left = [count(size, noun) for key, noun in nouns.items() if (size := _size(fields.get(key)))]
        return f"left behind: {', '.join(left)}. see ledger.jsonl and events.jsonl" if left else None

    def _tell_run_ended(self, event: Event, fields: Mapping[str, Any]) -> str | None:
        # What was completed, halted, interrupted or aborted has an event of its own. Why the tool failed is the first
        # sentence of the verdict, which follows.
        return "run failed" if fields.get("reason") == "failed" else None

    def _tell_warning(self, event: Event, fields: Mapping[str, Any]) -> str:
        return f"warning: {_GLOO_NOISE.sub('', str(fields.get('message')))}"


def _is_of_ranks_only(evidence: object) -> bool:
    return isinstance(evidence, Mapping) and bool(evidence.get("ranks_only"))


def _whom(fields: Mapping[str, Any]) -> str:
    """`ranks 4 and 5 (5 processes)`."""
    processes = _size(fields.get("processes"))
    named = name_ranks(fields.get("ranks") or ())
    if not processes:
        return named
    return f"{named} ({count(processes, 'process')})" if named else count(processes, "process")


def _size(value: object) -> int:
    """How many: of a list its length, of a number itself."""
    if isinstance(value, int):
        return value
    return len(value) if isinstance(value, list | tuple | dict | set | frozenset) else 0
