"""Models that are made of the settings of a dataclass: one field is all that a setting needs."""

from dataclasses import dataclass
from typing import Literal

import pytest
from pydantic import ValidationError

from chaos.experiment.command_job import CommandJob
from chaos.experiment.job import Job
from chaos.experiment.settings import config_values, model_of, with_texts
from chaos.experiment.terms import place_of, terms
from mecefo_runtime.job.command_settings import CommandSettings
from mecefo_runtime.job.config import JobSettings
from mecefo_runtime.job.setting import INLINE, REQUIRED, own_places, places, setting

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Inner:
    depth: int = setting(REQUIRED, "how deep", at_least=1)


@dataclass(frozen=True)
class Sample:
    rate: float = setting(0.5, "how often", above=0, at_most=2)
    wait_seconds: float = setting(30.0, "how long", key="wait", unit="seconds", at_least=1.0, at_most=600.0)
    size_bytes: int | None = setting(None, "how large", key="size", unit="bytes")
    file: str | None = setting(None, "where", unit="path")
    kind: Literal["a", "b"] = setting("a", "which")
    inner: Inner | None = setting(None, key=INLINE)
    not_a_setting: int = 3


SampleText = model_of(Sample)


def test_a_field_is_a_key_with_type_limits_default_and_text():
    schema = SampleText.model_json_schema()
    assert list(schema["properties"]) == ["rate", "wait", "size", "file", "kind", "depth"]
    assert {key: value["description"] for key, value in schema["properties"].items()}["depth"] == "how deep"
    assert schema["properties"]["rate"] | {"title": ""} == {
        "default": 0.5,
        "description": "how often",
        "exclusiveMinimum": 0,
        "maximum": 2,
        "type": "number",
        "title": "",
    }
    assert schema["required"] == ["depth"]


def test_units_are_read_and_written_as_text():
    text = SampleText.model_validate({"wait": "2min", "size": "2KiB", "file": "x", "depth": 1})
    assert text.model_dump(mode="json") == {
        "rate": 0.5,
        "wait": "120s",
        "size": "2KiB",
        "file": "x",
        "kind": "a",
        "depth": 1,
    }
    values = config_values(text, Sample)
    assert values == {"rate": 0.5, "wait_seconds": 120.0, "size_bytes": 2048, "file": "x", "kind": "a"}
    assert Sample(**values).not_a_setting == 3


@pytest.mark.parametrize(
    "wrong",
    [
        *({"rate": 0}, {"rate": 2.5}, {"rate": float("nan")}, {"wait": "500ms"}, {"wait": 3}, {"size": 3}),
        *({"file": ""}, {"kind": "c"}, {"depth": 0}, {"rates": 1}, {"wait_seconds": 3.0}),
    ],
)
def test_what_is_outside_of_limits_or_unknown_is_refused(wrong):
    with pytest.raises(ValidationError):
        SampleText.model_validate({"depth": 1} | wrong)


def test_a_field_that_is_declared_otherwise_keeps_place_and_text():
    @with_texts(Sample)
    class Other(SampleText):
        wait: Literal["never"] = "never"

    assert list(Other.model_fields) == list(SampleText.model_fields)
    assert Other.model_json_schema()["properties"]["wait"]["description"] == "how long"
    assert Other.model_validate({"depth": 1}).wait == "never"


def test_a_job_has_every_setting_and_every_option_has_its_place():
    keys = {place.setting.key for place in own_places(JobSettings)} - {INLINE}
    assert Job.model_fields.keys() == keys | {"runtime", "device_model", "time_scale"}
    options = {place.setting.option.name: place.path for place in places(JobSettings) if place.setting.option}
    of_run = {name: path for name, path in options.items() if f"job.{'.'.join(path)}" in terms()}
    assert len(of_run) > 20
    assert {name: place_of(name) for name in of_run} == {name: ("job", *path) for name, path in of_run.items()}


def test_a_job_of_a_command_has_every_setting_and_every_option_has_its_place():
    assert CommandJob.model_fields.keys() == {place.setting.key for place in own_places(CommandSettings)} | {"runtime"}
    options = {place.setting.option.name: place.path for place in places(CommandSettings) if place.setting.option}
    assert {name: place_of(name) for name in options} == {name: ("job", *path) for name, path in options.items()}


def test_where_both_kinds_of_job_have_a_setting_its_option_is_the_same():
    own, built_in = (
        {place.path: place.setting.option for place in places(kind)} for kind in (CommandSettings, JobSettings)
    )
    shared = [path for path in own.keys() & built_in.keys() if own[path] is not None]
    assert len(shared) > 5
    assert all(own[path].flag == built_in[path].flag for path in shared)
