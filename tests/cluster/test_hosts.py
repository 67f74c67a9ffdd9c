"""The hosts themselves: what tests over several hosts rely on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.chaos_runs import assert_nothing_left
from tests.cluster.folders import cluster_folder
from tests.cluster.hosts import ROOT, Hosts, why_no_hosts
from tests.cluster.slurm import PACKAGES, PROGRAMS, Slurm
from tests.cluster.ssh import Ssh

pytestmark = pytest.mark.cluster

TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.02
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SERVER = "import socket\ns = socket.create_server(('', 5000), backlog=9)\nwhile True: s.accept()"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if (reason := why_no_hosts()) is not None:
        pytest.skip(f"no hosts here: {reason}")
    with cluster_folder() as folder, Hosts(folder / "hosts", 4, clock={2: 3, 3: -3}) as made:
        yield made


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def reaches(hosts: Hosts, node: int, other: int) -> bool:
    ask = f"import socket; socket.create_connection(('{hosts.address(other)}', 5000), timeout=0.5)"
    return hosts.run(node, sys.executable, "-S", "-c", ask, check=False).returncode == 0


class TestHosts:
    """Namespaces that are hosts to all that runs in them."""

    def test_each_is_a_host_of_its_own(self, hosts: Hosts) -> None:
        everywhere = (0, *hosts.nodes)
        assert [hosts.run(node, "hostname").stdout.strip() for node in everywhere] == ["head", *hosts.names]
        assert len({hosts.run(node, "cat", BOOT_ID).stdout for node in everywhere} | {Path(BOOT_ID).read_text()}) == 6
        for path in ("/tmp/own", "/dev/shm/own", "/run/own", f"{hosts.local}/own"):
            hosts.run(1, "touch", path, user="alice")
            assert hosts.run(2, "test", "-e", path, check=False).returncode == 1
        hosts.run(1, "touch", "shared", user="alice")
        assert hosts.run(2, "ls", user="alice").stdout == "shared\n"

    def test_none_sees_the_processes_of_another(self, hosts: Hosts) -> None:
        sleeping = hosts.popen(1, "sleep", "4321", user="alice")
        until(lambda: "4321" in hosts.run(1, "ps", "ax").stdout)
        assert all("4321" not in hosts.run(node, "ps", "ax").stdout for node in (0, 2, 3, 4))
        assert [line.split(":")[0] for line in hosts.all_leftovers()] == [hosts.name(1)]
        sleeping.kill()
        assert sleeping.wait() == -signal.SIGKILL
        assert_nothing_left(hosts)

    def test_an_orphan_is_reaped(self, hosts: Hosts) -> None:
        hosts.run(1, "sh", "-c", "(sleep .1 &)")
        # As a zombie it would have another name, and stay.
        until(lambda: not re.search(r"sleep \.1|defunct", hosts.run(1, "ps", "ax").stdout))

    def test_clocks_differ_by_what_was_asked_for(self, hosts: Hosts) -> None:
        ask = ("-S", "-c", "import time; print(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))")
        for node, seconds in {1: 0, 2: 3, 3: -3}.items():
            before = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
            times = map(float, hosts.python(node, *ask).split())
            after = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
            assert all(one <= then - seconds <= other for one, then, other in zip(before, times, after, strict=True))

    def test_a_cut_cable_and_a_crash_are_silent(self, hosts: Hosts) -> None:
        serving = hosts.popen(4, sys.executable, "-S", "-c", SERVER)
        until(lambda: reaches(hosts, 1, 4))
        hosts.cut(4)
        assert not reaches(hosts, 1, 4)
        hosts.heal(4)
        until(lambda: reaches(hosts, 1, 4))
        boot = hosts.run(4, "cat", BOOT_ID).stdout
        hosts.run(4, "touch", f"{hosts.local}/kept", "/run/lost")
        hosts.crash(4)
        assert serving.wait() == -signal.SIGKILL
        assert not hosts.is_up(4) and not reaches(hosts, 1, 4)
        hosts.boot(4)
        assert hosts.run(4, "cat", BOOT_ID).stdout != boot
        assert hosts.run(4, "ls", str(hosts.local), "/run").stdout.split().count("kept") == 1
        assert hosts.run(4, "test", "-e", "/run/lost", check=False).returncode == 1
        with hosts.popen(4, sys.executable, "-S", "-c", SERVER) as serving:
            until(lambda: reaches(hosts, 1, 4))
            serving.kill()

    def test_a_user_without_rights_has_this_python_and_these_sources(self, hosts: Hosts) -> None:
        where = "import chaos, os, sys; print(os.getuid(), os.environ['HOME'], chaos.__file__)"
        assert hosts.python(3, "-c", where).split() == ["4242", str(hosts.home()), str(ROOT / "chaos/__init__.py")]
        assert hosts.chaos(3, "--version").returncode == 0
        assert hosts.run(3, "touch", "/etc/x", user="alice", check=False).returncode == 1

    @pytest.mark.parametrize(
        ("words", "left"),
        [
            pytest.param("touch /dev/shm/chaos-1", "file /dev/shm/chaos-1", id="file"),
            pytest.param("mkdir -p $CHAOS_STATE; echo {} >$CHAOS_STATE/run.json", "open run ", id="registry"),
            pytest.param("mkdir /tmp/m; mount -t tmpfs tmpfs /tmp/m", "mount /tmp/m", id="mount"),
            pytest.param("nft add table inet left || ip -h", "nft: table inet left {", id="rule"),
            pytest.param(
                "tc qdisc add dev eth0 root tbf rate 1mbit burst 32kbit latency 1s", "tc: qdisc tbf", id="qdisc"
            ),
        ],
    )
    def test_what_is_left_is_found(self, hosts: Hosts, words: str, left: str) -> None:
        undo = "nft delete table inet left; tc qdisc del dev eth0 root; umount /tmp/m; rm -rf /dev/shm/* $CHAOS_STATE"
        if words.split()[0] in ("nft", "tc") and hosts.run(2, words.split()[0], "-V", check=False).returncode != 0:
            pytest.skip(f"no {words.split()[0]} here")
        hosts.run(2, "sh", "-ec", words)
        found = hosts.all_leftovers()
        hosts.run(2, "sh", "-c", undo)
        assert any(line.startswith(f"{hosts.name(2)}: {left}") for line in found), found
        assert hosts.all_leftovers() == []

    def test_processes_and_listeners_are_found_by_what_they_are(self, hosts: Hosts) -> None:
        with hosts.popen(1, sys.executable, "-S", "-c", SERVER, user="alice") as serving:
            until(lambda: reaches(hosts, 2, 1))
            (pid,) = (one for one in hosts.processes(1, "create_server"))
            assert hosts.processes(2, "create_server") == [] == hosts.listening(2)
            (line,) = hosts.listening(1)
            assert ":5000" in line and f"pid={pid}," in line
            hosts.run(1, "kill", "-KILL", str(pid))
            assert serving.wait() != 0


class TestFolders:
    """No folder and no process stays, whoever is killed."""

    def test_killed_tests_leave_no_host(self) -> None:
        if (reason := why_no_hosts(PROGRAMS, PACKAGES)) is not None:
            pytest.skip(f"no Slurm here: {reason}")
        script = """
import sys, time
from tests.cluster.folders import cluster_folder
from tests.cluster.slurm import Slurm
with cluster_folder() as folder, Slurm(folder / "slurm", 2) as slurm:
    print(folder, *(slurm.pid(node) for node in (0, *slurm.nodes)), flush=True)
    time.sleep(600)
"""
        words = [sys.executable, "-c", script]
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as killed:
            assert killed.stdout is not None
            folder, *pids = killed.stdout.readline().split()
            killed.kill()
        until(lambda: not any(_is_running(int(pid)) for pid in pids))
        # As old as that of a test that was killed a while ago.
        os.utime(folder, (0, 0))
        names = [path.name.removeprefix("slurmd-of-") for path in Path(folder).rglob("slurmd-of-*")]
        with cluster_folder():
            assert not Path(folder).exists()
        assert len(names) == 2 and not any(Path(f"/sys/fs/cgroup/freezer/slurm_{name}").exists() for name in names)

    def test_a_cluster_that_is_held_ends_with_the_input_of_its_holder(self) -> None:
        """As `benchmarks/_hosts.py` has its own."""
        if (reason := why_no_hosts()) is not None:
            pytest.skip(f"no hosts here: {reason}")
        command = [sys.executable, "-m", "tests.cluster"]
        hold = [*command, "hold", "hosts", "--num", "1"]
        with subprocess.Popen(hold, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdin is not None and holder.stdout is not None
            told = json.loads(holder.stdout.readline())
            run = [*command, "run", "--user", "alice", told["folder"], "1", "--", "sh", "-c", "hostname; id -un; pwd"]
            printed = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
            assert printed == [*told["names"], "alice", told["home"]]
            holder.stdin.close()
            assert holder.wait() == 0
        assert not Path(told["folder"]).parent.exists()


def _is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


class TestSsh:
    """Hosts that are reached by ssh."""

    def test_users_reach_each_host_from_each(self, ssh_hosts: Ssh) -> None:
        for node in (0, 1):
            for other in ssh_hosts.nodes:
                printed = ssh_hosts.run(node, "ssh", ssh_hosts.name(other), "hostname; id -un", user="alice").stdout
                assert printed == f"welcome\n{ssh_hosts.name(other)}\nalice\n"

    def test_a_host_without_power_is_not_reached_until_it_boots(self, ssh_hosts: Ssh) -> None:
        ssh_hosts.crash(2)
        words = ("ssh", "-o", "ConnectTimeout=1", ssh_hosts.name(2), "true")
        assert ssh_hosts.run(0, *words, user="alice", check=False).returncode == 255
        ssh_hosts.boot(2)
        assert ssh_hosts.run(0, *words, user="alice").returncode == 0


class TestSlurm:
    """A real Slurm."""

    def test_a_job_runs_on_all_hosts_and_its_end_is_seen(self, slurm: Slurm) -> None:
        result = slurm.batch("sh", "-c", "srun hostname; exit 3")
        assert (result.exit_code, sorted(result.output.split())) == (3, slurm.names)
        cancelled, folder = slurm.submit("sleep", "600")
        slurm.run(0, "scancel", cancelled, user="alice")
        until(lambda: not slurm.is_queued(cancelled))
        assert slurm.result(cancelled, folder, 0.0).exit_code is None
        assert_nothing_left(slurm)

    def test_steps_of_other_hosts_outlive_a_host(self, slurm: Slurm) -> None:
        """As `chaos` starts its agents: one step on each host, in an allocation that stays when a host is lost."""
        steps = [f"srun --overlap -N1 -n1 -w {name} sleep 333 &" for name in slurm.names]
        job, _ = slurm.submit("sh", "-c", " ".join([*steps, "wait; sleep 60"]), options=("--no-kill",))

        def agents() -> list[int]:
            return [slurm.run(node, "ps", "ax").stdout.count("/sleep 333") for node in slurm.nodes]

        until(lambda: agents() == [1, 1, 1, 1])
        slurm.crash(2)
        slurm.boot(2)
        step = ("srun", f"--jobid={job}", "--overlap", "-N1", "-n1")
        assert slurm.run(0, *step, "-w", slurm.name(2), "hostname", user="alice").stdout.strip() == slurm.name(2)
        assert agents() == [1, 0, 1, 1]
        # What a step leaves behind dies with it.
        slurm.run(0, *step, "-w", slurm.name(1), "sh", "-c", "setsid sleep 444 >/dev/null 2>&1 &", user="alice")
        until(lambda: "sleep 444" not in slurm.run(1, "ps", "ax").stdout)
        slurm.run(0, "scancel", job)
        slurm.wait_idle()
        assert_nothing_left(slurm)

    def test_two_at_once_with_resources_that_a_job_takes_all_of(self, slurm: Slurm) -> None:
        with cluster_folder() as folder, Slurm(folder / "other", 2, memory_megabytes=4000, gpus=2) as other:
            assert not {*other.names} & {*slurm.names}
            job, _ = other.submit("sleep", "600", options=("--gres=gpu:2", "--mem=4000"))
            step = ("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", "-w", other.name(2), "--mpi=none")
            until(lambda: other.run(0, "squeue", "-h", "-j", job, "-o", "%T").stdout == "RUNNING\n")
            printed = other.run(0, *step, "--mem=0", "--gres=none", "hostname", user="alice").stdout
            assert printed.strip() == other.name(2)
            assert sorted(slurm.run(0, "srun", "-N4", "hostname", user="alice").stdout.split()) == slurm.names
            assert other.run(1, "hostname").stdout.strip() == other.name(1)
