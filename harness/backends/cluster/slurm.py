"""Slurm: the hosts of the allocation that this process is in; a program on one of them is an overlapping step."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property

from chaos.errors import EnvironmentFailure
from chaos.host.inherited import why

JOB_VARIABLE, HOSTS_VARIABLE, NUM_HOSTS_VARIABLE = "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES"
STEP_NAME = "chaos-agent"
_TIMEOUT_SECONDS = 30.0
_ALIVE = frozenset(("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "REQUEUED"))
# What of the environment is not about the allocation but about how its job was asked for: srun takes its options from
# it, and SLURM_CPU_BIND or SLURM_MEM_PER_NODE are in the way of ours.
_KEPT = re.compile(r"SLURM_(CONF|CLUSTERS|JOB_ID|JOBID|JOB_NODELIST|JOB_NUM_NODES|NODELIST|NNODES)")


class Slurm:
    """The allocation of `environment`, within which one step is started for each host.

    One step over all hosts would end on all of them when one is lost (Slurm 22.05 and 24.11).
    """

    name = "slurm"
    ends_with_stream = False

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._job = environment.get(JOB_VARIABLE, "")
        self._list = environment.get(HOSTS_VARIABLE, "")
        if not self._job or not self._list:
            raise EnvironmentFailure(
                f"the engine slurm needs an allocation, and ${JOB_VARIABLE} is not set: start `chaos` in one, by "
                "sbatch or salloc"
            )

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """See `Engine`."""
        try:
            told = subprocess.run(
                ["scontrol", "show", "hostnames", self._list],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_TIMEOUT_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", "") or (why(error) if isinstance(error, OSError) else str(error))
            raise EnvironmentFailure(f"scontrol does not name the hosts of job {self._job}: {said.strip()}") from error
        return tuple(told.stdout.split())

    @property
    def reference(self) -> str:
        """See `Engine`."""
        return f"{self.name}:{self._job}"

    @classmethod
    def has_ended(cls, job: str) -> bool:
        """Whether an allocation is over: Slurm has ended what ran in it then."""
        try:
            words = ["squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T"]
            told = subprocess.run(
                words,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return False
        is_unknown = told.returncode != 0 and "Invalid job id" in told.stderr
        return is_unknown or bool(told.stdout.strip() and not set(told.stdout.split()) & _ALIVE)

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """See `Engine`: a step that takes nothing from the job's, and ends alone."""
        return [
            *("srun", "--quiet", f"--jobid={self._job}", f"--nodelist={host}", "--nodes=1", "--ntasks=1"),
            *("--overlap", "--mem=0", "--gres=none", "--mpi=none", "--cpu-bind=none", "--kill-on-bad-exit=0"),
            *(f"--job-name={STEP_NAME}", "--chdir=/", *words),
        ]

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """See `Engine`."""
        of_job = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "PMI_", "PMIX_")
        return {
            name: value for name, value in environment.items() if not name.startswith(of_job) or _KEPT.fullmatch(name)
        }

    def end(self, host: str) -> list[str]:
        """See `Engine`: srun tells nobody that it was killed, and its tasks go on."""
        steps = f"squeue --noheader --steps --jobs={self._job} --nodelist={host} --format='%i %j'"
        agents = f"awk '$2 == \"{STEP_NAME}\" {{ print $1 }}'"
        return ["sh", "-c", f"{steps} | {agents} | xargs -r scancel"]
