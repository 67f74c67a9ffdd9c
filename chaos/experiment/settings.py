"""The settings of a job, which `mecefo_runtime.job.config` describes, as pydantic models of what a user writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema, create_model
from pydantic.fields import FieldInfo

from chaos.errors import UsageError, shown
from chaos.experiment.fields import AS_TEXT, WAIT_SCHEMA, Text, wait
from chaos.language.quantities import BytesText
from chaos.language.trigger import Duration
from chaos.language.validation_errors import said
from mecefo_runtime.job.setting import INLINE, Place, alternatives, own_places

Model = TypeVar("Model", bound="type[SettingsText]")


class SettingsText(BaseModel, extra="forbid", frozen=True, strict=True):
    """Settings as a user writes them: as `Said`, frozen for type checkers too, as the dataclasses are."""


def model_of(settings: type, base: type[SettingsText] = SettingsText) -> Any:
    """A model with a field for each setting of a dataclass, after those of `base`: key, type, limits, default, text.

    The types of parts, and of whatever a user writes otherwise than the runtime has it, are for a subclass to declare.
    """
    fields: dict[str, Any] = {place.setting.key: (_annotation(place), _field(place)) for place in _own(settings)}
    return create_model(f"{settings.__name__}Text", __base__=base, **fields)


def with_texts(settings: type) -> Callable[[Model], Model]:
    """A decorator that gives the fields that a subclass of `model_of(settings)` declares the texts of the settings."""

    def describe(model: Model) -> Model:
        fields: dict[str, FieldInfo] = cast(type[BaseModel], model).model_fields
        for place in _own(settings):
            fields[place.setting.key].description = place.setting.text
        model.model_rebuild(force=True)
        return model

    return describe


def config_values(text: SettingsText, settings: type) -> dict[str, Any]:
    """The values of a model of `settings` by the names of its fields; times in seconds."""
    values = {place.name: getattr(text, place.setting.key) for place in own_places(settings) if place.setting.key}
    return {name: value.seconds if isinstance(value, Duration) else value for name, value in values.items()}


def _own(settings: type) -> list[Place]:
    """The settings whose keys are those of one model: of parts only those that are inline."""
    found: list[Place] = []
    for place in own_places(settings):
        found += _own(place.part) if place.setting.key == INLINE and place.part is not None else [place]
    return found


def _annotation(place: Place) -> Any:
    kinds, setting = alternatives(place.type), place.setting
    kind: Any = place.type
    if place.part is not None:
        kind = Any
    elif setting.unit == "seconds":
        kind = _duration(setting.at_least, setting.at_most)
    elif setting.unit == "bytes":
        kind = BytesText
    elif str in kinds:
        kind = Text
    return kind if kind is place.type or type(None) not in kinds else kind | None


def _field(place: Place) -> Any:
    setting = place.setting
    limits: dict[str, Any] = {}
    if not setting.unit:
        limits = {"ge": setting.at_least, "gt": setting.above, "le": setting.at_most}
        limits = {
            key: int(limit) if limit == int(limit) else limit for key, limit in limits.items() if limit is not None
        }
        if float in alternatives(place.type):
            limits["allow_inf_nan"] = False
    default: Any = place.default
    if place.is_required:
        return Field(description=setting.text, **limits)
    if setting.unit == "seconds" and default is not None:
        default = Duration(seconds=default)
    return Field(default=default, description=setting.text, **limits)


def _duration(at_least: float | None, at_most: float | None) -> Any:
    """A time to wait within limits."""

    def read(value: object) -> Duration:
        duration = wait(value)
        if at_least is not None and at_most is not None and not at_least <= (duration.seconds or 0.0) <= at_most:
            raise UsageError(f"{shown(value)} is not between {_time_text(at_least)} and {_time_text(at_most)}")
        return duration

    return Annotated[Duration, PlainValidator(said(read)), AS_TEXT, WithJsonSchema(WAIT_SCHEMA)]


def _time_text(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    return f"{seconds:g}s" if seconds % 60 else f"{seconds / 60:g}min"
