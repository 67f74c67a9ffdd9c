"""A job from text: a file with the settings that an experiment's `job` has, or a `JobConfig` as JSON; and options.

Only the standard library, and PyYAML where there is a file. The first mistake is reported, by its key.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mecefo_runtime.job.config import PRESETS, QUALITIES, JobConfig, JobSettings, quality_of
from mecefo_runtime.job.setting import BYTES_PER_UNIT, SECONDS_PER_UNIT, Place, alternatives, own_places, words_of
from mecefo_runtime.system.json_values import from_json

_QUANTITY = re.compile(r"(\d{1,16}(?:\.\d{1,9})?)\s*([A-Za-z]*)")
# What only the harness does, with the words that ask for nothing.
_OF_THE_HARNESS = {"device_model": (None,), "time_scale": ("auto",), "link": (None,), "dilation": ("auto", "off")}
_MAX_FILE_BYTES = 128 * 1024


class SettingError(ValueError):
    """A setting is not what it may be; the text begins with its key."""


def read_file(path: Path) -> tuple[JobConfig | None, dict[str, Any]]:
    """The job of a file, None where it gives settings; and these by their keys, `seed` among them if it has one.

    The file is a `JobConfig` as JSON, or JSON or YAML with the keys of an experiment's `job`, or an experiment.

    Raises:
        SettingError: it cannot be read, or is none of these.
    """
    import yaml

    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        # Every scalar stays text: the type of its setting says how it is read.
        raw = yaml.load(content, Loader=yaml.BaseLoader) if len(content) <= _MAX_FILE_BYTES else None
        if isinstance(raw, dict) and isinstance(raw.get("model"), dict):
            return from_json(JobConfig, json.loads(content)), {}
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, TypeError, KeyError) as error:
        raise SettingError(f"{path} is not a job: {str(error).splitlines()[0]}") from error
    if not isinstance(raw, dict):
        raise SettingError(f"{path} is not a job: write lines of the form `steps: 200`")
    job = raw.get("job", {} if "faults" in raw else raw)
    if not isinstance(job, dict):
        raise SettingError(f"{path} is not a job: `job` is not a mapping")
    return None, job if job is raw or "seed" not in raw else {**job, "seed": raw["seed"]}


def with_settings(job: JobConfig, raw: Mapping[str, Any]) -> JobConfig:
    """`job` with its settings replaced by `raw`, by their keys; the values are text or have their types.

    Raises:
        SettingError: one of them is not what it may be.
        ValueError: together they do not make a job.
    """
    settings = dict(raw)
    values: dict[str, Any] = {}
    if (runtime := settings.pop("runtime", "mecefo")) != "mecefo":
        raise SettingError(f"runtime must be mecefo, not {runtime!r}")
    if (seed := settings.pop("seed", None)) is not None:
        if not str(seed).isdecimal():
            raise SettingError(f"seed must be a whole number, not {seed!r}")
        values["seed"] = int(seed)
    for key, nothing in _OF_THE_HARNESS.items():
        if key in settings and settings.pop(key) not in (*nothing, "", "null"):
            raise SettingError(f"{key} is emulated by `chaos run` alone: leave it out")
    if (model := settings.pop("model", None)) is not None:
        if model not in PRESETS:
            raise SettingError(f"model must be one of {', '.join(PRESETS)}, not {model!r}{_guess(model, PRESETS)}")
        values["model"] = PRESETS[model]
    if (quality := settings.pop("quality", None)) is not None:
        limits = quality_of(quality if quality in QUALITIES else _number("quality", quality))
        values |= limits._asdict()
    return replace(job, **values | _read(job, JobSettings, settings))


def _read(current: Any, settings: type, raw: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """The values of fields for `raw`; what of a part is not given stays as `current` has it."""
    by_key = {place.setting.key: place for place in own_places(settings)}
    values: dict[str, Any] = {}
    for key, text in raw.items():
        name = f"{within}{key}"
        if key not in by_key:
            raise SettingError(f"there is no setting {name}{_guess(key, by_key)}")
        place = by_key[key]
        if place.part is None or (text in (None, "", "null") and _is_optional(place)):
            values[place.name] = _value(name, place, text)
        elif not isinstance(text, Mapping):
            raise SettingError(f"{name} must be a mapping, not {text!r}")
        else:
            part: Any = getattr(current, place.name, None)
            inner = _read(part, place.part, text, f"{name}.")
            values[place.name] = _made(name, place, inner) if part is None else replace(part, **inner)
    return values


def _made(name: str, place: Place, values: Mapping[str, Any]) -> Any:
    assert place.part is not None
    for inner in own_places(place.part):
        if inner.is_required and inner.name not in values:
            raise SettingError(f"{name}.{inner.setting.key} is missing")
    return place.part(**values)


def _is_optional(place: Place) -> bool:
    return type(None) in alternatives(place.type)


def _value(name: str, place: Place, text: Any) -> Any:
    """The value of one setting.

    Raises:
        SettingError: it is not what the setting may be.
    """
    kinds, setting, words = alternatives(place.type), place.setting, words_of(place.type)
    if text in (None, "", "null") and _is_optional(place):
        return None
    if text in words:
        return text
    if bool in kinds:
        if text in (True, False):
            return bool(text)
        if text not in ("true", "false"):
            raise SettingError(f"{name} must be true or false, not {text!r}")
        return text == "true"
    if setting.unit in ("seconds", "bytes"):
        return _limited(name, place, _quantity(name, text, setting.unit))
    if int in kinds or float in kinds:
        also = f"{', '.join(words)} or " if words else ""
        number = _number(name, text, also)
        if float not in kinds and number != int(number):
            raise SettingError(f"{name} must be {also}a whole number, not {text!r}")
        return _limited(name, place, number if float in kinds else int(number))
    if words:
        raise SettingError(f"{name} must be one of {', '.join(words)}, not {text!r}{_guess(text, words)}")
    if not isinstance(text, str) or not text:
        raise SettingError(f"{name} must be text, not {text!r}")
    return text


def _limited(name: str, place: Place, value: float) -> float:
    if (violation := place.setting.violation(value)) is not None:
        raise SettingError(f"{name} {violation}, not {value:g}")
    return value


def _number(name: str, text: Any, also: str = "") -> float:
    try:
        number = float(text) if isinstance(text, str | int | float) and not isinstance(text, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise SettingError(f"{name} must be {also}a number, not {text!r}")
    return number


def _quantity(name: str, text: Any, unit: str) -> float:
    """Seconds or bytes; a number without a unit is a number of those."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return text
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    units: Mapping[str, float] = SECONDS_PER_UNIT if unit == "seconds" else BYTES_PER_UNIT
    if match is None or match[2] not in units:
        raise SettingError(f"{name} must be written as {'30s' if unit == 'seconds' else '512MiB'}, not {text!r}")
    value = float(match[1]) * units[match[2]]
    return value if unit == "seconds" else int(value)


def _guess(word: Any, words: Any) -> str:
    close = difflib.get_close_matches(str(word), list(words), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
