"""Settings of a job from text and files, and the descriptions that they are read by."""

import dataclasses
import json

import pytest

from mecefo_runtime.job.command_settings import CommandSettings
from mecefo_runtime.job.config import PRESETS, CheckpointConfig, JobConfig, JobSettings, SnapshotConfig
from mecefo_runtime.job.reading import SettingError, read_file, with_settings
from mecefo_runtime.job.setting import default_in_words, help_of, own_places, places
from mecefo_runtime.system.json_values import to_json

pytestmark = pytest.mark.unit


def test_every_setting_has_a_text_and_a_key_of_its_own():
    found = list(places(JobSettings))
    assert all(place.setting.text for place in found)
    assert len({place.path for place in found}) == len(found)
    assert {"steps", "quality", "checkpoint.every_steps", "snapshots.memory", "time_scale"} <= {
        ".".join(place.path) for place in found
    }
    options = [place.setting.option for place in found if place.setting.option is not None]
    assert len({option.flag for option in options}) == len(options) > 20


def test_help_is_whole_sentences_with_the_default():
    by_flag = {place.setting.option.flag: help_of(place) for place in places(JobSettings) if place.setting.option}
    assert by_flag["--steps"] == "Number of optimizer steps. Default: 560."
    assert by_flag["--pipeline"] == "Pipeline stages per replica. Default: derived from the number of ranks."
    assert all(text.endswith((".", ")")) and text[0].isupper() for text in by_flag.values())


def test_the_default_in_words_is_that_of_the_setting_or_of_its_part():
    words = {
        path: default_in_words(CommandSettings, path) for path in (("nodes",), ("checkpoint", "folder"), ("reset",))
    }
    assert words == {
        ("nodes",): "from torchrun's options, else 1",
        ("checkpoint", "folder"): "observed while it saves",
        ("reset",): None,
    }


def test_the_words_of_an_option_are_the_alternatives_of_its_metavar():
    words = {
        place.setting.option.flag: place.setting.option.words for place in places(JobSettings) if place.setting.option
    }
    assert words["--quality"] == ("auto", "speed", "exact")
    assert words["--snapshot-every"] == ("auto",)
    assert words["--link"] == words["--device-model"] == words["--steps"] == ()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"steps": "7", "microbatch_size": 4}, {"steps": 7, "microbatch_size": 4}),
        ({"model": "60m", "learning_rate": "0.5"}, {"model": PRESETS["60m"], "learning_rate": 0.5}),
        ({"quality": "0.3"}, {"degraded_share_limit": 0.3, "projected_share_limit": 0.0}),
        ({"quality": "speed", "degraded_share_limit": "0.2"}, {"degraded_share_limit": 0.2}),
        ({"sharded_optimizer": "true", "data": "", "redundancy": None}, {"sharded_optimizer": True, "data": None}),
        ({"heartbeat_timeout": "1500ms"}, {"heartbeat_timeout_seconds": 1.5}),
        ({"dilation": "off", "time_scale": "auto", "runtime": "mecefo"}, {"dilation_ratio": 1.0}),
        ({"seed": "3", "checkpoint": None}, {"seed": 3, "checkpoint": None}),
        (
            {"snapshots": {"every": "auto", "memory": "2GiB", "mtbf": "1h"}},
            {"snapshots": SnapshotConfig(every_steps="auto", memory_bytes=2 << 30, mtbf_seconds=3600.0)},
        ),
        (
            {"checkpoint": {"every_steps": "5", "resume": "true", "folder": "x"}},
            {"checkpoint": CheckpointConfig(every_steps=5, resume=True, folder="x")},
        ),
    ],
)
def test_settings_are_read(raw, expected):
    job = with_settings(JobConfig(), raw)
    assert {name: getattr(job, name) for name in expected} == expected


def test_what_is_not_given_stays():
    job = JobConfig(steps=9, snapshots=SnapshotConfig(group_size=3))
    changed = with_settings(job, {"snapshots": {"memory": "1GiB"}, "approximation": {"rank": "4"}})
    assert changed.snapshots == dataclasses.replace(job.snapshots, memory_bytes=1 << 30)
    assert (changed.steps, changed.approximation.rank) == (9, 4)
    assert with_settings(job, {}) == job


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"stepz": "3"}, "there is no setting stepz (did you mean 'steps'?)"),
        ({"steps": "0"}, "steps must be at least 1, not 0"),
        ({"steps": "2.5"}, "steps must be a whole number, not '2.5'"),
        ({"steps": "many"}, "steps must be a number, not 'many'"),
        ({"steps": True}, "steps must be a number, not True"),
        ({"learning_rate": "nan"}, "learning_rate must be a number, not 'nan'"),
        ({"precision": "fp16"}, "precision must be one of fp32, bf16, not 'fp16' (did you mean 'bf16'?)"),
        ({"model": "60M"}, "model must be one of llama-tiny, 60m"),
        ({"sharded_optimizer": "yes"}, "sharded_optimizer must be true or false, not 'yes'"),
        ({"snapshots": {"evry": "1"}}, "there is no setting snapshots.evry (did you mean 'every'?)"),
        ({"snapshots": {"memory": "2"}}, "snapshots.memory must be written as 512MiB, not '2'"),
        ({"snapshots": {"every": "x"}}, "snapshots.every must be auto or a number, not 'x'"),
        ({"snapshots": "on"}, "snapshots must be a mapping, not 'on'"),
        ({"checkpoint": {"keep": "2"}}, "checkpoint.every_steps is missing"),
        ({"heartbeat_timeout": "100ms"}, "heartbeat_timeout must be at least 0.5, not 0.1"),
        ({"device_model": "a100-7b"}, "device_model is emulated by `chaos run` alone: leave it out"),
        ({"runtime": "command"}, "runtime must be mecefo, not 'command'"),
    ],
)
def test_a_mistake_is_named(raw, message):
    with pytest.raises(SettingError) as error:
        with_settings(JobConfig(), raw)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "text",
    [
        "steps: 7\nsnapshots: {every: 2}\npacing: off\n",
        '{"steps": 7, "snapshots": {"every": 2}, "pacing": "off"}',
        "name: x\nseed: 0\njob:\n  steps: 7\n  snapshots: {every: 2}\n  pacing: off\nfaults: []\n",
        json.dumps(to_json(JobConfig(steps=7, snapshots=SnapshotConfig(every_steps=2), pacing="off"))),
    ],
)
def test_a_file_is_settings_an_experiment_or_a_whole_job(tmp_path, text):
    path = tmp_path / "job"
    path.write_text(text)
    whole, settings = read_file(path)
    job = with_settings(whole or JobConfig(), settings)
    assert (job.steps, job.pacing, job.snapshots) == (7, "off", SnapshotConfig(every_steps=2))


@pytest.mark.parametrize("text", ["", "- a\n", "{", "job: 3\n", "x: " + "y" * 200_000, '{"model": {}}', "\xff"])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "job"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(SettingError, match="is not a job"):
        read_file(path)
    with pytest.raises(SettingError, match="cannot be read"):
        read_file(tmp_path / "none")


def test_parts_have_settings_too():
    assert [place.setting.key for place in own_places(SnapshotConfig)] == [
        *("every", "protection", "group", "memory", "mtbf")
    ]
