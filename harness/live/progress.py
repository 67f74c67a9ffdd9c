"""Where a run stands, kept up to date event by event: what the live views show."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from harness.analysis.attempts import COMMAND_RUNTIME
from harness.analysis.steps import BASELINE_STEPS, WARM_UP_STEPS, WORK_UNITS, shows_recovery
from mecefo_runtime.job.layout import Layout, Span
from mecefo_runtime.system.events import MAIN_JOB, Event

_NOW_STEPS = 5
# Events of different processes arrive in any order; an incident only ever moves forwards through these.
STAGES = (
    "armed",
    "held",
    "injected",
    "verified",
    "unverified",
    "detected",
    "regrouped",
    "over",
    "repairing",
    "rejoined",
)


@dataclass(slots=True)
class IncidentProgress:
    """One planned fault and how far it has come; `stage` is one of `STAGES`, `verified` is None until it is known."""

    fault: str
    target: str
    step: int | None = None
    at_seconds: float | None = None
    stage: str = STAGES[0]
    verified: bool | None = None
    injected_monotonic_seconds: float | None = None
    recovery_seconds: float | None = None
    ranks: tuple[int, ...] = ()
    is_loss: bool = False
    goes_on: bool = False

    @property
    def is_in_force(self) -> bool:
        """Whether it goes on for a time that is not over."""
        return self.goes_on and STAGES.index(self.stage) < STAGES.index("over")

    def advance(self, stage: str) -> None:
        """Move forwards to `stage`, never back."""
        self.stage = max(self.stage, stage, key=STAGES.index)


@dataclass(slots=True)
class JobProgress:
    """One job's steps: `work_per_second` over the last few of them, in `unit` (see `steps.WORK_UNITS`)."""

    steps: int = 0
    step: int = 0
    loss: float | None = None
    epoch: int = 0
    outcome: str | None = None
    unit: str = "tokens"
    work_per_second: float | None = None
    commits: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_NOW_STEPS + 1))

    @property
    def done_ratio(self) -> float:
        """Share of the planned steps that are committed."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0


class RunProgress:
    """What the events fed so far say. Feeding costs microseconds; nothing grows with the length of the run."""

    def __init__(self) -> None:
        self.name = ""
        self.seed: int | None = None
        self.began_monotonic_seconds: float | None = None
        self.main = JobProgress()
        self.twin: JobProgress | None = None
        self.num_nodes = 0
        self.is_command = False
        self.rank_states: dict[int, str] = {}
        self.spans: dict[int, Span] = {}
        self.incidents: dict[int, IncidentProgress] = {}
        self.work_per_second_before: float | None = None
        self._num_commits = 0
        self._recent: deque[float] = deque(maxlen=BASELINE_STEPS)

    def feed(self, event: Event) -> tuple[IncidentProgress, ...]:
        """Take in one event; returns the incidents from which the job recovered by it."""
        if self.began_monotonic_seconds is None:
            self.began_monotonic_seconds = event.monotonic_seconds
        if event.kind == "step_committed":
            return self._commit(event)
        if event.kind in ("job_started", "job_ended"):
            self._start_or_end(event)
        elif event.job == MAIN_JOB:
            self._change(event)
        return ()

    def since_start_seconds(self, event: Event) -> float:
        """Time of the event since the first one fed."""
        begin = self.began_monotonic_seconds
        return 0.0 if begin is None else event.monotonic_seconds - begin

    def node_of(self, rank: int) -> int:
        """The node of `rank`: ranks are numbered through node by node."""
        return rank * self.num_nodes // max(1, len(self.rank_states))

    def _start_or_end(self, event: Event) -> None:
        if event.job != MAIN_JOB and self.twin is None:
            self.twin = JobProgress()
        job = self.main if event.job == MAIN_JOB or self.twin is None else self.twin
        if event.kind == "job_ended":
            job.outcome = str(event.fields.get("outcome"))
            return
        job.steps = int(event.fields.get("steps") or 0)
        if event.job == MAIN_JOB:
            self.is_command = event.fields.get("runtime") == COMMAND_RUNTIME
            nodes = event.fields.get("nodes") or 1
            self.num_nodes = nodes if isinstance(nodes, int) else len(nodes)
            self.rank_states = dict.fromkeys(range(int(event.fields.get("num_ranks") or 0)), "starting")

    def _commit(self, event: Event) -> tuple[IncidentProgress, ...]:
        fields = event.fields
        if event.job != MAIN_JOB and self.twin is None:
            self.twin = JobProgress()
        job = self.main if event.job == MAIN_JOB or self.twin is None else self.twin
        step = event.step or 0
        if fields.get("repeated") and step <= job.step:
            return ()
        committed = float(fields.get("committed_monotonic", event.monotonic_seconds))
        unit = next((unit for unit in WORK_UNITS[:-1] if fields.get(unit) is not None), WORK_UNITS[-1])
        work = float(fields.get(unit, 1.0))
        if unit != job.unit:
            # What is counted differently cannot be added up.
            job.unit = unit
            job.commits.clear()
            self._recent.clear()
        self._num_commits += job is self.main
        is_warm = job is self.main and self._num_commits > WARM_UP_STEPS
        if is_warm and job.commits and committed > job.commits[-1][0]:
            self._recent.append(work / (committed - job.commits[-1][0]))
        job.commits.append((committed, work))
        elapsed = committed - job.commits[0][0]
        if elapsed > 0:
            job.work_per_second = sum(work for _, work in list(job.commits)[1:]) / elapsed
        job.step, job.loss, job.epoch = step, fields.get("loss"), int(fields.get("epoch") or job.epoch)
        if job is not self.main:
            return ()
        began = float(fields.get("began_monotonic", committed))
        return self._recover(began, committed, is_left_out=bool(fields.get("skipped")))

    def _recover(self, began: float, committed: float, *, is_left_out: bool) -> tuple[IncidentProgress, ...]:
        recovered = []
        for incident in self.incidents.values():
            injected = incident.injected_monotonic_seconds
            if injected is None or incident.recovery_seconds is not None or incident.verified is False:
                continue
            if shows_recovery(began, is_left_out=is_left_out, injected_seconds=injected):
                incident.recovery_seconds = committed - injected
                recovered.append(incident)
        return tuple(recovered)

    def _change(self, event: Event) -> None:
        fields = event.fields
        if event.kind == "run_started":
            experiment = fields.get("experiment")
            self.name = str(experiment.get("name", "")) if isinstance(experiment, dict) else ""
            self.seed = fields.get("seed")
        elif event.kind == "incidents_planned":
            for planned in fields.get("incidents", ()):
                self.incidents[planned.get("incident", 0)] = IncidentProgress(
                    str(planned.get("fault")),
                    str(planned.get("target")),
                    planned.get("step"),
                    planned.get("at_seconds"),
                )
        elif event.kind in ("held", "injected", "verified", "unverified", "repair_started"):
            self._advance(event)
        elif event.kind == "undone":
            incident = self.incidents.get(fields.get("incident", 0))
            if incident is not None and incident.goes_on:
                incident.advance("over")
        elif event.kind == "rank_started" and event.rank is not None:
            if self.is_command:
                # Its launcher starts all ranks again: whoever is there is up.
                self.main.epoch = event.attempt
                self._mark([event.rank], "up")
                return
            state = self.rank_states.get(event.rank)
            self._mark([event.rank], "restarting" if state == "gone" else "up" if state == "starting" else str(state))
        elif event.kind == "detected":
            self._mark(fields.get("lost", ()), "gone")
            self._advance_open("detected")
        elif event.kind == "rejoin_requested":
            self._mark(fields.get("ranks", ()), "waiting")
        elif event.kind == "rejoined":
            self._mark(fields.get("ranks", ()), "up")
            for incident in self.incidents.values():
                if incident.stage == "repairing" and set(incident.ranks) & set(fields.get("ranks", ())):
                    incident.advance("rejoined")
        elif event.kind == "layout":
            self.main.epoch = int(fields.get("epoch") or 0)
            replicas = Layout.from_dict(fields["layout"]).replicas if fields.get("layout") else ()
            self.spans = {span.rank: span for replica in replicas for span in replica.spans}
        elif event.kind == "regrouped":
            self._mark(fields.get("members", ()), "up")
            self._advance_open("regrouped")

    def _advance(self, event: Event) -> None:
        fields = event.fields
        incident = self.incidents.setdefault(
            fields.get("incident", 0),
            IncidentProgress(str(fields.get("fault", "fault")), str(fields.get("target", "?")), event.step),
        )
        incident.advance("repairing" if event.kind == "repair_started" else event.kind)
        if event.kind in ("verified", "unverified"):
            incident.verified = event.kind == "verified"
            if incident.verified and incident.is_loss:
                self._mark(incident.ranks, "gone")
        if event.kind == "injected":
            incident.injected_monotonic_seconds = event.monotonic_seconds
            incident.target = str(fields.get("target") or incident.target)
            incident.ranks = tuple(fields.get("ranks") or ())
            incident.is_loss = bool(fields.get("is_loss"))
            incident.goes_on = bool(fields.get("goes_on"))
            if self.work_per_second_before is None and self._recent:
                self.work_per_second_before = median(self._recent)

    def _advance_open(self, stage: str) -> None:
        for incident in self.incidents.values():
            if incident.injected_monotonic_seconds is not None and incident.recovery_seconds is None:
                incident.advance(stage)

    def _mark(self, ranks: object, state: str) -> None:
        for rank in ranks if isinstance(ranks, list | tuple) else ():
            self.rank_states[rank] = state
