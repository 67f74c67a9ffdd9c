"""A rank's connections to the run: the agent that may be held, and the report of what is seen."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch

from chaos.external.early import channel
from chaos.external.identity import Identity, identify, may_be_rank
from chaos.external.report import Report
from chaos.in_process.agent import Agent
from chaos.in_process.protocol import AGENT_VARIABLE, ASKS_FOR_START
from mecefo_runtime.system.command_records import EndedWithoutStep
from mecefo_runtime.system.job_records import RankStarted


def connect(environment: Mapping[str, str], identity: Identity) -> tuple[Agent, Report]:
    """Register as this rank.

    Raises:
        OSError, mecefo_runtime.system.wire.WireError: there is no listener, or it refuses this rank.
    """
    agent = Agent(
        environment[AGENT_VARIABLE],
        rank=identity.rank,
        node=identity.node,
        attempt=identity.attempt,
        world_size=identity.world_size,
        local_rank=identity.local_rank,
        **{ASKS_FOR_START: 1},
        **({} if identity.replica is None else {"replica": identity.replica}),
    )
    report = channel().report(identity)
    # What was seen before a rank is held may be the last of it.
    agent.before_hold = report.flush
    report.emit(RankStarted(world_size=identity.world_size, framework=f"torch {torch.__version__}"))
    return agent, report


def tell_idleness(environment: Mapping[str, str]) -> None:
    """An optimizer was made here, and the process comes to its end without a step that was seen."""
    if may_be_rank(environment):
        channel().report(identify(environment)).emit(EndedWithoutStep(is_compiled=_has_compiled()))


def _has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters and counters["frames"]["ok"])
