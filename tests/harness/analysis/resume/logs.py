"""Synthetic records of a command that trains, dies and continues: who reported what, told by a few knobs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from harness.analysis.resume.read import ResumeFigures, read_resume_figures
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import CheckpointWritten
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.records import parse

RANKS = (0, 1)
Batch = Callable[[int, int], Sequence[int]]
"""Step and rank -> the indices of the samples that the step of that rank used."""


def row(sample: object) -> bytes:
    return hashlib.blake2b(repr(sample).encode(), digest_size=8).digest()


def digest(samples: Sequence[object]) -> str:
    return base64.b64encode(b"".join(map(row, samples))).decode()


class Log:
    """Adds records in the order of time."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.saved: list[CheckpointWritten] = []
        self.seconds = 0.0

    def add(self, kind: str, rank: int | None = None, step: int | None = None, pid: int = 1, **fields: Any) -> Record:
        self.seconds += 0.01
        record = parse(Event(kind, "rank", self.seconds, self.seconds, pid, rank=rank, step=step, fields=fields))
        self.records.append(record)
        return record

    def attempt(
        self,
        number: int,
        steps: range,
        batch: Batch,
        *,
        ranks: Sequence[int] = RANKS,
        entered: Callable[[int], dict[str, Any]] | None = None,
        entered_step: int | None = -1,
        step: Callable[[int, int], dict[str, Any]] | None = None,
        content: Callable[[int, int, int], object] | None = None,
        sampler: dict[str, Any] | None = None,
        saves: Callable[[int, int], dict[str, Any] | None] | None = None,
        with_indices: bool = True,
    ) -> None:
        """One attempt; it says of itself that it continues after the step before `steps`, unless told otherwise."""
        self.add("attempt_started", attempt_number=number, world_size=len(ranks))
        after = steps.start - 1 if entered_step == -1 else entered_step
        for rank in ranks:
            own = {} if entered is None else entered(rank)
            self.add("training_entered", rank, after, number * 100 + rank, **{"parameters": f"p{after}", **own})
            if sampler is not None:
                self.add("sampler_seen", rank, None, number * 100 + rank, **sampler)
        for now in steps:
            for rank in ranks:
                samples = list(batch(now, rank))
                rows = samples if content is None else [content(now, rank, one) for one in samples]
                more = {"indices": [samples]} if with_indices else {}
                own = {} if step is None else step(now, rank)
                fields = {"batches": [digest(rows)], **more, "rates": [0.01], **own}
                self.add("step_seen", rank, now, number * 100 + rank, **fields)
                saving = None if saves is None else saves(now, rank)
                if saving is not None:
                    self.add("checkpoint_begun", rank, now, number * 100 + rank, **saving)

    def figures(self, baseline: Log | None = None, first_fault_seconds: float | None = None) -> ResumeFigures:
        return read_resume_figures(
            self.records,
            [] if baseline is None else baseline.records,
            self.saved,
            first_fault_seconds=first_fault_seconds,
            are_steps_counted=True,
        )


def sampler_of(size: int, **more: Any) -> dict[str, Any]:
    return {
        "sampler": "DistributedSampler",
        "num_samples": size,
        "is_shared": True,
        "has_replacement": False,
        "padding": 0,
        "drops": 0,
        **more,
    }
