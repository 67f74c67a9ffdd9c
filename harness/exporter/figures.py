"""The figures that are served: those of the run's state, and the times served before."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from harness.analysis import accounting, integrity, throughput
from harness.analysis.accounting import PRODUCTIVE, Account
from harness.analysis.hosts import HostFigures
from harness.analysis.incident import MeasuredIncident
from harness.analysis.ranks import STARTING, UP
from harness.analysis.state import RunState
from harness.analysis.steps import NOW_STEPS, WORK_UNITS, CommittedStep, num_committed, work_per_second
from harness.analysis.timeline import Timeline
from harness.analysis.violations import is_judged_later
from harness.judging.summary import Summary
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import JobStarted, Regrouped, StepUnfit
from mecefo_runtime.system.run_records import (
    IncidentsPlanned,
    Injected,
    Residue,
    RunEnded,
    RunStarted,
    UndoFailed,
    Undone,
)
from mecefo_runtime.training.exporter import STEP_SECONDS_BUCKETS

REJECTED_VERDICTS = ("repeat", "skip", "evict", "heal")
REGROUP_REASONS = ("start", "loss", "rejoin", "retry", "balance", "heal", "drain")
OUTCOMES = ("verified", "unverified", "not_due")
_MAX_FAULTS = 64
_OTHER = "other"


class Figures:
    """A run as it is served. A figure is what the summary of the log so far says, but for two of a run that continues.

    `goodput_ratio` continues with the clock, and `told_seconds` waits for news that may change it (see there).
    """

    def __init__(self) -> None:
        self.state = RunState()
        self.summary: Summary | None = None
        self._told: dict[str, float] = {}

    def feed(self, event: Event) -> None:
        """Process one event, in the order of arrival."""
        self.state.feed(event)

    def judge(self, summary: Summary) -> None:
        """The run is judged."""
        self.summary = summary

    @property
    def timeline(self) -> Timeline:
        """The main job as far as it has come."""
        return self.state.timeline

    @property
    def has_job(self) -> bool:
        """Whether the job has begun."""
        return self.state.first_of(JobStarted) is not None

    @property
    def has_layout(self) -> bool:
        """Whether ranks hold layers, which move between them."""
        return self.timeline.traits.has_layout

    @property
    def hosts(self) -> tuple[HostFigures, ...]:
        """The hosts that the job is on; none where that is one."""
        return self.state.hosts.figures

    @property
    def info(self) -> dict[str, str]:
        """The identity of the run; empty before it has begun."""
        started = self.state.first_of(RunStarted)
        if started is None:
            return {}
        experiment = started.experiment if isinstance(started.experiment, Mapping) else {}
        job = experiment.get("job")
        job = job if isinstance(job, Mapping) else {}
        model = job.get("model")
        info = {
            "experiment": str(experiment.get("name", "")),
            "backend": str(experiment.get("backend", "")),
            "runtime": str(job.get("runtime", "")),
            "strategy": str(job.get("strategy") or ""),
            # One that is described at length has no name.
            "model": model if isinstance(model, str) else "",
        }
        if self.state.first_of(IncidentsPlanned) is not None:
            info["faults"] = ",".join(self.planned)
        return info

    # ---- steps ----

    @property
    def tokens(self) -> int | None:
        """Of the committed steps, each once; None where the job does not tell."""
        return self._sum("tokens")

    @property
    def samples(self) -> int | None:
        """Of the committed steps, each once; None where the job does not tell."""
        return self._sum("samples")

    @property
    def tokens_per_second(self) -> float | None:
        """Over the last few steps; None where the job does not tell tokens."""
        steps = self.timeline.steps
        return work_per_second(steps.first[-NOW_STEPS:]) if steps.unit == WORK_UNITS[0] else None

    @property
    def step_seconds(self) -> tuple[list[tuple[str, float]], float]:
        """The histogram of what steps took, as (upper bound, how many at most that), the last `+Inf`; and the sum."""
        counts = [0] * (len(STEP_SECONDS_BUCKETS) + 1)
        total = 0.0
        for own, seconds in self.timeline.steps.of_blocks("histogram", _histogram):
            total += seconds
            counts = [known + more for known, more in zip(counts, own, strict=True)]
        bounds = [*(f"{bound!r}" for bound in STEP_SECONDS_BUCKETS), "+Inf"]
        return [(bound, float(sum(counts[: index + 1]))) for index, bound in enumerate(bounds)], total

    @property
    def rejected(self) -> dict[str, int]:
        """Attempts at a step whose numbers were not fit, by what became of them."""
        counts = Counter(record.verdict for record in self.state.of(StepUnfit))
        return {verdict: counts[verdict] for verdict in REJECTED_VERDICTS}

    @property
    def steps_lost(self) -> int | None:
        """Steps done again, and those that a completed job never committed; None where that is not known."""
        return integrity.count_steps_lost(self.timeline)

    # ---- ranks ----

    @property
    def rank_counts(self) -> dict[str, int]:
        """The number of ranks in each state."""
        states = list(self.state.ranks.states.values())
        known = {"starting": states.count(STARTING), "alive": states.count(UP)}
        return {**known, "lost": len(states) - sum(known.values())}

    @property
    def layers(self) -> dict[int, tuple[int, int]]:
        """(layers that it holds, of those degraded) by rank; empty before the first layout."""
        ranks = self.state.ranks
        if not ranks.spans:
            return {}
        held = {rank: span for rank, span in ranks.spans.items() if ranks.states.get(rank) in (STARTING, UP)}
        return {
            rank: (len(held[rank].layers), len(held[rank].degraded)) if rank in held else (0, 0)
            for rank in ranks.states
        }

    @property
    def regroups(self) -> dict[str, int]:
        """Memberships formed, by reason."""
        counts = Counter(record.reason for record in self.state.of(Regrouped))
        return {reason: counts[reason] for reason in REGROUP_REASONS}

    @property
    def transfer_bytes(self) -> int:
        """State that the slowest rank of each regroup transferred."""
        return sum(record.transfer_bytes or 0 for record in self.state.of(Regrouped))

    # ---- time ----

    def goodput_ratio(self, now: float) -> float | None:
        """Productive time over wall clock, as of `now` (CLOCK_MONOTONIC); None before the job.

        The step in flight is given as much time as steps usually take before it counts against the job.
        """
        if not self.has_job:
            return None
        times = self.timeline
        if not times.is_running:
            return self._account(times.ended_seconds).goodput_ratio
        until = self._last_commit(times.ended_seconds)
        wall = until - times.started_seconds
        wall += max(0.0, now - until - (times.usual_step_seconds or 0.0))
        return self._account(until).productive_seconds / wall if wall > 0 else None

    def told_seconds(self) -> dict[str, float]:
        """Seconds by cause for a reader who asks again and again, and takes it for an error when one of them falls.

        So it is told up to the last commit before which everything is known: what a fault took while it is neither
        seen nor recovered from waits until it is. News that come later still (a detection long after the recovery)
        can correct a figure downwards, which then stands still. At the end of the run all is told as it is.
        """
        times = self.timeline
        if self.state.first_of(RunEnded) is not None:
            self._told = _by_cause(self._account(times.ended_seconds))
        else:
            now = _by_cause(self._account(self._last_commit(min(self._open_since(), times.ended_seconds))))
            self._told = {cause: max(seconds, self._told.get(cause, 0.0)) for cause, seconds in now.items()}
        return self._told

    @property
    def throughput_drop_ratio(self) -> float | None:
        """Of the time under faults so far."""
        return throughput.drop_ratio(self.timeline)

    def _account(self, until: float) -> Account:
        return accounting.account_until(self.timeline, until)

    def _last_commit(self, until: float) -> float:
        """The last commit by then; the start of the job before the first one."""
        steps, started = self.timeline.steps, self.timeline.started_seconds
        last = [own[num_committed(own, until) - 1] for own in (steps.first, steps.redone) if num_committed(own, until)]
        return max((started, *(step.committed_seconds for step in last)))

    def _open_since(self) -> float:
        """Since when there are incidents of which it is open what they take."""
        return min(
            (
                min(time for time in (one.held, one.injected) if time is not None)
                for one in self.timeline.incidents
                if (one.held is not None or one.injected is not None) and not one.is_unverified
                if one.verified is None or one.committed is None
            ),
            default=float("inf"),
        )

    # ---- faults ----

    @property
    def planned(self) -> dict[str, int]:
        """How many incidents the run is to fire, by fault; of too many kinds some are called other."""
        planned: dict[str, int] = {}
        for fault in self._faults.values():
            kind = fault if fault in planned or len(planned) < _MAX_FAULTS else _OTHER
            planned[kind] = planned.get(kind, 0) + 1
        return planned

    @property
    def outcomes(self) -> dict[tuple[str, str], int]:
        """Incidents by fault and by what came of them; 0 from the beginning for what is planned."""
        planned = self.planned
        counts = {(fault, outcome): 0 for fault in planned for outcome in OUTCOMES}
        found = [(one.fault, "verified") for one in self.timeline.incidents if one.verified is not None]
        found += [
            (one.fault, "unverified") for one in self.timeline.incidents if one.verified is None and one.is_unverified
        ]
        found += [(self._faults.get(one.incident, "unknown"), "not_due") for one in self.timeline.not_due]
        for fault, outcome in found:
            key = _label(fault, planned), outcome
            counts[key] = counts.get(key, 0) + 1
        return counts

    @property
    def active(self) -> dict[str, int]:
        """How many incidents are active, by fault; 0 for what is planned and is not, and when the job is over."""
        active = dict.fromkeys([*self.planned, *self.newest], 0)
        for kind, one in self._labelled():
            if one.injected is not None and self.timeline.is_running:
                active[kind] += one.is_in_force
        return active

    @property
    def newest(self) -> dict[str, MeasuredIncident]:
        """By fault, the incident that was injected last."""
        newest: dict[str, MeasuredIncident] = {}
        times = self.timeline
        for kind, one in self._labelled(times.incidents if times.is_running else times.judged):
            known = newest.get(kind)
            if one.injected is not None and (known is None or one.injected >= (known.injected or 0.0)):
                newest[kind] = one
        return newest

    @property
    def recoveries(self) -> dict[str, int]:
        """Incidents from which the job recovered, by fault.

        Of some faults that is known when the job is over; see `is_judged_later`.
        """
        recoveries = dict.fromkeys(self.planned, 0)
        times = self.timeline
        for kind, one in self._labelled(times.incidents if times.is_running else times.judged):
            is_known = not (times.is_running and is_judged_later(one))
            if one.recovery_seconds is not None and is_known:
                recoveries[kind] = recoveries.get(kind, 0) + 1
        return recoveries

    @property
    def undo_failures(self) -> dict[str, int]:
        """Undoes that failed, by fault."""
        planned = self.planned
        failures = dict.fromkeys(planned, 0)
        faults = {one.incident: one.fault for one in self.timeline.incidents}
        for record in self.state.of(UndoFailed):
            kind = _label(faults.get(record.incident, "unknown"), planned)
            failures[kind] = failures.get(kind, 0) + 1
        return failures

    @property
    def undo_pending(self) -> int:
        """Incidents of which something is still to be undone; the audit at the end has the last word."""
        audits = list(self.state.of(Residue))
        if audits:
            return len(audits[-1].undo_pending)
        undone = {record.incident for record in self.state.of(Undone)}
        return len({record.incident for record in self.state.of(Injected)} - undone)

    @property
    def _faults(self) -> dict[int, str]:
        """The fault of each planned incident."""
        plans = [plan for record in self.state.of(IncidentsPlanned) for plan in record.incidents]
        return {plan.incident: plan.fault for plan in plans}

    def _labelled(self, incidents: Sequence[MeasuredIncident] | None = None) -> list[tuple[str, MeasuredIncident]]:
        planned, known = self.planned, self.timeline.incidents if incidents is None else incidents
        return [(_label(one.fault, planned), one) for one in known]

    def _sum(self, what: str) -> int | None:
        def told_of(steps: Sequence[CommittedStep]) -> list[int]:
            values = [value for step in steps if (value := getattr(step, what)) is not None]
            return [len(values), sum(values)]

        told = list(self.timeline.steps.of_blocks(what, told_of))
        return sum(total for _, total in told) if any(number for number, _ in told) else None


def _label(fault: str, planned: Mapping[str, int]) -> str:
    """The fault as a label; a log with more kinds than there can be is not to have a series for each."""
    return fault if fault in planned or len(planned) < _MAX_FAULTS else _OTHER


def _by_cause(account: Account) -> dict[str, float]:
    return {PRODUCTIVE: account.productive_seconds, **account.badput_seconds}


def _histogram(steps: Sequence[CommittedStep]) -> tuple[list[int], float]:
    counts = [0] * (len(STEP_SECONDS_BUCKETS) + 1)
    for step in steps:
        counts[bisect_left(STEP_SECONDS_BUCKETS, step.duration_seconds)] += 1
    return counts, sum(step.duration_seconds for step in steps)
