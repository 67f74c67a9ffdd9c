"""The types of an experiment's values: how each is read, written, and described in the JSON Schema."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema

from chaos.errors import UsageError, nearest, shown
from chaos.experiment.profile import PROFILES, ProfileSpec
from chaos.language.recurrence import Rate
from chaos.language.save_moment import AFTER, DURING
from chaos.language.target import Target
from chaos.language.trigger import OPEN_PHASES, PHASES, Duration, Trigger, whole_number
from chaos.language.validation_errors import said
from chaos.plain_text import is_plain
from mecefo_runtime.job.config import MAX_RANKS, MAX_STEPS, PRESETS, QUALITIES

MAX_TEXT = 200
"""Characters of a text."""


class Said(BaseModel):
    """What a user's text comes in as: nothing unknown, nothing converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def require_few_ranks(nodes: int, gpus_per_node: int, given: Collection[str], otherwise: str = "nodes") -> None:
    """Check that a job has at most MAX_RANKS ranks.

    Raises:
        UsageError: it has more. It names the larger one of `nodes` and `gpus_per_node` that is among the keys `given`,
            or else the key `otherwise`.
    """
    num_ranks = nodes * gpus_per_node
    if num_ranks > MAX_RANKS:
        sizes = {name: size for name, size in (("gpus_per_node", gpus_per_node), ("nodes", nodes)) if name in given}
        message = f"{nodes} nodes x {gpus_per_node} ranks are {num_ranks} ranks, and a job has at most {MAX_RANKS}"
        raise UsageError(message, key=max(sizes, key=sizes.__getitem__, default=otherwise))


def one_line(text: object) -> str:
    """`text`, after a check that it is one line without control characters.

    Raises:
        UsageError: it has control characters in it.
    """
    if not isinstance(text, str) or not is_plain(text):
        raise UsageError(f"{shown(text)} has control characters in it: write it on one line")
    return text


def _model_name(name: object) -> str:
    if not isinstance(name, str) or name not in PRESETS:
        message = f"there is no model {shown(name)}: there are {', '.join(PRESETS)}"
        raise UsageError(message, suggestion=nearest(str(name), PRESETS))
    return name


def wait(value: object) -> Duration:
    """A time to wait, more than 0.

    Raises:
        UsageError: it is none.
    """
    duration = Duration.parse(value, in_steps=False)
    if not duration.seconds:
        raise UsageError(f"{shown(value)} is no time to wait: write 30s, 5min or 1h")
    return duration


def _dilation(value: object) -> str | float:
    if value in ("auto", "off"):
        return str(value)
    try:
        ratio = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        ratio = 0.0
    if not 1 <= ratio <= _MAX_DILATION_RATIO:
        raise UsageError(f"must be auto, off or a number from 1 to {_MAX_DILATION_RATIO:g}, not {shown(value)}")
    return ratio


def _quality(value: object) -> str | float:
    if isinstance(value, str) and value in QUALITIES:
        return value
    try:
        share = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        share = -1.0
    if not 0 <= share <= 1:
        suggestion = nearest(value, QUALITIES) if isinstance(value, str) else None
        message = f"must be {', '.join(QUALITIES)} or a share from 0 to 1, not {shown(value)}"
        raise UsageError(message, suggestion=suggestion)
    return share


def _snapshot_interval(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    steps = whole_number(value)
    if steps is None or not 1 <= steps <= MAX_STEPS:
        suggestion = nearest(value, ("auto",)) if isinstance(value, str) else None
        raise UsageError(f"must be auto or a number of steps from 1 on, not {shown(value)}", suggestion=suggestion)
    return steps


def _repair(value: object) -> Duration | Literal["none"]:
    if value == "none":
        return "none"
    try:
        return Duration.parse(value)
    except UsageError as error:
        raise UsageError(f"{error.message}; or none, to leave it broken", suggestion=error.suggestion) from None


def _retrigger(value: object) -> str | int:
    if value in _RETRIGGERS:
        return str(value)
    attempts = whole_number(value)
    if attempts is None or attempts < 1:
        words = " or ".join(_RETRIGGERS)
        suggestion = nearest(value, _RETRIGGERS) if isinstance(value, str) else None
        message = f"must be {words}, or the number of attempts at which it fires, not {shown(value)}"
        raise UsageError(message, suggestion=suggestion)
    return attempts


_MAX_DILATION_RATIO = 1000.0
_RETRIGGERS = ("once", "every-attempt")
AS_TEXT = PlainSerializer(str, return_type=str)
_TRIGGER_SCHEMA = {
    "anyOf": [
        {
            "type": "string",
            "examples": ["step=500", "step=500,phase=backward", "step=500,after=file", "phase=regroup", "time=10s"],
        },
        {
            "type": "object",
            "properties": {
                "step": {"type": "integer", "minimum": 1},
                "phase": {"enum": [*PHASES, *OPEN_PHASES]},
                "time": {"type": "string", "examples": ["10s"]},
                "after": {"type": "string", "examples": [*AFTER, "1MB"]},
                "during": {"enum": [*DURING]},
            },
            "additionalProperties": False,
        },
    ]
}
_TARGET_SCHEMA = {
    "type": "string",
    "examples": ["rank=3", "node=1+2", "rack=0", "stage=1,replica=0", "role=coordinator", "link=2-5", "random:2"],
}
_REPAIR_SCHEMA = {"type": "string", "examples": ["40steps", "10s", "none"]}
_DURATION_SCHEMA = {"type": "string", "examples": ["30s", "10steps"]}
_RATE_SCHEMA = {"type": "string", "examples": ["0.5/min", "2/100steps"]}
_RETRIGGER_SCHEMA = {"anyOf": [{"enum": list(_RETRIGGERS)}, {"type": "integer", "minimum": 1}]}
_PROFILE_SCHEMA = {
    "anyOf": [
        {"type": "string", "examples": [*PROFILES, "llama3:10"]},
        {
            "type": "object",
            "properties": {"name": {"enum": list(PROFILES)}, "failures": {"type": "integer", "minimum": 1}},
            "required": ["name"],
            "additionalProperties": False,
        },
    ]
}
_QUALITY_SCHEMA = {"anyOf": [{"enum": list(QUALITIES)}, {"type": "number", "minimum": 0, "maximum": 1}]}
_DILATION_SCHEMA = {
    "anyOf": [{"enum": ["auto", "off"]}, {"type": "number", "minimum": 1, "maximum": _MAX_DILATION_RATIO}]
}

_SNAPSHOT_INTERVAL_SCHEMA = {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": MAX_STEPS}]}

Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(said(one_line))]
ModelName = Annotated[str, AfterValidator(said(_model_name)), WithJsonSchema({"enum": list(PRESETS)})]
DilationText = Annotated[str | float, PlainValidator(said(_dilation)), WithJsonSchema(_DILATION_SCHEMA)]
QualityText = Annotated[str | float, PlainValidator(said(_quality)), WithJsonSchema(_QUALITY_SCHEMA)]
SnapshotIntervalText = Annotated[
    int | Literal["auto"], PlainValidator(said(_snapshot_interval)), WithJsonSchema(_SNAPSHOT_INTERVAL_SCHEMA)
]
TargetText = Annotated[Target, PlainValidator(said(Target.parse)), AS_TEXT, WithJsonSchema(_TARGET_SCHEMA)]
TriggerText = Annotated[Trigger, PlainValidator(said(Trigger.parse)), AS_TEXT, WithJsonSchema(_TRIGGER_SCHEMA)]
RepairText = Annotated[
    Duration | Literal["none"], PlainValidator(said(_repair)), AS_TEXT, WithJsonSchema(_REPAIR_SCHEMA)
]
WAIT_SCHEMA = {"type": "string", "examples": ["30s", "5min"]}
WaitText = Annotated[Duration, PlainValidator(said(wait)), AS_TEXT, WithJsonSchema(WAIT_SCHEMA)]
DurationText = Annotated[Duration, PlainValidator(said(Duration.parse)), AS_TEXT, WithJsonSchema(_DURATION_SCHEMA)]
RateText = Annotated[Rate, PlainValidator(said(Rate.parse)), AS_TEXT, WithJsonSchema(_RATE_SCHEMA)]
RetriggerText = Annotated[str | int, PlainValidator(said(_retrigger)), WithJsonSchema(_RETRIGGER_SCHEMA)]
ProfileText = Annotated[ProfileSpec, PlainValidator(said(ProfileSpec.parse)), AS_TEXT, WithJsonSchema(_PROFILE_SCHEMA)]
