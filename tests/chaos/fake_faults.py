"""Faults as the experiment knows them: a kind, a scope, parameters. Nothing here can be injected."""

from pydantic import BaseModel, ConfigDict, Field, field_validator

from chaos.trigger import Duration


class NoParameters(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LinkParameters(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    delay: str
    loss_ratio: float = Field(default=0.0, ge=0, le=1)

    @field_validator("delay")
    @classmethod
    def _is_duration(cls, text):
        # Lets a UsageError out of the validator, as a fault may.
        Duration.parse(text)
        return text


class KillNode:
    """Kill a node.

    More about it.
    """

    kind = "kill-node"
    is_loss = True
    scope = "node"
    Parameters = NoParameters


class KillProcess:
    """Kill a process."""

    kind = "kill-process"
    is_loss = True
    scope = "rank"
    Parameters = NoParameters


class SlowLink:
    """Slow a link."""

    kind = "slow-link"
    is_loss = False
    scope = "rank"
    Parameters = LinkParameters


REGISTRY = {fault.kind: fault for fault in (KillNode, KillProcess, SlowLink)}
STRATEGIES = ("exact", "mecefo", "ndb")
