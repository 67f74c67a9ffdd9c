"""What a peer is, and the job that all of them run: our model, batch and recipe, and whom to kill in which step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.json_values import from_json, to_json

JOB_VARIABLE = "PEER_JOB"


@dataclass(frozen=True, slots=True)
class PeerJob:
    """A job of `config.data_parallel` ranks, each with the whole model. `folder` takes its records and logs.

    `victim` kills itself as it begins the forward pass of `fault_step`, once per job. `settings` are the peer's own.
    """

    config: JobConfig
    victim: int
    fault_step: int
    folder: Path
    settings: Mapping[str, Any]

    @property
    def num_ranks(self) -> int:
        """Ranks, which are replicas."""
        return self.config.data_parallel

    def to_environment(self) -> dict[str, str]:
        """The variable from which `from_environment` reads the job again in a process of the peer."""
        values = {
            "config": to_json(self.config),
            "victim": self.victim,
            "fault_step": self.fault_step,
            "folder": str(self.folder),
            "settings": dict(self.settings),
        }
        return {JOB_VARIABLE: json.dumps(values)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> PeerJob:
        """The job of this process."""
        values = json.loads(environment[JOB_VARIABLE])
        return cls(
            from_json(JobConfig, values["config"]),
            values["victim"],
            values["fault_step"],
            Path(values["folder"]),
            values["settings"],
        )

    def samples_of_rank(self, step: int, rank: int) -> list[range]:
        """The samples of a rank's microbatches in a step: those of our replica of that number."""
        size, count = self.config.microbatch_size, self.config.microbatches_per_replica
        first = (step - 1) * self.config.samples_per_step + rank * count * size
        return [range(first + index * size, first + (index + 1) * size) for index in range(count)]


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to survive, with its settings: the command lines of its ranks, and of what runs beside them.

    The ranks end by themselves after the last step; services do not. All find the job in their environment, and
    `environment` as well.
    """

    name: str
    settings: Mapping[str, Any]
    workers: Callable[[PeerJob], list[list[str]]]
    services: Callable[[PeerJob], list[list[str]]] = lambda job: []
    environment: Mapping[str, str] = field(default_factory=dict)
