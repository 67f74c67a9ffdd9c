"""The doctor: what it says of machines that lack something, and that it says it to whom it concerns."""

from __future__ import annotations

import json
import os
import socket
import types
from ipaddress import ip_network

import docker
import pytest

from chaos.errors import EnvironmentFailure
from chaos.experiment.backends import backends
from chaos.host.runtime_extra import INSTALL
from harness.backends.docker import examination as engine
from harness.backends.docker.image import PURPOSE_LABEL
from harness.doctor import examine, fault_needs, machine, torch_build
from harness.doctor.finding import Check
from mecefo_chaos.cli.main import run_cli
from mecefo_runtime.system.json_values import to_json

pytestmark = pytest.mark.unit

TORCH = {"version": "2.13.0+cpu", "cuda": None, "distributed": True, "gloo": True, "nccl": False, "devices": []}


# ---- findings ----


def test_only_what_a_backend_cannot_do_without_stops_it():
    needed, optional = Check("x", "all", ("docker",)), Check("y", "some")
    assert needed.missing("gone", "get it").stops("docker")
    assert not needed.missing("gone", "get it").stops("local")
    assert not needed.ok("there").stops("docker")
    assert not optional.wrong("odd", "mend it").stops("docker")


def test_a_look_that_fails_is_no_pass():
    def fail():
        raise OSError("what now")

    finding = Check("x", "all", ("local",)).looked(fail)
    assert finding.outcome == "wrong" and finding.stops("local")
    assert "OSError: what now" in finding.found


# ---- the command ----


@pytest.fixture
def healthy(monkeypatch):
    """A machine with little to say, so that the command is fast."""
    checks = {name: Check(name, "runs", ("local", "docker")) for name in ("python", "engine")}
    findings = [checks["python"].ok("3.11"), Check("engine", "containers", ("docker",)).missing("none", "start it")]
    monkeypatch.setattr("harness.backends.examine.examine", lambda out, settings: iter(findings))
    return findings


def test_what_only_docker_needs_does_not_stop_a_local_run(healthy, capsys):
    assert run_cli(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "missing  engine" in said and "do:  start it" in said
    assert {"--backend docker cannot run here: see engine", "--backend local has all that it needs"} <= {
        *said.splitlines()
    }


def test_what_docker_needs_stops_docker(healthy, capsys):
    assert run_cli(["doctor", "--backend", "docker"]) == EnvironmentFailure.exit_code
    assert capsys.readouterr().out.splitlines()[-1] == "--backend docker cannot run here: see engine"


@pytest.mark.parametrize(("backend", "usable", "code"), [("local", True, 0), ("docker", False, 3)])
def test_json_says_the_same(healthy, capsys, backend, usable, code):
    assert run_cli(["doctor", "--backend", backend, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert (document["backend"], document["usable"]) == (backend, usable)
    assert document["checks"] == [to_json(finding) for finding in healthy]


def test_a_command_to_be_copied_is_not_broken(monkeypatch, capsys):
    command = "DOCKER_HOST=unix:///a/path/that/is/much/longer/than/any/line/of/this/terminal/docker.sock"
    finding = Check("engine", "containers", ("docker",)).missing("none", f"say {command}")
    monkeypatch.setattr("harness.backends.examine.examine", lambda out, settings: iter([finding]))
    monkeypatch.setenv("COLUMNS", "60")
    run_cli(["doctor"])
    assert command in capsys.readouterr().out


def test_nonsense_is_refused(capsys):
    assert run_cli(["doctor", "--backend", "nomad"]) == 4
    assert run_cli(["doctor", "unasked"]) == 4


# ---- the machine ----


def test_this_machine_can_run_what_these_tests_run(tmp_path):
    found = [
        machine.SYSTEM.looked(machine.system),
        machine.PYTHON.looked(machine.python),
        machine.PROCESSES.looked(machine.process_table),
        machine.OPEN_FILES.looked(machine.open_files),
        machine.RUNS.looked(lambda: machine.runs_folder(tmp_path / "not" / "yet")),
    ]
    assert [finding.outcome for finding in found] == ["ok"] * len(found), found


def test_an_old_python_is_told(monkeypatch):
    monkeypatch.setattr(machine.sys, "version_info", (3, 10, 9))
    assert machine.python().outcome == "wrong"


@pytest.mark.parametrize(
    ("free_gib", "limit", "outcome"), [(8, "", "ok"), (0.5, "", "wrong"), (8, "600000000", "wrong")]
)
def test_memory_is_what_kernel_and_container_leave(monkeypatch, tmp_path, free_gib, limit, outcome):
    (tmp_path / "memory.max").write_text(limit or "max")
    monkeypatch.setattr(machine.memory_limit, "_CONTAINER_LIMITS", (str(tmp_path / "memory.max"), "/nowhere"))
    monkeypatch.setattr(machine.memory_limit, "available_bytes", lambda: int(free_gib * 2**30))
    assert machine.memory().outcome == outcome


def test_without_a_process_table_nothing_else_is_looked_at(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "why_no_process_table", lambda: ("it is not there", "mount it"))
    found = list(examine.examine(tmp_path))
    assert [(finding.found, finding.remedy) for finding in found[2:]] == [("it is not there", "mount it")]


def test_no_shared_memory_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "SHARED_FOLDER", tmp_path / "shm")
    assert machine.shared_memory().outcome == "missing"


def test_a_kernel_without_pidfd_is_told(monkeypatch):
    def refuse(pid):
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr(machine.os, "pidfd_open", refuse)
    assert "Linux 5.3" in machine.process_table().remedy


@pytest.mark.parametrize(
    ("limits", "outcome", "said"),
    [
        ((64, 64), "wrong", "ulimit -n"),
        ((64, 4096), "ok", "64 for each process, raised to"),
        ((1024, -1), "ok", "1024"),
        ((-1, -1), "ok", "inf"),
    ],
)
def test_too_few_file_descriptors_are_told(monkeypatch, limits, outcome, said):
    monkeypatch.setattr(machine, "open_file_limits", lambda: limits)
    finding = machine.open_files()
    assert finding.outcome == outcome
    assert said in f"{finding.found} {finding.remedy}"


def test_a_file_where_runs_should_go_is_told(tmp_path):
    (tmp_path / "runs").touch()
    assert machine.runs_folder(tmp_path / "runs").outcome == "wrong"
    assert machine.runs_folder(tmp_path / "runs" / "below").outcome == "wrong"


def test_no_folder_for_temporary_files_is_told(monkeypatch):
    def fail():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(machine.tempfile, "gettempdir", fail)
    assert machine.temporary_files().stops("local")


def test_an_unwritable_state_folder_is_told(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CHAOS_STATE", str(tmp_path / "file" / "state"))
    assert "CHAOS_STATE" in machine.state_folder().remedy


def test_a_run_that_was_cut_off_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("CHAOS_STATE", str(tmp_path))
    assert machine.earlier_runs().outcome == "ok"
    (tmp_path / "0123.json").write_text("nonsense")
    assert "0123.json" in machine.earlier_runs().found


# ---- torch ----


def judge(code=0, violation="", driver=False, **changes):
    return torch_build.judge(code, json.dumps(TORCH | changes), violation, driver)


def test_a_torch_that_will_do():
    assert [finding.outcome for finding in judge()] == ["ok", "ok"]


def test_no_torch_is_told():
    (finding,) = judge(1, "Traceback...\nModuleNotFoundError: No module named 'torch'\n")
    # A script has its own; only the built-in job lacks it.
    assert finding.outcome == "missing" and finding.remedy == INSTALL
    assert not any(finding.stops(backend) for backend in backends())


def test_a_broken_torch_is_told_with_what_it_said():
    (finding,) = judge(1, "Traceback...\nOSError: libcudart.so.13: cannot open shared object file\n")
    assert finding.outcome == "wrong" and "libcudart" in finding.found
    (finding,) = judge(-9)
    assert "-9" in finding.found


@pytest.mark.parametrize("changes", [{"version": "2.4.1"}, {"gloo": False}, {"version": "2.10.0a0+git1"}])
def test_a_torch_that_will_not_do(changes):
    assert judge(**changes)[0].outcome == "wrong"


def test_gpus_that_torch_cannot_use_are_told():
    assert "CPU build" in judge(driver=True)[1].found
    assert "nvidia-smi" in judge(driver=True, cuda="13.0")[1].remedy
    assert judge(driver=True, cuda="13.0", devices=["H100", "H100"])[1].found == "2 x H100"


# ---- faults ----


@pytest.mark.parametrize(
    ("reason", "outcome", "remedy"),
    [
        (None, "ok", ""),
        ("iptables is not installed: install the packages x and y", "missing", "install the packages"),
        ("users may not here (unshare: failed: EPERM): allow it with sysctls", "wrong", "allow it with sysctls"),
    ],
)
def test_networks_are_told_as_the_runs_would_find_them(monkeypatch, reason, outcome, remedy):
    monkeypatch.setattr(fault_needs, "why_no_networks", lambda: reason)
    finding = fault_needs.networks()
    assert finding.outcome == outcome and finding.remedy.startswith(remedy)
    if reason is not None:
        assert fault_needs.packet_queue().outcome != "ok"


def test_a_process_without_rights_is_told(monkeypatch):
    monkeypatch.setattr(fault_needs.small_disk, "may_mount", lambda: False)
    monkeypatch.setattr(fault_needs.memory_limit, "plan", lambda *args, **kwargs: types.SimpleNamespace(by="rlimit"))
    assert fault_needs.mounts().outcome == fault_needs.memory_groups().outcome == "missing"


# ---- Docker ----


def engine_said(monkeypatch, url):
    """What is found with the SDK's own error for an engine at `url`."""
    monkeypatch.setenv("DOCKER_HOST", url)
    found = list(engine.docker_findings())
    assert [finding.name for finding in found] == ["Docker SDK", "Docker engine"], "the rest cannot be answered"
    assert engine.why_no_docker() == f"Docker engine: {found[-1].found}"
    return found[-1]


def test_no_sdk_is_told(monkeypatch):
    def fail(name):
        raise engine.PackageNotFoundError(name)

    monkeypatch.setattr(engine, "version", fail)
    (finding,) = engine.docker_findings()
    assert finding.outcome == "missing" and "pip install" in finding.remedy


@pytest.fixture
def short_path(tmp_path):
    """A name of `tmp_path` that is short enough for sockets in it (unix(7)), however deep it lies."""
    folder = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield f"/proc/self/fd/{folder}"
    os.close(folder)


def test_no_socket_is_told(monkeypatch, short_path):
    assert engine_said(monkeypatch, f"unix://{short_path}/docker.sock").outcome == "missing"


def test_an_engine_that_does_not_run_is_told(monkeypatch, short_path):
    path = f"{short_path}/docker.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    assert "not running" in engine_said(monkeypatch, f"unix://{path}").found


def test_no_permission_is_told():
    # The tests may run as root, whom nothing is forbidden: the SDK's error as it is then.
    inner = PermissionError(13, "Permission denied")
    error = docker.errors.DockerException(f"Error while fetching server API version: {inner}")
    error.__cause__ = ConnectionError("Connection aborted.", inner)
    finding = engine.no_engine(error, "")
    assert finding.outcome == "wrong" and "usermod" in finding.remedy


@pytest.mark.parametrize("url", ["nonsense", "tcp://127.0.0.1:1", "ssh://nobody@127.0.0.1"])
def test_a_wrong_address_is_told(monkeypatch, url):
    finding = engine_said(monkeypatch, url)
    assert url in finding.found and "unset" in finding.remedy


@pytest.mark.parametrize(
    ("is_container", "own_socket", "context", "remedy"),
    [
        (True, False, "", "outside"),
        (False, True, "", "export DOCKER_HOST=unix://"),
        (False, False, "rootless", "context rootless"),
        (False, False, "default", "systemctl start docker"),
        (False, False, "", "systemctl start docker"),
    ],
)
def test_where_there_is_none_it_says_where_there_may_be_one(
    monkeypatch, tmp_path, is_container, own_socket, context, remedy
):
    mark = tmp_path / "mark"
    if is_container:
        mark.touch()
    if own_socket:
        (tmp_path / "docker.sock").touch()
    if context:
        (tmp_path / "config.json").write_text(json.dumps({"currentContext": context}))
    monkeypatch.setattr(engine, "_CONTAINER_MARK", mark)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert remedy in engine.no_engine(FileNotFoundError(2, "No such file"), "").remedy


class FakeEngine:
    """As much of a client as is looked at."""

    def __init__(self, api="1.41", kernel=None, networks=(), runtimes=()):
        self._version = {"Version": "20.10", "ApiVersion": api, "KernelVersion": kernel or os.uname().release}
        self._info = {"CgroupVersion": "2", "Runtimes": dict.fromkeys(runtimes)}
        attrs = [{"IPAM": {"Config": [{"Subnet": subnet}]}} for subnet in networks]
        self.networks = types.SimpleNamespace(list=lambda: [types.SimpleNamespace(attrs=attr) for attr in attrs])

    def version(self):
        return self._version

    def info(self):
        return self._info


@pytest.mark.parametrize(
    ("fake", "url", "outcome", "found"),
    [
        (FakeEngine(), "", "ok", "20.10, API 1.41, cgroup v2"),
        (FakeEngine(), "unix:///run/user/1000/docker.sock", "ok", "20.10"),
        (FakeEngine(), "tcp://10.0.0.7:2376", "wrong", "another machine"),
        (FakeEngine(kernel="6.6.0-linuxkit"), "", "wrong", "virtual machine"),
        (FakeEngine(api="1.24"), "", "wrong", "1.24"),
    ],
)
def test_an_engine_that_faults_cannot_reach_is_told(fake, url, outcome, found):
    finding = engine._engine(fake, url)
    assert finding.outcome == outcome and found in finding.found


def test_no_address_left_is_told():
    finding = engine._network(FakeEngine(networks=("10.0.0.0/8", "fd00::/64")))
    assert finding.outcome == "wrong" and "docker network" in finding.remedy


@pytest.mark.parametrize("num_sooner", [0, 3])
def test_a_range_that_somebody_takes_sooner_is_left_to_them(num_sooner):
    asked, removed = [], []

    def create(name, ipam, labels, **_):
        asked.append(ipam["Config"][0]["Subnet"])
        if len(asked) <= num_sooner:
            # As engine 20.10 has it.
            raise docker.errors.APIError("403", explanation="Pool overlaps with other one on this address space")
        assert set(labels) == {PURPOSE_LABEL}
        return types.SimpleNamespace(remove=lambda: removed.append(asked[-1]))

    fake = FakeEngine(networks=("10.96.0.0/13",))
    fake.networks.create = create
    finding = engine._network(fake)
    assert (finding.outcome, removed) == ("ok", asked[-1:])
    assert len(set(asked)) == len(asked) == num_sooner + 1
    assert not any(ip_network(subnet).overlaps(ip_network("10.96.0.0/13")) for subnet in asked)


@pytest.mark.parametrize(("runtimes", "outcome"), [(("runc", "nvidia"), "ok"), (("runc",), "missing")])
def test_gpus_that_containers_cannot_use_are_told(runtimes, outcome):
    assert engine._gpus(FakeEngine(runtimes=runtimes)).outcome == outcome


@pytest.mark.parametrize(
    ("digest", "outcome", "found"),
    [(None, "wrong", "does not contain"), ("0" * 32, "wrong", "other sources"), (engine.source_digest(), "ok", "same")],
)
def test_an_image_of_other_sources_is_told(monkeypatch, digest, outcome, found):
    image = types.SimpleNamespace(attrs={"Size": 10**9})
    client = types.SimpleNamespace(images=types.SimpleNamespace(get=lambda name: image))
    monkeypatch.setattr(engine, "image_digest", lambda client, image: digest)
    finding = engine._image(client, "some-image")
    assert finding.outcome == outcome and found in finding.found
    # What is not ours is built on, and not built over.
    assert ("--tag some-image" in finding.remedy, "BASE=some-image" in finding.remedy) == (
        (digest or "").startswith("00"),
        digest is None,
    )
