"""Events in, the state that is exported out: each event costs some microseconds, and nothing grows with the run."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.analysis.attempts import COMMAND_RUNTIME
from harness.analysis.regroups import Stall, takes_coordinator
from harness.analysis.steps import CommittedStep
from harness.analysis.telemetry import DeviceErrors, add_errors
from harness.exporter.badput import Badput
from harness.exporter.incidents import Incidents
from harness.exporter.members import Members
from harness.exporter.steps import StepCounts
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.training.exporter import STEP_SECONDS_BUCKETS

_REJECTED_VERDICTS = ("repeat", "skip", "evict", "heal")
_REGROUP_REASONS = ("start", "loss", "rejoin", "retry", "balance", "heal")
_MAX_DEVICES = 4096
_RECENT_CHECKPOINTS = 64


class Fold:
    """What the events fed so far say of a run's job. An event that makes no sense is counted, and changes nothing more.

    `monotonic_seconds` of the newest event, and `unix_offset_seconds` to be added to have Unix time.
    """

    def __init__(self) -> None:
        self.badput = Badput()
        self.incidents = Incidents(self.badput)
        self.members = Members()
        self.steps = StepCounts()
        self.info: dict[str, str] = {}
        self.run_started_seconds: float | None = None
        self.unix_offset_seconds = 0.0
        self.monotonic_seconds = 0.0
        self.is_running = False
        self.ended_seconds: float | None = None
        self.steps_planned: int | None = None
        self.num_missing = 0
        self.newest: Mapping[str, Any] = {}
        self.step_counts = [0] * (len(STEP_SECONDS_BUCKETS) + 1)
        self.step_seconds_sum = 0.0
        self.rejected = dict.fromkeys(_REJECTED_VERDICTS, 0)
        self.regroups = dict.fromkeys(_REGROUP_REASONS, 0)
        self.transfer_bytes = 0
        self.num_checkpoints = 0
        self.devices: dict[int, DeviceErrors] = {}
        self.num_unread = 0
        self.summary: Mapping[str, Any] | None = None
        self.is_command = False
        self._is_cut_short = False
        self._checkpoints: deque[int] = deque(maxlen=_RECENT_CHECKPOINTS)
        # A change of membership that is under way.
        self._stall: Stall | None = None
        self._attempt: tuple[int, float | None, float | None] | None = None
        self._handlers: dict[str, Callable[[Event], None]] = {
            name.removeprefix("_on_"): getattr(self, name) for name in dir(self) if name.startswith("_on_")
        }
        for kind in ("held", "injected", "released", "verified", "unverified", "not_due", "undone", "undo_failed"):
            self._handlers[kind] = self._of_incident

    def feed(self, event: Event) -> None:
        """Take in one event, in the order of arrival."""
        if event.job != MAIN_JOB:
            return
        handler = self._handlers.get(event.kind)
        if handler is None:
            return
        try:
            handler(event)
        except Exception:
            # Of a damaged log, or of one by another version; or a mistake of ours, from which no run is to suffer.
            self.num_unread += 1
            return
        self.monotonic_seconds = max(self.monotonic_seconds, event.monotonic_seconds)

    def judge(self, summary: Mapping[str, Any]) -> None:
        """The run is judged."""
        self.summary = summary

    def goodput_ratio(self, now: float) -> float | None:
        """Productive time over wall clock, as of `now` (CLOCK_MONOTONIC); None before the job.

        The step in flight is given as much time as steps usually take before it counts against the job.
        """
        stretches = self.badput.stretches
        if stretches.started_seconds is None:
            return None
        wall = stretches.settled_seconds - stretches.started_seconds
        if self.is_running:
            wall += max(0.0, now - stretches.settled_seconds - (self.steps.usual_seconds or 0.0))
        return stretches.seconds["productive"] / wall if wall > 0 else None

    def throughput_drop_ratio(self) -> float | None:
        """Of the time under faults so far; None before one was seen to take effect, and without steps before it."""
        before, seconds = self.badput.reference_work_per_second, self.incidents.fault_seconds
        has_taken_effect = any(
            count for (_, outcome), count in self.incidents.outcomes.items() if outcome == "verified"
        )
        if not before or seconds <= 0 or not has_taken_effect:
            return None
        return 1.0 - self.incidents.fault_work / seconds / before

    @property
    def steps_lost(self) -> int:
        """Steps done again, and those that a completed job never committed."""
        return self.steps.num_redone + self.num_missing

    @property
    def undo_pending(self) -> int:
        """Incidents of which something is still to be undone."""
        return len(self.incidents.undo_pending)

    # ---- the run ----

    def _on_run_started(self, event: Event) -> None:
        self.run_started_seconds = event.time_seconds
        experiment = event.fields.get("experiment")
        experiment = experiment if isinstance(experiment, Mapping) else {}
        job = experiment.get("job")
        job = job if isinstance(job, Mapping) else {}
        self.info |= {
            "experiment": str(experiment.get("name", "")),
            "backend": str(experiment.get("backend", "")),
            "runtime": str(job.get("runtime", "")),
            "strategy": str(job.get("strategy") or ""),
            "model": _text(job.get("model")),
        }

    def _on_incidents_planned(self, event: Event) -> None:
        self.incidents.plan(event)
        self.info["faults"] = ",".join(self.incidents.planned)

    def _on_job_started(self, event: Event) -> None:
        fields = event.fields
        self.is_command = fields.get("runtime") == COMMAND_RUNTIME
        self.is_running = True
        steps = fields.get("steps")
        self.steps_planned = int(steps) if steps else None
        self.members.start(int(fields.get("num_ranks") or 0))
        self.badput.stretches.start(event.monotonic_seconds)

    def _on_job_ended(self, event: Event) -> None:
        if not self.is_running:
            return
        self.is_running = False
        self.ended_seconds = event.monotonic_seconds
        if self._stall is not None:
            self._close_stall(max(self._stall.began_seconds, event.monotonic_seconds), None, 0.0)
        is_completed = event.fields.get("outcome") == "completed"
        if is_completed:
            self.num_missing = self.steps.num_missing(self.steps_planned)
        # A job that was interrupted may have been about to notice; one that has all its steps had nothing more to do.
        is_open = self._is_cut_short or (is_completed and not self.num_missing)
        self.badput.end(event.monotonic_seconds, [] if is_open else self.incidents.undetected)
        # The teardown of a job that completed is no training time; one that died stood still until its end.
        self.incidents.end(None if is_completed else event.monotonic_seconds)

    def _on_interrupted(self, event: Event) -> None:
        self._is_cut_short = True

    def _on_halted(self, event: Event) -> None:
        self._is_cut_short = True

    def _on_aborted(self, event: Event) -> None:
        self._is_cut_short = True

    def _on_residue(self, event: Event) -> None:
        self.incidents.undo_pending = frozenset(int(one) for one in event.fields.get("undo_pending") or ())

    # ---- steps ----

    def _on_step_committed(self, event: Event) -> None:
        found = self.steps.feed(event, self.is_command)
        if found is None:
            return
        step, is_redone = found
        self.unix_offset_seconds = event.time_seconds - event.monotonic_seconds
        self._end_attempt(step)
        if self._stall is not None and step.began_seconds > self._stall.began_seconds:
            # Training went on without a regroup.
            self._close_stall(step.began_seconds, None, 0.0)
        is_short = self.members.is_short(step.epoch)
        if not self.steps.is_baseline_final and (is_short or self.steps.first_injected_seconds is not None):
            # Where nothing was injected, ranks are missing that no fault of ours has taken.
            self.badput.compare_with(self.steps.baseline)
        self.incidents.on_commit(step, is_redone)
        is_slow = is_short or self.incidents.is_slow(step)
        self.badput.commit(step, is_redone, is_slow)
        if not is_redone:
            self.newest = event.fields
            self.step_counts[bisect_left(STEP_SECONDS_BUCKETS, step.duration_seconds)] += 1
            self.step_seconds_sum += step.duration_seconds

    def _on_step_unfit(self, event: Event) -> None:
        verdict = str(event.fields["verdict"])
        if verdict in self.rejected:
            self.rejected[verdict] += 1
        self.badput.lost(event.monotonic_seconds)

    def _on_checkpoint_written(self, event: Event) -> None:
        if event.step is None:
            return
        if event.step not in self._checkpoints:
            self._checkpoints.append(event.step)
            self.num_checkpoints += 1
        self.badput.checkpoint(event.step, float(event.fields.get("blocking_seconds", 0.0)))

    # ---- members ----

    def _on_rank_started(self, event: Event) -> None:
        if event.rank is not None:
            self.members.appear(event.rank, is_member=self.is_command)

    def _on_layout(self, event: Event) -> None:
        self.members.lay_out(event.fields)
        if event.fields.get("reason") != "start":
            self._open_stall(event.monotonic_seconds, is_loss=event.fields.get("reason") == "loss")

    def _on_regrouped(self, event: Event) -> None:
        fields, at = event.fields, event.monotonic_seconds
        reason = str(fields.get("reason"))
        self.members.regroup(fields)
        self.members.is_coordinator_up = True
        if reason in self.regroups:
            self.regroups[reason] += 1
        self.transfer_bytes += int(fields.get("transfer_bytes") or 0)
        if reason == "start":
            return
        transfer = float(fields.get("transfer_seconds", 0.0))
        self._open_stall(at - float(fields.get("group_seconds", 0.0)) - transfer, is_loss=reason == "loss")
        self._close_stall(at, at, transfer)

    def _on_detected(self, event: Event) -> None:
        self.members.lose([int(rank) for rank in event.fields.get("lost", ())])
        self.incidents.on_job_event(event)
        self._open_stall(event.monotonic_seconds, is_loss=True)

    def _on_restarting(self, event: Event) -> None:
        self._open_stall(event.monotonic_seconds, is_restart=True)

    def _on_isolated(self, event: Event) -> None:
        self.incidents.on_job_event(event)

    def _on_rejoined(self, event: Event) -> None:
        self.members.join([int(rank) for rank in event.fields.get("ranks", ())])
        self.incidents.on_job_event(event)

    def _on_coordinator_restarted(self, event: Event) -> None:
        self.members.is_coordinator_up = True
        self.badput.coordinator_up(event.monotonic_seconds)
        self.incidents.on_job_event(event)

    def _on_process_started(self, event: Event) -> None:
        self.steps.note_process(event)
        if event.fields.get("role") == "coordinator":
            self.members.is_coordinator_up = True

    def _on_process_exited(self, event: Event) -> None:
        fields = event.fields
        if takes_coordinator(event):
            self.members.is_coordinator_up = False
            self.badput.coordinator_down(event.monotonic_seconds)
        elif fields.get("role") == "rank" and self.is_command:
            self._leave_attempt(fields, event.monotonic_seconds)
            if fields.get("exit") != 0 and fields.get("exited_rank") is not None:
                self.members.lose([int(fields["exited_rank"])])

    def _on_telemetry(self, event: Event) -> None:
        rank = int(event.fields["rank"])
        if rank in self.devices or len(self.devices) < _MAX_DEVICES:
            self.devices[rank] = add_errors(self.devices.get(rank, DeviceErrors()), event)

    def _of_incident(self, event: Event) -> None:
        self.incidents.tell(event, self.is_command)
        if event.kind == "injected":
            self.steps.freeze_baseline(event.monotonic_seconds)
            if not self.steps.is_baseline_final:
                self.badput.compare_with(self.steps.baseline)
            if takes_coordinator(event):
                self.badput.coordinator_down(event.monotonic_seconds)
            if event.fields.get("is_loss"):
                self.members.lose([int(rank) for rank in event.fields.get("ranks") or ()])

    def _on_repair_started(self, event: Event) -> None:
        self.incidents.tell(event, self.is_command)

    # ---- changes of membership, and attempts of an external job ----

    def _open_stall(self, at: float, *, is_loss: bool = False, is_restart: bool = False) -> None:
        known = self._stall or Stall(at, at, None, 0.0, is_loss=False)
        self._stall = replace(known, is_loss=known.is_loss or is_loss, is_restart=known.is_restart or is_restart)

    def _close_stall(self, until: float, regrouped: float | None, transfer_seconds: float) -> None:
        assert self._stall is not None
        transfer = min(transfer_seconds, until - self._stall.began_seconds)
        stall = replace(self._stall, ended_seconds=until, regrouped_seconds=regrouped, transfer_seconds=transfer)
        self._stall = None
        self.incidents.on_stall(stall)
        self.badput.stalled(stall)

    def _on_attempt_started(self, event: Event) -> None:
        number, at = int(event.fields["attempt_number"]), event.monotonic_seconds
        if self._attempt is None:
            self._attempt = (number, None, None)
            return
        _, since, ended = self._attempt
        # One that was over before it came to a step: all of it was waiting.
        last = self.steps.last.committed_seconds if self.steps.last is not None else None
        ended = at if ended is None else ended
        self._attempt = (number, since if since is not None else max(ended, last or ended), None)

    def _leave_attempt(self, fields: Mapping[str, Any], at: float) -> None:
        if self._attempt is not None and fields.get("rank_attempt") == self._attempt[0] and self._attempt[2] is None:
            self._attempt = (self._attempt[0], self._attempt[1], at)

    def _end_attempt(self, step: CommittedStep) -> None:
        """The first step of an attempt: the time since the one before it was over is known."""
        if self._attempt is not None and self._attempt[1] is not None and step.epoch >= self._attempt[0]:
            self.badput.restarted(self._attempt[1], step.began_seconds)
            self._attempt = (self._attempt[0], None, self._attempt[2])


def cumulated(counts: Sequence[int]) -> list[tuple[str, float]]:
    """The buckets of a histogram as (upper bound, how many at most that), the last one `+Inf`."""
    bounds = [*(f"{bound!r}" for bound in STEP_SECONDS_BUCKETS), "+Inf"]
    return [(bound, float(sum(counts[: index + 1]))) for index, bound in enumerate(bounds)]


def _text(value: object) -> str:
    """A value of the experiment as a label; a model that is described at length has no name."""
    return value if isinstance(value, str) else ""
