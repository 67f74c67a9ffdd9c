"""One fault as a user writes it: kind, target, trigger, recurrence, duration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_serializer, model_validator

from chaos.errors import UsageError, setting
from chaos.experiment.fields import DurationText, RateText, RepairText, RetriggerText, Said, TargetText, TriggerText
from chaos.language.recurrence import MAX_INCIDENTS, Rate, Recurrence, default_first
from chaos.language.trigger import Duration, Trigger
from chaos.language.validation_errors import said

# What can be said of every fault. A fault's own parameters have other names.
FAULT_KEYS = ("kind", "on", "at", "for", "repair", "every", "rate", "count", "within", "retrigger", "then", "draw")

PARAMETERS = "parameters"

# What faults are called elsewhere.
OTHER_NAMES = {
    **dict.fromkeys(("kill-rank", "kill-gpu", "kill-worker", "sigkill"), "kill-process"),
    **dict.fromkeys(("crash", "exception"), "raise"),
    **dict.fromkeys(("nan", "inject-nan"), "set-nan"),
    **dict.fromkeys(("straggler", "slow-node", "slow-gpu"), "slow-rank"),
    **dict.fromkeys(("hang", "freeze"), "pause-process"),
    **dict.fromkeys(("oom", "cuda-oom"), "gpu-oom"),
    **dict.fromkeys(("delay-link", "latency", "packet-loss"), "slow-link"),
}


def written(parameters: BaseModel) -> dict[str, Any]:
    """Parameters as plain values, without those that came `later` and were not given.

    The hash of an experiment that does not use them stays what it was.
    """
    values = parameters.model_dump(mode="json")
    later: tuple[str, ...] = getattr(parameters, "later", ())
    return {key: one for key, one in values.items() if key not in later or key in parameters.model_fields_set}


class FaultSpec(Said):
    """One fault: `kind`, target `on` (default: drawn from the seed), trigger `at`, and the time until `repair`.

    `lifetime` (`for`) None is the kind's own; `repair` None is what is usual for it, see `schedule`. With `every`
    or `rate` it recurs, and `at` is when it may fire first. `retrigger` says at which attempts of the
    job's launcher it fires: `once`, `every-attempt`, or a number. `then` is a
    fault that follows when it is verified. What the fault draws when it fires, such as an
    element of a tensor, it draws as incident `draw` of the run would; None: as the incident that it is. `parameters`
    are those of its kind; in a file they stand beside the other keys.
    """

    kind: str = Field(description="kind of fault; `chaos faults` lists all")
    on: TargetText | None = Field(
        default=None, description="target, such as rank=1 or node=2; default: drawn by the seed"
    )
    at: TriggerText = Field(
        description="trigger, such as step=100 or time=10s; with `every` or `rate`, when it may fire first"
    )
    lifetime: DurationText | None = Field(
        default=None, alias="for", description="duration; default: that of the kind, or to the end of the job"
    )
    repair: RepairText | None = Field(
        default=None, description="time until the affected ranks are started again; default: 40steps"
    )
    every: DurationText | None = Field(default=None, description="interval of a recurring fault")
    rate: RateText | None = Field(default=None, description="mean rate of a fault at random times")
    count: int | None = Field(
        default=None, ge=1, le=MAX_INCIDENTS, description="with `every` or `rate`: maximum number of incidents"
    )
    within: DurationText | None = Field(
        default=None, description="with `every` or `rate`: only this long after the start of the job"
    )
    retrigger: RetriggerText = Field(
        default="once",
        description="attempts of the job's launcher at which the fault fires: once, every-attempt, or a number",
    )
    then: Literal["kill-job"] | None = Field(
        default=None,
        description="of a fault that damages stored state: kill-job, once that is verified, so that it is read",
    )
    draw: int | None = Field(
        default=None, ge=0, lt=10**6, description="incident whose random draws are repeated; written by `chaos shrink`"
    )
    parameters: dict[str, Any] = Field(default_factory=dict)

    @property
    def recurrence(self) -> Recurrence | None:
        """How often it fires; None: once.

        Raises:
            UsageError: what is said of it contradicts itself.
        """
        if self.every is None and self.rate is None:
            for key in ("count", "within"):
                if getattr(self, key) is not None:
                    raise UsageError(
                        f"{key} limits a recurring fault: write {setting('every')} or {setting('rate')}, too",
                        key=key,
                    )
            return None
        return Recurrence(self.at, self.every, self.rate, self.count, self.within)

    @model_validator(mode="before")
    @classmethod
    def _fires_first_where_nothing_is_said(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("at") is not None:
            return values
        every, rate = values.get("every"), values.get("rate")
        if every is None and rate is None:
            return values
        try:
            first = default_first(
                None if every is None else Duration.parse(every), None if rate is None else Rate.parse(rate)
            )
        except UsageError:
            # Which is said when the field itself is judged.
            first = Trigger(step=1)
        return {**values, "at": first}

    @model_validator(mode="after")
    def _recurs_without_contradiction(self) -> Self:
        said(lambda _: self.recurrence)(None)
        return self

    @model_serializer
    def _to_mapping(self) -> dict[str, Any]:
        given = {
            "on": self.on,
            "at": self.at,
            "for": self.lifetime,
            "repair": self.repair,
            "every": self.every,
            "rate": self.rate,
            "within": self.within,
        }
        texts = {key: str(value) for key, value in given.items() if value is not None}
        count = {} if self.count is None else {"count": self.count}
        retrigger = {} if self.retrigger == "once" else {"retrigger": self.retrigger}
        then = {} if self.then is None else {"then": self.then}
        draw = {} if self.draw is None else {"draw": self.draw}
        return {"kind": self.kind, **texts, **count, **retrigger, **then, **draw, **self.parameters}
