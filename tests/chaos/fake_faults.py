"""Faults as the experiment knows them: a kind, a scope, parameters. Nothing here can be injected."""

from pydantic import BaseModel, ConfigDict, Field, field_validator

from chaos.language.trigger import Duration


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


class _Fault:
    """What the base class of real faults says of all."""

    is_loss = False
    affects = "the newest checkpoint"
    needs = ()
    has_lifetime = False
    acts_inside = False
    default_lifetime = None
    exclusive = None
    Parameters = NoParameters

    def __init__(self, parameters):
        self.parameters = parameters

    def lasts(self):
        return self.has_lifetime

    @classmethod
    def phases_for(cls, parameters):
        return None

    @classmethod
    def longest_seconds(cls, parameters):
        return None


class KillNode(_Fault):
    """Kill a node.

    More about it.
    """

    kind = "kill-node"
    is_loss = True
    scope = "node"
    Parameters = NoParameters


class KillProcess(_Fault):
    """Kill a process."""

    kind = "kill-process"
    is_loss = True
    scope = "rank"
    Parameters = NoParameters


class SlowLink(_Fault):
    """Slow a link."""

    kind = "slow-link"
    is_loss = False
    scope = "rank"
    Parameters = LinkParameters


class SlowRank(_Fault):
    """Slow a rank."""

    kind = "slow-rank"
    scope = "rank"
    has_lifetime = True
    default_lifetime = Duration(steps=20)


class DropLink(_Fault):
    """Drop a link."""

    kind = "drop-link"
    scope = "link"
    needs = ("links", "root")
    has_lifetime = True


class TearCheckpoint(_Fault):
    """Tear a checkpoint."""

    kind = "tear-checkpoint"
    scope = "checkpoint"
    needs = ("checkpoints",)


REGISTRY = {fault.kind: fault for fault in (KillNode, KillProcess, SlowLink, SlowRank, DropLink, TearCheckpoint)}
STRATEGIES = ("exact", "mecefo", "ndb")
