"""What containers are given: addresses of their own, this machine's GPUs in turn, no more rights than they need."""

from __future__ import annotations

import os
from dataclasses import replace
from ipaddress import IPv4Address
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.experiment.command_job import CommandConfig
from chaos.experiment.reading import from_mapping
from harness.backends.base import BackendSetup, kind_of
from harness.backends.command.on_nodes import folder_of
from harness.backends.docker.container import COORDINATOR
from harness.backends.docker.containers import Containers
from harness.backends.docker.settings import (
    HOLDER_PREFIX,
    ContainerSpec,
    container_spec,
    plan_addresses,
    with_whole_paths,
)
from harness.control.control_server import ControlServer
from mecefo_runtime.job.config import CheckpointConfig, JobConfig
from mecefo_runtime.job.traits import OF_COMMAND
from mecefo_runtime.system.emitter import Emitter

pytestmark = pytest.mark.unit
SPEC = ContainerSpec(
    "image", JobConfig(nodes=2, gpus_per_node=3, data_parallel=3, pipeline=2).cluster(), (Path("/runs/one"),)
)


@given(st.integers(1, 1024), st.text("0123456789abcdef", min_size=16, max_size=16))
def test_every_container_has_an_address_of_its_own_in_the_runs_range(num_nodes, run):
    for subnet, addresses in islice(plan_addresses(num_nodes, run), 3):
        assert addresses.keys() == {COORDINATOR, *(f"node-{node}" for node in range(num_nodes))}
        taken = {IPv4Address(address) for address in addresses.values()}
        assert len(taken) == num_nodes + 1
        assert all(address in subnet for address in taken)
        # The network's own, its gateway's, and the broadcast address are nobody's.
        assert not taken & {subnet[0], subnet[1], subnet[-1]}


def test_the_ranges_of_a_run_are_all_different_and_begin_with_one_of_its_own():
    subnets = [subnet for subnet, _ in plan_addresses(1, "00000001" * 2)]
    assert len(set(subnets)) == len(subnets) > 100
    assert subnets[0] != next(plan_addresses(1, "00000002" * 2))[0]


@pytest.mark.parametrize(
    ("gpus", "expected"), [("", ["", ""]), ("0", ["0", "0"]), ("25", ["25", "25"]), ("012345", ["012", "345"])]
)
def test_gpus_are_shared_out_over_the_nodes(gpus, expected):
    spec = replace(SPEC, gpus=tuple(gpus))
    assert [spec.gpus_of(node) for node in range(2)] == [tuple(names) for names in expected]
    asked = spec.settings("node-0", []).get("device_requests", [])
    assert [request["DeviceIDs"] for request in asked] == ([list(expected[0])] if gpus else [])
    assert "device_requests" not in spec.settings(COORDINATOR, [])


def test_limits_are_a_nodes_and_periods_are_short():
    spec = replace(SPEC, cpus=1.5, memory_bytes=1 << 30)
    settings = spec.settings("node-1", [])
    assert settings["cpu_quota"] / settings["cpu_period"] == 1.5
    assert settings["cpu_period"] == 10_000
    assert settings["mem_limit"] == settings["memswap_limit"] == 1 << 30
    for part in (COORDINATOR, f"{HOLDER_PREFIX}node-1"):
        assert not {"cpu_quota", "mem_limit"} & spec.settings(part, []).keys()


def test_only_who_holds_a_network_may_change_one():
    for part in (COORDINATOR, "node-0"):
        settings = SPEC.settings(part, [])
        assert (settings["cap_drop"], settings.get("cap_add")) == (["ALL"], None)
        assert settings["user"] == f"{os.geteuid()}:{os.getegid()}"
        assert settings["read_only"] and settings["security_opt"] == ["no-new-privileges"]
    holder = SPEC.settings(f"{HOLDER_PREFIX}node-0", [])
    assert (holder["cap_drop"], holder["cap_add"]) == (["ALL"], ["NET_ADMIN", "DAC_OVERRIDE"])


def test_a_command_has_no_coordinator_and_its_folder_may_be_that_for_temporary_files(tmp_path):
    _, addresses = next(plan_addresses(2, "0" * 16, has_coordinator=False))
    assert addresses.keys() == {"node-0", "node-1"}
    spec = replace(SPEC, traits=OF_COMMAND)
    # What torch compiles there is to be loaded.
    assert "exec" in spec.settings("node-0", [])["tmpfs"]["/tmp"].split(",")
    assert "exec" not in SPEC.settings("node-0", [])["tmpfs"]["/tmp"].split(",")
    assert "tmpfs" not in spec.settings("node-0", [(Path("/tmp"), "/tmp", True)])


def test_a_command_writes_to_its_folder_which_may_hold_the_runs(tmp_path):
    job = CommandConfig(("true",), folder=str(tmp_path))
    spec = container_spec(Containers(), job, (tmp_path / "runs" / "one", folder_of(job)), has_links=False)
    assert spec.traits is OF_COMMAND and spec.mounts() == [(tmp_path, str(tmp_path), True)]


def test_the_runs_folders_may_be_written_to_and_its_data_only_read(tmp_path):
    spec = replace(SPEC, data=str(tmp_path))
    assert spec.mounts() == [(Path("/runs/one"), "/runs/one", True), (tmp_path, str(tmp_path), False)]
    mounts = spec.settings("node-0", spec.mounts())["mounts"]
    assert [(mount["Target"], mount["ReadOnly"]) for mount in mounts] == [("/runs/one", False), (str(tmp_path), True)]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A folder of somebody's, in which we are, with a link in it to one outside."""
    (tmp_path / "project").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "project" / "runs").symlink_to(tmp_path / "disk")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def backend_of(job, run):
    """The backend of a run whose folder is `run`."""
    raw = {"name": "n", "backend": "docker"}
    if isinstance(job, CommandConfig):
        raw["job"] = {"runtime": "command", "command": ["true"]}
    control = ControlServer(lambda event: None)
    emitter = Emitter(lambda event: None, "conductor")
    experiment = from_mapping(raw)
    setup = BackendSetup(experiment, job, [], run, run / "logs", control, "token", emitter, "unix:///none")
    return kind_of(experiment.nodes_on).backend(setup)


@pytest.mark.parametrize(
    ("out", "folders"),
    [
        ("out", ["project"]),
        # Neither is below the command's folder, as it is seen in a container.
        ("../out", ["out/n/time", "project"]),
        ("runs", ["disk/n/time", "project"]),
    ],
)
def test_a_runs_folder_is_seen_wherever_it_is(places, out, folders):
    run = Path(out) / "n" / "time"
    nodes = backend_of(CommandConfig(("true",)), run)._nodes
    mounts = nodes._spec.mounts()
    assert [str(outside.relative_to(places)) for outside, _, _ in mounts] == folders
    assert [inside for _, inside, _ in mounts] == [str(outside) for outside, _, _ in mounts]
    assert any(nodes._logs.is_relative_to(outside) for outside, _, _ in mounts)


def test_a_jobs_folders_and_data_are_seen_without_the_links_on_the_way_to_them(places):
    checkpoint = CheckpointConfig(folder="runs/../checkpoints", every_steps=10)
    job = JobConfig(data="../project/runs/corpus", checkpoint=checkpoint)
    nodes = backend_of(job, Path("../project/runs/n/time"))._nodes
    mounts = [(str(outside.relative_to(places)), may_write) for outside, _, may_write in nodes._spec.mounts()]
    assert mounts == [("disk/n/time", True), ("checkpoints", True), ("disk/corpus", False)]
    inside = with_whole_paths(job)
    assert (inside.data, inside.checkpoint.folder) == (str(places / "disk/corpus"), str(places / "checkpoints"))


def test_a_commands_folder_is_where_its_user_says(places):
    assert folder_of(CommandConfig(("true",), folder="runs")) == places / "project" / "runs"
    assert folder_of(CommandConfig(("true",), folder="../disk")) == places / "disk"
