"""A real Slurm cluster: slurmctld and munged on the head, and a slurmd on each of N namespace hosts.

    with cluster_folder() as folder, Slurm(folder, 4) as slurm:
        slurm.run(0, "srun", "-N4", "hostname", user="alice")
        slurm.crash(2); slurm.boot(2)                    # power cut, and back with its slurmd
        slurm.kill_slurmd(3); slurm.start_slurmd(3)      # its tasks run on
        job = slurm.batch("srun", "hostname")            # as a user would, in an allocation of all hosts

Tried with Slurm 22.05 and 24.11, which has to be another Debian's: `root`.
"""

from __future__ import annotations

import itertools
import os
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.cluster.folders import FREEZER, remove_control_groups
from tests.cluster.hosts import SUBNET, TIMEOUT_SECONDS, Hosts

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")
PACKAGES = "slurmctld slurmd slurm-client munge"
# From asking squeue to asking it again: each is a process of its own. `sbatch --wait` waits 2, 10, 40 s in between.
JOB_POLL_SECONDS = 0.1
POLL_SECONDS = 0.02

# - cred_expire: a requeued job waits until its credential has expired, by default for two minutes.
# - munge.sock: one munged serves all hosts, since a Unix socket knows no network.
# - proctrack/cgroup: what a step started dies with it, as on real clusters; with linuxproc a session of its own lives.
# - config_overrides: there are more CPUs in the configuration than in the machine.
# - SlurmdTimeout, KillWait: clusters have 300 and 30 s; tests need not wait for that.
# - batch_sched_delay, sched_interval, bf_interval: a job starts when it can, not at the next round.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=head({subnet}.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={d}/munge.sock,cred_expire=5
MpiDefault=none
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters={consumable}
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=1
SlurmdTimeout={timeout}
SlurmctldTimeout=6
InactiveLimit=0
KillWait=2
MessageTimeout=5
MailProg=/bin/true
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool.%n
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd.%n.pid
SlurmctldLogFile={d}/slurmctld.log
SlurmdLogFile={d}/slurmd.%n.log
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
{extra}
"""
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class JobResult:
    """A batch job that is over. `exit_code` is that of its command; None: the job was ended before it."""

    job: str
    exit_code: int | None
    output: str
    seconds: float


class Slurm(Hosts):
    """A cluster with one partition of `num` hosts, from entering to leaving."""

    def __init__(
        self,
        folder: Path | str,
        num: int = 4,
        *,
        cpus: int = 8,
        memory_megabytes: int = 0,
        gpus: int = 0,
        slurmd_timeout_seconds: int = 6,
        extra: str = "",
        proctrack: str = "",
        **options: Any,
    ) -> None:
        """Nothing is started yet; `options` are those of `Hosts`.

        `memory_megabytes`: of each host, then a consumable resource, of which a job has all unless it asks for less.
        `gpus`: of each host; files stand for the devices.
        `slurmd_timeout_seconds`: after how long without power a host is down for Slurm.
        `extra`: further lines of slurm.conf.
        """
        # proctrack/cgroup names its control groups for the hosts, on the whole machine: another cluster's, of this
        # process or of another worker of the tests, must have other names.
        super().__init__(folder, num, **{"prefix": f"n{os.getpid()}x{next(_NUMBERS)}-", **options})
        self._cpus, self._memory, self.gpus = cpus, memory_megabytes, gpus
        self._slurmd_timeout, self._extra = slurmd_timeout_seconds, extra
        self._proctrack = proctrack or ("cgroup" if os.access(FREEZER, os.W_OK) else "linuxproc")

    def start(self) -> Self:
        """Start the hosts, and Slurm on them, and wait until each of them takes jobs."""
        super().start()
        self._configure()
        folder = self.folder
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        options = ("key-file=munge.key", "socket=munge.sock", "pid-file=munged.pid", "log-file=munged.log")
        paths = [f"--{name}={folder}/{file}" for name, file in (one.split("=") for one in options)]
        self._daemon(0, "munged", "--force", *paths, f"--seed-file={folder}/munge.seed")
        self._daemon(0, "slurmctld", "-f", f"{folder}/slurm.conf")
        # A slurmd that comes too early asks again only after a second.
        self._until(lambda: " is UP" in self.run(0, "scontrol", "ping", check=False).stdout)
        for node in self.nodes:
            self.start_slurmd(node)
        self.wait_idle()
        return self

    def environment(self, user: str | None) -> dict[str, str]:
        """As of `Hosts`, and where the configuration is."""
        return {**super().environment(user), "SLURM_CONF": f"{self.folder}/slurm.conf"}

    def boot(self, node: int) -> None:
        """As of `Hosts`, and its slurmd, if it had one."""
        super().boot(node)
        if self._pid_file(node).exists():
            self.start_slurmd(node)

    def start_slurmd(self, node: int) -> None:
        """Start the slurmd of `node`."""
        self._pid_file(node).unlink(missing_ok=True)
        self._daemon(node, "slurmd", "-f", f"{self.folder}/slurm.conf")

    def kill_slurmd(self, node: int) -> None:
        """SIGKILL to the slurmd of `node`."""
        # The number that it has on that host.
        self.run(node, "kill", "-9", self._pid_file(node).read_text().strip())

    def wait_idle(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Until no job runs on any host, and each takes jobs.

        Raises:
            TimeoutError: one does not.
        """
        self._until(self.is_idle, timeout_seconds)

    def is_idle(self) -> bool:
        """Whether no job runs on any host, and each takes jobs."""
        return len(self.run(0, "sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False).stdout.split()) >= self.num

    def batch(self, *words: str, timeout_seconds: float = 300.0, **options: Any) -> JobResult:
        """Run `words` on the first host of an allocation of all hosts, as `sbatch` does, and wait for the job's end.

        `options` are those of `submit`. A job that is not over in time is cancelled.

        Raises:
            TimeoutError: it was not over in time.
        """
        began = time.monotonic()
        job, folder = self.submit(*words, **options)
        try:
            while self.is_queued(job):
                if time.monotonic() - began > timeout_seconds:
                    raise TimeoutError(f"job {job} is not over: {(folder / 'output').read_text()[-4000:]}")
                time.sleep(JOB_POLL_SECONDS)
        finally:
            self.run(0, "scancel", job, check=False)
        return self.result(job, folder, time.monotonic() - began)

    def submit(
        self,
        *words: str,
        options: tuple[str, ...] = (),
        tasks_per_node: int = 1,
        user: str = "alice",
        env: Mapping[str, str] | None = None,
    ) -> tuple[str, Path]:
        """Submit a job of all hosts whose batch script is `words`: (its number, a folder with its `output`).

        `options` are further ones of `sbatch`.
        """
        folder = self.home(user) / f"job-{next(_NUMBERS)}"
        self.run(0, "mkdir", str(folder), user=user)
        script = folder / "script"
        script.write_text(f"#!/bin/bash\n{shlex.join(words)}\necho $? >new && mv new exit_code\n")
        tasks = ("-N", str(self.num), "-n", str(self.num * tasks_per_node), f"--ntasks-per-node={tasks_per_node}")
        where = ("--parsable", "--no-requeue", f"--output={folder}/output", f"--chdir={folder}")
        submitted = self.run(0, "sbatch", *where, *tasks, *options, str(script), user=user, env=env)
        return submitted.stdout.strip(), folder

    def is_queued(self, job: str) -> bool:
        """Whether it waits, runs, or still ends."""
        return bool(self.run(0, "squeue", "-h", "-j", job, "-o", "%T", check=False).stdout.strip())

    def result(self, job: str, folder: Path, seconds: float) -> JobResult:
        """What came of a job that is over."""
        exit_code, output = folder / "exit_code", folder / "output"
        return JobResult(
            job,
            int(exit_code.read_text()) if exit_code.exists() else None,
            output.read_text() if output.exists() else "",
            seconds,
        )

    def stop(self) -> None:
        """End all and remove the files and control groups."""
        super().stop()
        remove_control_groups(self.names)

    # ---- inside ----

    def _configure(self) -> None:
        folder = self.folder
        resources = f"CPUs={self._cpus}"
        resources += f" RealMemory={self._memory}" if self._memory else ""
        resources += f" Gres=gpu:{self.gpus}" if self.gpus else ""
        nodes = [f"NodeName={self.name(i)} NodeAddr={SUBNET}.{i} {resources} State=UNKNOWN" for i in self.nodes]
        extra = self._extra
        if self.gpus:
            extra += "\nGresTypes=gpu"
            for number in range(self.gpus):
                # slurmd wants them to be there; nothing else is done with them.
                (folder / f"gpu{number}").touch()
            self._write("gres.conf", f"Name=gpu File={folder}/gpu[0-{self.gpus - 1}]\n")
        self._write(
            "slurm.conf",
            _CONFIGURATION.format(
                subnet=SUBNET,
                d=folder,
                nodes="\n".join(nodes),
                extra=extra,
                proctrack=self._proctrack,
                consumable="CR_CPU_Memory" if self._memory else "CR_CPU",
                timeout=self._slurmd_timeout,
            ),
        )
        cgroups = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n"
        if self._proctrack != "cgroup" and self._version() >= 23:
            # Version 2 of the control groups it uses only where systemd started it.
            cgroups = "CgroupPlugin=disabled\n"
        self._write("cgroup.conf", cgroups)
        for name in self.names:
            # By which the next start finds the control groups of a cluster that was killed.
            (folder / f"slurmd-of-{name}").touch()

    def _version(self) -> int:
        """Such as 22."""
        return int(self.run(0, "slurmd", "-V").stdout.split()[-1].split(".")[0])

    def _pid_file(self, node: int) -> Path:
        return self.folder / f"slurmd.{self.name(node)}.pid"

    def _until(self, is_so: Callable[[], bool], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not is_so():
            if time.monotonic() > deadline:
                state = self.run(0, "sinfo", "-N", check=False).stdout
                with suppress(OSError):
                    state += (self.folder / "slurmctld.log").read_text()[-2000:]
                raise TimeoutError(state)
            time.sleep(POLL_SECONDS)

    def _daemon(self, node: int, *words: str) -> None:
        # It may inherit no pipe of ours, which would never be closed. It forks, which drops the signal at the death of
        # its parent.
        path = self.folder / f"{words[0]}.{node}.err"
        with path.open("ab") as err:
            started = self.run(node, *words, capture_output=False, stdout=err, stderr=err, check=False)
        if started.returncode != 0:
            raise RuntimeError(f"{words[0]} on {self.name(node)} does not start: {path.read_text()[-2000:]}")
