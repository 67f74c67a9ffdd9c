"""Logs that are long in one respect each: so many ranks, attempts, incidents, tensors, looks, steps, losses.

Made up event by event, with a clock that goes on by a millisecond each time. What each says is as a run would say it,
so that every part of the analysis has something to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mecefo_runtime.system.events import BASELINE_JOB, MAIN_JOB, Event

SECONDS = 0.001
LAYERS = 4


class Writer:
    """Writes the events of one run, each a little later than the one before."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 100.0
        self._num_incidents = 0

    def say(self, kind: str, *, rank: int | None = None, step: int | None = None, pid: int = 1, **said: Any) -> None:
        """One event; `job` and `attempt` are among `said`, too."""
        self.now += SECONDS
        job, attempt, fields = said.pop("job", MAIN_JOB), said.pop("attempt", 1), said.pop("fields", said)
        source = "conductor" if rank is None else "rank"
        self.events.append(
            Event(kind, source, 1.8e9 + self.now, self.now, pid, attempt, job, rank, None, step, fields=fields)
        )

    def begin(self, *, runtime: str, num_ranks: int, steps: int | None = None, gates: Iterable[str] = ()) -> None:
        """A run of one job, and what it is to keep."""
        asked = list(gates)
        experiment = {"name": "long", "seed": 1, "faults": [{"kind": "kill-process"}], "gates": asked, "job": {}}
        self.say("run_started", experiment=experiment, seed=1, gates=asked)
        self.say("incidents_planned", incidents=[])
        command = {"command": "torchrun train.py"} if runtime == "command" else {}
        self.say(
            "job_started", runtime=runtime, num_ranks=num_ranks, nodes=1, steps=steps, samples_per_step=8, **command
        )

    def end(self, outcome: str = "completed") -> list[Event]:
        """The end of the run; all of its events."""
        self.say("job_ended", outcome=outcome)
        self.say("residue", processes=[], undo_pending=[], left=[])
        self.say("run_ended", reason="completed", message="", num_events=len(self.events) + 1)
        return self.events

    def steps(self, first: int, last: int, *, epoch: int = 1, pid: int = 10, job: str = MAIN_JOB, **said: Any) -> None:
        """Steps that are committed one after the other."""
        for step in range(first, last + 1):
            began = self.now
            self.say(
                "step_committed", rank=0, step=step, pid=pid, job=job, epoch=epoch, loss=3.0 - 1e-6 * step,
                tokens=64, samples=8, began_monotonic=began, grad_norm=1.0, **said,
            )  # fmt: skip

    def strike(self, ranks: list[int], *, fault: str = "kill-process", is_loss: bool = True, **said: Any) -> int:
        """A fault on `ranks`, with what the injector says of it; returns its number."""
        number, self._num_incidents = self._num_incidents, self._num_incidents + 1
        self.say("held", incident=number, phase="forward", held_rank=ranks[0] if ranks else None)
        target = f"rank={ranks[0]}" if ranks else "role=coordinator"
        self.say("injected", incident=number, fault=fault, is_loss=is_loss, target=target, ranks=ranks, **said)
        self.say("verified", incident=number, evidence={"summary": "seen"})
        self.say("released", incident=number, ranks=ranks)
        self.say("undone", incident=number, evidence={"undone": "nothing to undo"})
        return number

    def attempt(self, number: int, num_ranks: int, *, kept_by: str = "optimizer", first: int = 1) -> None:
        """All ranks of a command are started."""
        self.say("attempt_started", attempt_number=number, world_size=num_ranks)
        for rank in range(num_ranks):
            pid = 10 + rank + num_ranks * number
            self.say("process_started", role="rank", started_pid=pid, started_rank=rank, rank_attempt=number)
            self.say("rank_started", rank=rank, pid=pid, attempt=number, world_size=num_ranks)
        self.say("steps_counted", rank=0, pid=10 + num_ranks * number, step=first, count_kept_by=kept_by)

    def exit(self, rank: int, number: int, num_ranks: int, code: int | None) -> None:
        """A rank of a command ends."""
        pid = 10 + rank + num_ranks * number
        self.say("process_exited", role="rank", exited_pid=pid, exit=code, exited_rank=rank, rank_attempt=number)

    def regroup(self, epoch: int, members: Iterable[int], reason: str) -> None:
        """A membership of our own runtime is formed."""
        held = list(members)
        self.say("layout", epoch=epoch, reason=reason, members=held, group_backend="gloo")
        self.say("regrouped", epoch=epoch, reason=reason, members=held, group_seconds=1e-4, transfer_seconds=1e-4)

    def look(self, rank: int, step: int, sums: str, tensors: tuple[str, ...] = (), pid: int | None = None) -> None:
        """What a rank holds."""
        self.say("state_checksums", rank=rank, pid=100 + rank if pid is None else pid, step=step, sums=sums,
                 tensors=list(tensors))  # fmt: skip


def _command(num_ranks: int = 2, gates: Iterable[str] = ()) -> Writer:
    log = Writer()
    log.begin(runtime="command", num_ranks=num_ranks, gates=gates)
    return log


def _ours(num_ranks: int = 4, steps: int = 100, gates: Iterable[str] = ()) -> Writer:
    log = Writer()
    log.begin(runtime="mecefo", num_ranks=num_ranks, steps=steps, gates=gates)
    for rank in range(num_ranks):
        log.say("rank_started", rank=rank, pid=100 + rank)
    log.regroup(1, range(num_ranks), "start")
    return log


GATES = (
    "step_seconds p95 during < 5", "throughput min during > 1", "training_loss max <= 0.1", "recovery_seconds max < 1",
    "grad_norm max after <= 0.5", "steps_lost == 0", "unplanned_losses == 0", "throughput min < 1",
)  # fmt: skip


def steps(number: int) -> list[Event]:
    """A job of our own runtime with so many steps, one fault, and a baseline."""
    log = _ours(steps=number, gates=GATES)
    log.steps(1, number // 2)
    log.strike([1])
    log.say("detected", epoch=1, lost=[1], how="connection")
    log.say("isolated", epoch=1)
    log.regroup(2, [0, 2, 3], "loss")
    log.steps(number // 2 + 1, number, epoch=2)
    log.say("job_started", job=BASELINE_JOB, runtime="mecefo", num_ranks=4, nodes=1, steps=number)
    log.steps(1, number, job=BASELINE_JOB)
    log.say("job_ended", job=BASELINE_JOB, outcome="completed")
    return log.end()


def steps_out_of_order(number: int) -> list[Event]:
    """The same steps as they may come from a disk that was read backwards."""
    events = steps(number)
    return [events[0], *reversed(events[1:])]


def redone_steps(number: int) -> list[Event]:
    """A command that goes back to the beginning, and does so many steps again."""
    log = _command(gates=GATES)
    log.attempt(1, 2)
    log.steps(1, number, pid=12)
    log.strike([1])
    log.exit(1, 1, 2, -9)
    log.attempt(2, 2)
    log.steps(1, number, epoch=2, pid=14)
    log.steps(number + 1, number + 8, epoch=2, pid=14)
    return log.end()


def returns(number: int) -> list[Event]:
    """A script that loads an older state again and again, and redoes the same few steps."""
    log = _command(gates=GATES)
    log.attempt(1, 2)
    for _ in range(number):
        log.steps(1, 4, pid=12)
    return log.end()


def replica_groups(number: int) -> list[Event]:
    """So many groups of replicas tell each step, as in torchft."""
    log = _command(number)
    log.attempt(1, number)
    for step in range(1, 8):
        for group in range(number):
            log.steps(step, step, pid=10 + group, replica=group)
    return log.end()


def ranks(number: int) -> list[Event]:
    """So many ranks of a command, which are all lost, and started again."""
    log = _command(number, gates=GATES)
    log.attempt(1, number)
    log.steps(1, 6, pid=10 + number)
    log.strike(list(range(number)))
    for rank in range(number):
        log.exit(rank, 1, number, -9)
    log.say("culprit_named", ranks=list(range(number)), how="torchrun")
    log.attempt(2, number, first=7)
    log.steps(7, 12, epoch=2, pid=10 + 2 * number)
    for rank in range(number):
        log.exit(rank, 2, number, 0)
        log.say("rank_finished", rank=rank, pid=10 + rank + 2 * number)
    return log.end()


def own_ranks(number: int) -> list[Event]:
    """So many ranks of our own runtime, half of which are lost to one fault, and come back."""
    log = _ours(number, steps=30, gates=GATES)
    log.steps(1, 8)
    lost = list(range(1, number // 2))
    incident = log.strike(lost)
    for rank in lost:
        log.say("process_exited", role="rank", exited_rank=rank, exited_pid=100 + rank, exit=-9)
        log.say("detected", epoch=1, lost=[rank], how="connection")
    log.say("isolated", epoch=1)
    log.regroup(2, [rank for rank in range(number) if rank not in set(lost)], "loss")
    log.steps(9, 16, epoch=2)
    log.say("repair_started", incident=incident, ranks=lost)
    log.say("rejoin_requested", ranks=lost)
    log.regroup(3, range(number), "rejoin")
    log.say("rejoined", epoch=3, ranks=lost)
    log.steps(17, 30, epoch=3)
    for rank in range(number):
        log.say("rank_finished", rank=rank, pid=100 + rank, checksums={"layer.0": 1, "layer.1": 2})
    return log.end()


def attempts(number: int) -> list[Event]:
    """A command that is started so many times: of no fault, and each time it does a step again."""
    log = _command(gates=GATES)
    for attempt in range(1, number + 1):
        log.attempt(attempt, 2, first=attempt)
        log.steps(attempt, attempt + 1, epoch=attempt, pid=10 + 2 * attempt)
        log.exit(1, attempt, 2, 1 if attempt < number else 0)
    return log.end()


def dead_attempts(number: int) -> list[Event]:
    """One that comes to no step in so many starts."""
    log = _command(gates=GATES)
    for attempt in range(1, number + 1):
        log.attempt(attempt, 2)
        log.exit(1, attempt, 2, 1)
    log.steps(1, 4, epoch=number, pid=10 + 2 * number)
    return log.end()


def incidents(number: int) -> list[Event]:
    """So many faults, each of which a command comes through with a new attempt."""
    log = _command(gates=GATES)
    log.attempt(1, 2)
    log.steps(1, 6, pid=12)
    for index in range(number):
        log.strike([1])
        log.exit(1, index + 1, 2, -9)
        log.say("culprit_named", ranks=[1], how="torchrun")
        log.attempt(index + 2, 2)
        log.steps(7 + index, 7 + index, epoch=index + 2, pid=10 + 2 * (index + 2))
    return log.end()


def own_incidents(number: int) -> list[Event]:
    """So many ranks of our own runtime killed and repaired, one after the other."""
    log = _ours(steps=6 + 2 * number, gates=GATES)
    log.steps(1, 6)
    epoch = 1
    for index in range(number):
        incident = log.strike([1])
        log.say("process_exited", role="rank", exited_rank=1, exited_pid=101, exit=-9)
        log.say("detected", epoch=epoch, lost=[1], how="connection")
        log.say("culprit_named", ranks=[1], how="probe")
        log.say("isolated", epoch=epoch)
        log.regroup(epoch := epoch + 1, [0, 2, 3], "loss")
        log.steps(7 + 2 * index, 7 + 2 * index, epoch=epoch)
        log.say("repair_started", incident=incident, ranks=[1])
        log.regroup(epoch := epoch + 1, range(4), "rejoin")
        log.say("rejoined", epoch=epoch, ranks=[1])
        log.steps(8 + 2 * index, 8 + 2 * index, epoch=epoch)
    return log.end()


def overlapping_incidents(number: int) -> list[Event]:
    """So many faults that go on together, to the end."""
    log = _ours(steps=6 + number, gates=GATES)
    log.steps(1, 6)
    for index in range(number):
        incident = log.strike([index % 4], fault="slow-rank", is_loss=False, goes_on=True)
        log.say("outlasted", incident=incident, planned="2 steps")
        log.steps(7 + index, 7 + index)
    return log.end()


def failing_incidents(number: int) -> list[Event]:
    """So many faults of which the job never recovers; some could not be undone at once."""
    log = _ours(steps=400, gates=GATES)
    log.steps(1, 6)
    for index in range(number):
        log.strike([index % 4])
        log.say("undo_failed", incident=index, reason="busy")
        log.say("undone", incident=index)
    log.say("job_failed", reason="no rank is left")
    return log.end("failed")


def losses(number: int) -> list[Event]:
    """So many ranks of our own runtime lost to no fault, one after the other."""
    log = _ours(steps=6 + 2 * number, gates=GATES)
    log.steps(1, 6)
    log.strike([3], fault="slow-rank", is_loss=False)
    epoch = 1
    for index in range(number):
        log.say("detected", epoch=epoch, lost=[1], how="connection")
        log.say("process_exited", role="rank", exited_rank=1, exited_pid=101, exit=-11)
        log.regroup(epoch := epoch + 1, [0, 2, 3], "loss")
        log.steps(7 + 2 * index, 7 + 2 * index, epoch=epoch)
        log.regroup(epoch := epoch + 1, range(4), "rejoin")
        log.say("rejoined", epoch=epoch, ranks=[1])
        log.steps(8 + 2 * index, 8 + 2 * index, epoch=epoch)
    return log.end()


def unrecovered_losses(number: int) -> list[Event]:
    """So many different ranks lost to no fault, with their supervisors, and none of them comes back."""
    log = _ours(number + 1, steps=100, gates=GATES)
    log.steps(1, 6)
    for rank in range(number):
        log.say("process_exited", role="supervisor", exited_node=rank, exit=1)
        log.say("detected", epoch=1, lost=[rank], how="connection")
        log.say("process_exited", role="rank", exited_rank=rank, exited_pid=100 + rank, exit=-11)
    return log.end()


def coordinators(number: int) -> list[Event]:
    """The coordinator killed so many times."""
    log = _ours(steps=6 + number, gates=GATES)
    log.steps(1, 6)
    for index in range(number):
        log.strike([], fault="kill-coordinator")
        log.say("process_exited", role="coordinator", exit=-9)
        log.say("coordinator_restarted", epoch=1, members=[0, 1, 2, 3])
        log.steps(7 + index, 7 + index)
    return log.end()


def unfit_steps(number: int) -> list[Event]:
    """So many attempts at a step rejected while the numbers of a rank are corrupted, and as many left out."""
    log = _ours(steps=6 + number, gates=GATES)
    log.steps(1, 6)
    log.strike([1], fault="corrupt-gradient", is_loss=False)
    for index in range(number):
        log.say("step_unfit", step=7 + index, epoch=1, verdict="skip", suspects=[1], reason="not finite")
        log.steps(7 + index, 7 + index, skipped=True)
    return log.end()


def layouts(number: int) -> list[Event]:
    """So many memberships with all of their layout."""
    log = Writer()
    log.begin(runtime="mecefo", num_ranks=4, steps=number + 4, gates=("degraded_layers max <= 1",))
    spans = [
        {"rank": rank, "first": rank, "end": rank + 1, "degraded": [], "recomputed": [], "projected": []}
        for rank in range(LAYERS)
    ]
    layout = {"num_layers": LAYERS, "replicas": [{"replica": 0, "num_microbatches": 4, "spans": spans}]}
    for epoch in range(1, number + 1):
        reason = "start" if epoch == 1 else "rejoin"
        log.say("layout", epoch=epoch, reason=reason, members=[0, 1, 2, 3], layout=layout)
        log.say("regrouped", epoch=epoch, reason=reason, members=[0, 1, 2, 3])
        log.steps(epoch, epoch, epoch=epoch)
    return log.end()


def checkpoints(number: int) -> list[Event]:
    """So many checkpoints, of which every third was not saved."""
    log = _ours(steps=number, gates=GATES)
    log.strike([3], fault="slow-rank", is_loss=False)
    for step in range(1, number + 1):
        log.steps(step, step)
        log.say("checkpoint_written", rank=0, step=step, pid=100, blocking_seconds=1e-4, writing_seconds=1e-3)
        if step % 3 == 0:
            log.say("checkpoint_failed", rank=1, step=step, pid=101, reason="no space left on device")
    return log.end()


def warnings(number: int) -> list[Event]:
    """So many warnings, counters of devices, and events of kinds that nobody knows."""
    log = _ours(steps=20)
    log.steps(1, 10)
    for index in range(number):
        log.say("warning", message="an operator fell back")
        log.say("telemetry", fields={"rank": index % 4, "xid": index % 90, "ecc_sbe": 1, "ecc_dbe": 0})
        log.say("never_heard_of", value=index)
    log.steps(11, 20)
    return log.end()


def tensors(number: int) -> list[Event]:
    """Four ranks with so many tensors, of which half are the same in all, and one differs after the fault."""
    return _looks(number, 6, lambda rank, step, index: step if index % 2 or index == 0 else 16 * step + rank)


def sharded_tensors(number: int) -> list[Event]:
    """The same, of a model that is sharded over all ranks."""
    return _looks(number, 6, lambda rank, step, index: 16 * step + rank)


def looks(number: int) -> list[Event]:
    """So many looks at the state of four ranks, which differ in each of them."""
    return _looks(3, number, lambda rank, step, index: step if index == 1 else 16 * step + rank % 2)


def looks_of_replicas(number: int) -> list[Event]:
    """So many looks at ranks that hold the same."""
    return _looks(3, number, lambda rank, step, index: step)


def looking_ranks(number: int) -> list[Event]:
    """So many ranks of which each holds another part of one tensor, and the same of another."""
    return _looks(2, 4, lambda rank, step, index: step if index else 4096 * step + rank, num_ranks=number)


def _looks(num_tensors: int, num_looks: int, held: Callable[[int, int, int], int], num_ranks: int = 4) -> list[Event]:
    log = _command(num_ranks)
    log.attempt(1, num_ranks)
    names = tuple(f"layers.{index}.weight" for index in range(num_tensors))
    for step in range(1, num_looks + 1):
        log.steps(step, step)
        for rank in range(num_ranks):
            is_wrong = rank == 1 and step > num_looks // 2
            sums = (0xFFFF if is_wrong and index == 1 else held(rank, step, index) for index in range(num_tensors))
            log.look(rank, step, "".join(f"{one:08x}" for one in sums), names if step == 1 else ())
        if step == num_looks // 2:
            log.strike([1], fault="bitflip-parameter", is_loss=False)
    return log.end()


DIMENSIONS: Mapping[str, Callable[[int], list[Event]]] = {
    made.__name__: made
    for made in (
        steps, steps_out_of_order, redone_steps, returns, replica_groups, ranks, own_ranks, attempts, dead_attempts,
        incidents, own_incidents, overlapping_incidents, failing_incidents, losses, unrecovered_losses, coordinators,
        unfit_steps, layouts, checkpoints, warnings, tensors, sharded_tensors, looks, looks_of_replicas, looking_ranks,
    )
}  # fmt: skip
"""By name: a log that is as long as one is told, in one respect."""
