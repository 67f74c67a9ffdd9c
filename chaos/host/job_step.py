"""Whether a scheduler ends all that this process has started, in sessions of its own as well, with its job or step."""

from __future__ import annotations

from pathlib import Path

# Slurm's proctrack/cgroup: `/slurm_node1/uid_1000/job_7/step_0`, and `/system.slice/slurmstepd.scope/job_7/step_0`.
_OF_SLURM = ("/slurm", "slurmstepd.scope")
GROUPS = Path("/proc/self/cgroup")


def ends_with_step(groups: Path = GROUPS) -> bool:
    """Whether it is in a control group of a Slurm step: a watchdog of this process ends when the step does."""
    try:
        text = groups.read_text(encoding="utf-8")
    except OSError:
        return False
    return any("/job_" in line and any(word in line for word in _OF_SLURM) for line in text.splitlines())
