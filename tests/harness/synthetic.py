"""Synthetic event logs: what a run would have written, told by a few knobs and an exact clock, with nothing running.

`run()` is a run of 60 steps in which node 1 is killed at step 20 and repaired 15 steps later, with a fault-free
baseline.
Every figure of it follows from the constants below, so that a test can state what it expects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from chaos.language.identity import hash_of
from mecefo_runtime.job.layout import Cluster, Layout
from mecefo_runtime.model.data import checksum, samples_of_step
from mecefo_runtime.system.events import BASELINE_JOB, MAIN_JOB, Event
from mecefo_runtime.system.json_values import to_json
from tests.planning import layout_of

CLUSTER = Cluster(nodes=4, gpus_per_node=2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=16)
SAMPLES_PER_STEP = 64
TOKENS_PER_STEP = 4096
STARTUP_SECONDS = 1.0
HOLD_SECONDS = 0.004  # held -> injected
VERIFY_SECONDS = 0.003  # injected -> verified
DETECT_SECONDS = 0.005  # injected -> detected
ISOLATE_SECONDS = 0.010
GROUP_SECONDS = 0.020  # isolated -> regrouped, transfer left out
TRANSFER_SECONDS = 0.030
RESTART_SECONDS = 0.250  # coordinator killed -> restarted
REPAIR_SECONDS = 0.300  # repair started -> its ranks ask to rejoin
TEARDOWN_SECONDS = 0.5
UNIX_OFFSET = 1_790_000_000.0


@dataclass(frozen=True)
class Fault:
    """One incident of the story. `during_regroup`: it affects while the regroup of the fault before it is under way.

    `lasts_steps`: it slows its ranks for so many steps, and takes nobody away.
    """

    step: int = 20
    node: int = 1
    phase: str = "backward"
    kind: str = "kill-node"
    role: str | None = None
    repair_steps: int | None = 15
    fires: bool = True
    verified: bool = True
    recovers: bool = True
    rejoins: bool = True
    undone: bool = True
    during_regroup: bool = False
    lasts_steps: int | None = None

    @property
    def takes_ranks(self) -> bool:
        """Whether anybody is lost to it."""
        return self.verified and bool(self.ranks) and self.lasts_steps is None

    def is_in_force(self, step: int) -> bool:
        """Whether it slows that step."""
        return self.fires and self.lasts_steps is not None and self.step <= step < self.step + self.lasts_steps

    @property
    def ranks(self) -> list[int]:
        """The ranks that it takes away."""
        return [] if self.role else list(CLUSTER.ranks_of(self.node))

    @property
    def target(self) -> str:
        """As in the experiment."""
        return f"role={self.role}" if self.role else f"node={self.node}"


@dataclass(frozen=True)
class Kill:
    """A rank that dies of no fault of the run, in the middle of a step; it is back at the step `back_at`, or never.

    `job` is the one that loses it. `with_supervisor`: its node's supervisor dies, and the node's other ranks with it.
    """

    step: int
    rank: int
    back_at: int | None = None
    job: str = MAIN_JOB
    with_supervisor: bool = False

    @property
    def ranks(self) -> list[int]:
        """Whom the job loses."""
        return list(CLUSTER.ranks_of(CLUSTER.node_of(self.rank))) if self.with_supervisor else [self.rank]


def loss_of(step: int) -> float:
    """The loss of the fault-free job: 5.5 nats, falling to 2.5."""
    return 2.5 + 3.0 * math.exp(-step / 20)


def run(
    *,
    steps: int = 60,
    faults: Sequence[Fault] = (Fault(),),
    kills: Sequence[Kill] = (),
    baseline: bool = True,
    cut_off_after_step: int | None = None,
    ended: str = "completed",
    gates: Sequence[str] = (),
    step_seconds: float = 0.1,
    degraded_step_seconds: float = 0.125,
    jitter_ratio: float = 0.0,
    main_loss_ratio: float = 1.0,
    job_fails: bool = False,
    residue: Sequence[int] | None = (),
    dilation_ratio: float = 1.0,
    name: str = "synthetic",
) -> list[Event]:
    """The events of one run, in the order of `monotonic_seconds`.

    `cut_off_after_step` ends the log right after that step's commit. `ended` is the `run_ended` reason; all but
    `completed` stop the job halfway between the last fault and the last step. `main_loss_ratio` multiplies the main
    job's losses from the first fault on. `job_fails`: a fault that does not recover ends in `job_failed`. `residue`
    names pids that were left behind; None leaves the audit out.
    """
    story = _Story(
        steps, list(faults), step_seconds, degraded_step_seconds, jitter_ratio, main_loss_ratio, dilation_ratio
    )
    story.kills = list(kills)
    story.start_run(name, baseline, gates)
    if ended != "completed":
        story.stop_after = (steps + max((f.step for f in faults), default=0)) // 2
    story.cut_off_after = cut_off_after_step
    story.job_fails = job_fails
    story.train(MAIN_JOB)
    if story.cut_off:
        return story.told()
    if baseline and ended == "completed":
        story.train(BASELINE_JOB)
    story.end_run(ended, residue)
    return story.told()


class _Story:
    """Tells a run event by event; `now` is its clock."""

    def __init__(
        self,
        steps: int,
        faults: list[Fault],
        step_seconds: float,
        degraded_step_seconds: float,
        jitter_ratio: float,
        main_loss_ratio: float,
        dilation_ratio: float,
    ) -> None:
        self.events: list[Event] = []
        self.now = 1000.0
        self.steps = steps
        self.faults = faults
        self.kills: list[Kill] = []
        self.step_seconds = step_seconds
        self.degraded_step_seconds = degraded_step_seconds
        self.jitter_ratio = jitter_ratio
        self.main_loss_ratio = main_loss_ratio
        self.dilation_ratio = dilation_ratio
        self.stop_after: int | None = None
        self.cut_off_after: int | None = None
        self.cut_off = False
        self.job_fails = False
        self.failed = False
        self.job = MAIN_JOB
        self.epoch = 0
        self.alive: set[int] = set()
        self.began: float | None = None  # of an attempt in flight that outlives what happens to it

    def told(self) -> list[Event]:
        """The events, in the order in which things happened."""
        return sorted(self.events, key=lambda event: event.monotonic_seconds)

    def emit(self, kind: str, source: str, step: int | None = None, by_rank: int | None = None, **fields: Any) -> None:
        """One event now."""
        self.events.append(
            Event(
                kind=kind,
                source=source,
                time_seconds=UNIX_OFFSET + self.now,
                monotonic_seconds=self.now,
                pid=100 + (by_rank if by_rank is not None else 50),
                job=self.job,
                rank=by_rank,
                node=None if by_rank is None else CLUSTER.node_of(by_rank),
                step=step,
                fields=fields,
            )
        )

    def start_run(self, name: str, baseline: bool, gates: Sequence[str]) -> None:
        """The experiment and the plan."""
        job = {
            "runtime": "mecefo",
            "model": "llama-tiny",
            "nodes": CLUSTER.nodes,
            "gpus_per_node": CLUSTER.gpus_per_node,
            "data_parallel": CLUSTER.data_parallel,
            "pipeline": CLUSTER.pipeline,
            "steps": self.steps,
            "strategy": "ndb",
        }
        faults = [
            {
                "kind": f.kind,
                "on": f.target,
                "at": {"step": f.step, "phase": f.phase},
                "repair": f"{f.repair_steps}steps",
            }
            for f in self.faults
        ]
        experiment = {"name": name, "seed": 7, "job": job, "faults": faults, "gates": list(gates), "twin": baseline}
        self.emit(
            "run_started",
            "conductor",
            experiment=experiment,
            experiment_hash=hash_of(experiment),
            seed=7,
            gates=list(gates),
            dilation_ratio=self.dilation_ratio,
            machine={"cpus": 2},
        )
        self.emit(
            "incidents_planned",
            "conductor",
            incidents=[
                {
                    "incident": index,
                    "fault": f.kind,
                    "target": f.target,
                    "step": f.step,
                    "phase": f.phase,
                    "at_seconds": None,
                    "repair_steps": f.repair_steps,
                }
                for index, f in enumerate(self.faults)
            ],
        )

    def train(self, job: str) -> None:
        """One job from start to end."""
        self.job, self.epoch, self.alive = job, 0, set(range(CLUSTER.num_ranks))
        self.now += 0.1
        started = self.now
        self.emit(
            "job_started",
            "conductor",
            num_ranks=CLUSTER.num_ranks,
            nodes=CLUSTER.nodes,
            steps=self.steps,
            tokens_per_step=TOKENS_PER_STEP,
            samples_per_step=SAMPLES_PER_STEP,
            dilation_ratio=self.dilation_ratio,
        )
        for rank in range(CLUSTER.num_ranks):
            self.now += STARTUP_SECONDS / 20
            self.emit("rank_started", "rank", by_rank=rank)
        self._regroup("start", None, transfer_seconds=0.0)
        self.now = started + STARTUP_SECONDS
        committed = 0
        for step in range(1, self.steps + 1):
            if job == MAIN_JOB:
                self._boundary(step)
                if not self._inject_into(step):
                    break
            self._kill_in(step)
            self._commit(step)
            committed = step
            if job == MAIN_JOB and step == self.cut_off_after:
                self.cut_off = True
                return
            if job == MAIN_JOB and step == self.stop_after:
                break
        if committed == self.steps:
            for rank in sorted(self.alive):
                self.emit("rank_finished", "rank", by_rank=rank, checksums={"layer.0": 1})
        self.now += TEARDOWN_SECONDS
        outcome = "failed" if self.failed else "completed" if committed == self.steps else "stopped"
        self.emit("job_ended", "conductor", outcome=outcome, steps_committed=committed)

    def end_run(self, ended: str, residue: Sequence[int] | None) -> None:
        """The undo, the audit and the last word."""
        self.job = MAIN_JOB
        self.now += 0.1
        if ended == "interrupted":
            self.emit("interrupted", "conductor", signal="SIGINT")
        if ended == "halted":
            self.emit("halted", "conductor", condition="training_loss > 20")
        for index, fault in enumerate(self.faults):
            if fault.fires and not fault.undone:
                self.emit("undo_failed", "injector", incident=index, reason="the process would not end")
        if residue is not None:
            self.emit("residue", "conductor", processes=list(residue), undo_pending=[])
        self.emit("run_ended", "conductor", reason="failed" if self.failed else ended, message="")

    def _commit(self, step: int) -> None:
        in_force = self.job == MAIN_JOB and any(fault.is_in_force(step) for fault in self.faults)
        degraded = in_force or len(self.alive) < CLUSTER.num_ranks
        jitter = 1 + self.jitter_ratio * math.sin(7.0 * step)
        seconds = (self.degraded_step_seconds if degraded else self.step_seconds) * jitter
        began, self.began = (self.now if self.began is None else self.began), None
        self.now = max(self.now, began + seconds)
        faulty = self.job == MAIN_JOB and any(f.fires and f.step <= step for f in self.faults)
        samples = samples_of_step(step, SAMPLES_PER_STEP)
        self.emit(
            "step_committed",
            "rank",
            step,
            by_rank=min(self.alive),
            epoch=self.epoch,
            loss=loss_of(step) * (self.main_loss_ratio if faulty else 1.0),
            tokens=TOKENS_PER_STEP,
            samples=len(samples),
            samples_checksum=checksum(samples),
            began_monotonic=began,
            committed_monotonic=self.now,
            grad_norm=1.0,
            learning_rate=1e-3,
            repeated=False,
        )

    def _boundary(self, step: int) -> None:
        """Repairs and rejoins that come before `step` begins."""
        for kill in self.kills:
            if step == kill.back_at:
                self.alive |= set(kill.ranks)
                self._regroup("rejoin", step, transfer_seconds=TRANSFER_SECONDS)
                self.emit("rejoined", "coordinator", step, epoch=self.epoch, ranks=kill.ranks)
        for index, fault in enumerate(self.faults):
            if fault.lasts_steps is not None:
                if step == fault.step + fault.lasts_steps and fault.fires:
                    self.emit("undone", "injector", step, incident=index, evidence="over")
                continue
            if fault.role or fault.repair_steps is None or not fault.fires or not fault.verified:
                continue
            if step == fault.step + fault.repair_steps:
                self.emit("repair_started", "conductor", step, incident=index, nodes=[fault.node], ranks=fault.ranks)
            rejoin_step = fault.step + fault.repair_steps + math.ceil(REPAIR_SECONDS / self.degraded_step_seconds)
            if step == rejoin_step and fault.rejoins:
                for rank in fault.ranks:
                    self.emit("rank_started", "rank", by_rank=rank)
                self.emit("rejoin_requested", "coordinator", step, ranks=fault.ranks)
                self.alive |= set(fault.ranks)
                self._regroup("rejoin", step, transfer_seconds=TRANSFER_SECONDS)
                self.emit("rejoined", "coordinator", step - 1, epoch=self.epoch, ranks=fault.ranks)

    def _inject_into(self, step: int) -> bool:
        """The faults of `step`; False when the job does not survive them."""
        affected = [(i, f) for i, f in enumerate(self.faults) if f.step == step and f.fires]
        for index, fault in affected:
            if not fault.during_regroup:
                began = self.now
                self.now += self.step_seconds / 2  # half a step's work, which the loss throws away
                self.emit("held", "injector", step, incident=index, phase=fault.phase, rank=(fault.ranks or [0])[0])
                self.now += HOLD_SECONDS
                self.began = None if fault.takes_ranks else began
            if not self._inject(index, fault, step):
                return False
        if any(fault.takes_ranks for _, fault in affected):
            self._regroup("loss", step, transfer_seconds=TRANSFER_SECONDS)
        return True

    def _kill_in(self, step: int) -> None:
        for kill in self.kills:
            if (kill.step, kill.job) == (step, self.job):
                self.now += self.step_seconds / 2
                if kill.with_supervisor:
                    node = CLUSTER.node_of(kill.rank)
                    self.emit("process_exited", "conductor", exited_node=node, role="supervisor", exited_pid=1, exit=-9)
                else:
                    self.emit("process_exited", "supervisor", exited_rank=kill.rank, role="rank", exited_pid=1, exit=-9)
                self.now += DETECT_SECONDS
                self.alive -= set(kill.ranks)
                for rank in kill.ranks:
                    self.emit("detected", "coordinator", step, epoch=self.epoch, lost=[rank], how="supervisor")
                self.now += ISOLATE_SECONDS
                self.emit("isolated", "coordinator", step, epoch=self.epoch)
                self._regroup("loss", step, transfer_seconds=TRANSFER_SECONDS)
                self.began = None

    def _inject(self, index: int, fault: Fault, step: int) -> bool:
        injected = self.now
        processes = [{"pid": 100 + rank, "start_time": 1.0} for rank in fault.ranks]
        self.emit(
            "injected",
            "injector",
            step,
            incident=index,
            fault=fault.kind,
            is_loss=fault.kind.startswith("kill-"),
            goes_on=fault.lasts_steps is not None,
            target=fault.target,
            phase=fault.phase,
            ranks=fault.ranks,
            nodes=[] if fault.role else [fault.node],
            processes=processes,
        )
        self.now = injected + VERIFY_SECONDS
        if not fault.verified:
            self.emit("unverified", "injector", step, incident=index, reason="its processes are still there")
            self.emit("released", "injector", step, incident=index, ranks=fault.ranks)
            return True
        self.emit("verified", "injector", step, incident=index, evidence=f"{len(processes)} processes are gone")
        if fault.lasts_steps is not None:
            self.emit("released", "injector", step, incident=index, ranks=fault.ranks)
            return True
        if fault.undone:  # what is killed leaves nothing to undo: affected from the ledger at once
            self.emit("undone", "injector", step, incident=index, evidence="nothing to undo")
        self.emit("released", "injector", step, incident=index, ranks=fault.ranks)
        if fault.role:
            self.now = injected + RESTART_SECONDS
            self.emit("coordinator_restarted", "coordinator", step, epoch=self.epoch, members=sorted(self.alive))
            self.now = injected + VERIFY_SECONDS  # training went on without it
            return True
        self.now = injected + DETECT_SECONDS
        if not fault.recovers:
            if self.job_fails:
                self.emit("detected", "coordinator", step, epoch=self.epoch, lost=fault.ranks, how="supervisor")
                self.now += ISOLATE_SECONDS
                self.emit("job_failed", "coordinator", step, reason="no replica can be made whole")
                self.failed = True
            return False
        self.alive -= set(fault.ranks)
        self.emit("detected", "coordinator", step, epoch=self.epoch, lost=fault.ranks, how="supervisor")
        self.now += ISOLATE_SECONDS
        self.emit("isolated", "coordinator", step, epoch=self.epoch)
        return True

    def _regroup(self, reason: str, step: int | None, transfer_seconds: float) -> None:
        self.epoch += 1
        members = sorted(self.alive)
        layout: Layout = layout_of("ndb", CLUSTER, members)
        # As the coordinator does: the last step that was committed, not the one with which training continues.
        committed = None if step is None else step - 1 or None
        self.emit(
            "layout",
            "coordinator",
            committed,
            epoch=self.epoch,
            reason=reason,
            group_backend="gloo",
            members=members,
            layout=to_json(layout),
            degraded_layers=layout.num_degraded_layers,
            num_transfers=2 if transfer_seconds else 0,
            commit_step=None,
            resume_step=step or 1,
        )
        self.now += GROUP_SECONDS + transfer_seconds
        self.emit(
            "regrouped",
            "coordinator",
            committed,
            epoch=self.epoch,
            reason=reason,
            members=members,
            group_seconds=GROUP_SECONDS,
            transfer_seconds=transfer_seconds,
            transfer_bytes=1_000_000 if transfer_seconds else 0,
        )


def shifted(event: Event, **changes: Any) -> Event:
    """`event` with some of its fields replaced (None removes one): for logs that are wrong on purpose."""
    fields = {key: value for key, value in {**event.fields, **changes}.items() if value is not None}
    return replace(event, fields=fields)
