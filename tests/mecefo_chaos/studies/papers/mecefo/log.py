"""The log of an emulated run that nobody made, told by a clock of its own: every time in it is known."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mecefo_runtime.job.emulation import Emulation
from mecefo_runtime.system.events import Event
from tests.mecefo_chaos.studies.papers.mecefo.made import cell_of

# A second of the device lasts two. All other times here are those of the wall clock.
SCALE = 2.0
FREE_SECONDS, HIT_SECONDS = 8.0, 8.4
DETECTION_SECONDS, REGROUP_SECONDS, TRANSFER_SECONDS = 0.5, 1.5, 3.0
# Two seconds over 25 GB/s.
MOVED_BYTES = 50 * 10**9
CELL = cell_of()
EVERYBODY = tuple(range(32))
LOST = 9
EMULATION = asdict(
    Emulation(
        device_model="a100-7b",
        provenance="predicted",
        device="A100",
        model="7b",
        sequence_length=256,
        message_bytes=1,
        time_scale=SCALE,
    )
)


class Log:
    """Events in a row, told with a clock of their own."""

    def __init__(self, emulation: dict[str, Any] | None = EMULATION) -> None:
        self.now = 100.0
        self.step = 0
        self.epoch = 1
        self.events: list[Event] = []
        self.tell("job_started", "conductor", num_ranks=32, nodes=4, steps=12, emulation=emulation)
        self.form("start", EVERYBODY)

    def tell(self, kind: str, source: str, step: int | None = None, rank: int | None = None, **fields: Any) -> None:
        self.events.append(Event(kind, source, self.now, self.now, 1, step=step, rank=rank, fields=fields))

    def form(self, reason: str, members: tuple[int, ...], fetched: int = 0, transfer_seconds: float = 0.0) -> None:
        told: dict[str, Any] = {"epoch": self.epoch, "reason": reason, "members": members}
        self.tell("layout", "coordinator", self.step, num_fetched_in_background=fetched, **told)
        self.now += 0.0 if reason == "start" else REGROUP_SECONDS + transfer_seconds
        moved_bytes = MOVED_BYTES if transfer_seconds else 0
        self.tell(
            "regrouped",
            "coordinator",
            self.step,
            transfer_seconds=transfer_seconds,
            transfer_bytes=moved_bytes,
            **told,
        )

    def commit(self, *seconds: float) -> None:
        for length in seconds:
            began, self.now, self.step = self.now, self.now + length, self.step + 1
            fields = {"began_monotonic": began, "committed_monotonic": self.now, "tokens": 10, "loss": 2.0}
            self.tell("step_committed", "rank", self.step, rank=0, epoch=self.epoch, **fields)

    def lose(self) -> None:
        fields = {"incident": 0, "fault": "kill-process", "is_loss": True, "ranks": (LOST,)}
        self.tell("injected", "injector", self.step + 1, **fields)
        self.tell("verified", "injector", self.step + 1, incident=0, evidence={})
        self.now += DETECTION_SECONDS
        self.tell("detected", "coordinator", self.step + 1, epoch=self.epoch, lost=(LOST,), how="connection")
        self.epoch += 1

    def end(self, outcome: str = "completed", num_overruns: int = 2) -> list[Event]:
        finished = {"num_segments": 100, "num_overruns": num_overruns, "worst_overrun_seconds": 0.1}
        self.tell("rank_finished", "rank", rank=0, **finished)
        self.tell("job_ended", "conductor", outcome=outcome, steps_committed=self.step)
        self.tell("run_ended", "conductor", reason="completed", message="")
        return self.events


def struck_log(fetched: int = 0) -> list[Event]:
    """Five free steps; one lost after 2 s of a step; state moves; six steps, the first one longer, one disturbed."""
    log = Log()
    log.commit(FREE_SECONDS + 1, *[FREE_SECONDS] * 4)
    log.now += 2.0
    log.lose()
    log.form("loss", tuple(rank for rank in EVERYBODY if rank != LOST), fetched, TRANSFER_SECONDS)
    log.commit(HIT_SECONDS + 1, *[HIT_SECONDS] * 4, HIT_SECONDS + 0.6)
    return log.end()
