"""What a process of a job learns from its environment: one value, written by who starts it and read by the process.

The names of the variables stand here alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.events import MAIN_JOB
from mecefo_runtime.system.json_values import from_json, to_json
from mecefo_runtime.system.wire import LOOPBACK

# Set by every launcher, not by us alone.
_RANK, _LOCAL_RANK = "RANK", "LOCAL_RANK"
_PREFIX = "MECEFO_"


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """The variables of a rank, a supervisor, a coordinator or a snapshot process.

    job: the job, in MECEFO_JOB as JSON. name: of the job within its run, in MECEFO_JOB_NAME.
    coordinator: `host:port`. token: what connections over TCP begin with. Unix sockets need none.
    events: `unix:PATH` of the collector of events and orders; empty: events go to standard output.
    hooks: `module:function`, comma-separated; see `mecefo_runtime.training.hooks`.
    metrics: where to serve metrics, see `mecefo_runtime.training.exporter`; empty: nowhere.
    nccl_log: the file for what NCCL reports of its connections, with `{rank}` in it; empty: it reports nothing.
    host: this process's own address. snapshots: `host:port` of the node's snapshot process; empty: there is none.
    rank, local_rank: None in a process that is no rank. local_rank: its number among the ranks that see the same GPUs;
    without one it is the rank, which spreads ranks as evenly.
    """

    job: JobConfig
    name: str = MAIN_JOB
    coordinator: str = ""
    token: str = ""
    events: str = ""
    hooks: str = ""
    metrics: str = ""
    nccl_log: str = ""
    host: str = LOOPBACK
    snapshots: str = ""
    node: int = 0
    attempt: int = 1
    rank: int | None = None
    local_rank: int | None = None

    @classmethod
    def read(cls, variables: Mapping[str, str], job: JobConfig | None = None) -> Self:
        """From the variables of a process; `job`, where it is given, takes the place of MECEFO_JOB.

        Raises:
            KeyError: MECEFO_JOB is missing; ValueError: a value is not what it must be.
        """
        values: dict[str, Any] = {name: variables[one] for name, one in _WORDS.items() if one in variables}
        values |= {name: int(variables[one]) for name, one in _NUMBERS.items() if variables.get(one)}
        if job is None:
            job = from_json(JobConfig, json.loads(variables[_JOB]))
        return replace(cls(job), **values)

    def variables(self) -> dict[str, str]:
        """The variables; what has its default is left out."""
        found = {_JOB: json.dumps(to_json(self.job))}
        for name, variable in (*_WORDS.items(), *_NUMBERS.items()):
            value = getattr(self, name)
            if value != _DEFAULTS[name]:
                found[variable] = str(value)
        return found


_JOB = f"{_PREFIX}JOB"
_DEFAULTS = {one.name: one.default for one in fields(RankEnvironment)}
_WORDS = {
    "name": f"{_PREFIX}JOB_NAME",
    **{
        name: f"{_PREFIX}{name.upper()}"
        for name in ("coordinator", "token", "events", "hooks", "metrics", "nccl_log", "host", "snapshots")
    },
}
_NUMBERS = {"node": f"{_PREFIX}NODE", "attempt": f"{_PREFIX}ATTEMPT", "rank": _RANK, "local_rank": _LOCAL_RANK}
