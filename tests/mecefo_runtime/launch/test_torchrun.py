"""The job under torchrun: of options, of a file, of both."""

import json

import pytest
import yaml

from chaos.experiment.reading import from_mapping
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.launch.torchrun import LauncherEnvironment, LaunchError, job_of
from mecefo_runtime.system.json_values import to_json

pytestmark = pytest.mark.unit

LAUNCHER = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
PLACE = LauncherEnvironment.of(LAUNCHER | {"TORCHELASTIC_RUN_ID": "x"})
JOB = """\
nodes: 4
pipeline: 2
steps: 40
device: cpu
learning_rate: 0.01
microbatches_per_replica: 2
health: {outlier: skip}
approximation: {rank: 4}
quality: 0.25
heartbeat_timeout: 3s
checkpoint: {every_steps: 10, folder: /tmp/nothing-is-there, resume: true, keep: 3}
snapshots: {every: auto, protection: pq, mtbf: 1h}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_without_anything_it_is_the_default_job_without_a_pipeline():
    job = job_of(PLACE, {"device": "cpu"})
    assert (job.nodes, job.gpus_per_node, job.data_parallel, job.pipeline) == (4, 2, 8, 1)
    assert (job.steps, job.checkpoint, job.snapshots) == (JobConfig().steps, None, None)
    assert job.coordinator_timeout_seconds == 60.0


def test_a_file_says_what_an_experiment_says(file):
    of_experiment = from_mapping({"name": "x", "job": yaml.safe_load(JOB)}).job.to_config(0, 1.0)
    job = job_of(PLACE, {"coordinator_timeout_seconds": None}, file)
    assert job == of_experiment


def test_options_replace_what_a_file_says(file):
    given = {"steps": 7, "snapshot_group": 3, "snapshot_memory_gib": 0.5, "heartbeat_timeout_seconds": 9.0, "seed": 5}
    job = job_of(PLACE, given, file)
    assert (job.steps, job.heartbeat_timeout_seconds, job.seed) == (7, 9.0, 5)
    assert (job.snapshots.group_size, job.snapshots.memory_bytes, job.snapshots.protection) == (3, 1 << 29, "pq")
    assert (job.learning_rate, job.checkpoint.keep) == (0.01, 3)


def test_a_whole_job_of_the_runtime_is_run_as_it_is(file, tmp_path):
    job = job_of(PLACE, {}, file)
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(to_json(job)))
    assert job_of(PLACE, {}, path) == job
    assert job_of(PLACE, {"steps": 3}, path).steps == 3


def test_of_snapshots_something_is_said_only_where_there_are_some():
    assert job_of(PLACE, {"device": "cpu", "snapshot_group": 3, "snapshot_memory_gib": 1.0}).snapshots is None
    job = job_of(PLACE, {"device": "cpu", "snapshot_every": "auto", "snapshot_group": 3})
    assert (job.snapshots.every_steps, job.snapshots.group_size, job.snapshots.protection) == ("auto", 3, "xor")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("nodes: 2", {}, "nodes is 2 in .*, but the launcher started ranks for 4"),
        ("data_parallel: 4", {}, "data_parallel is 4 in"),
        ("spares: 1", {}, "spares is 1 in"),
        ("checkpoint: {every_steps: 3}", {}, "--checkpoint-folder and --checkpoint-every belong together"),
        ("steps: many", {}, "steps must be a number"),
        ("pipeline: 3", {}, "8 ranks do not make pipelines of 3 stages"),
        ("device: cpu", {"redundancy": 99}, "redundancy must be at most 27"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, text, options, message):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(LaunchError, match=message):
        job_of(PLACE, options, path)
