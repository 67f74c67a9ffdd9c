"""The training scripts of the cluster tests, without chaos: they train over four hosts, and resume."""

from __future__ import annotations

import re
import sys

import pytest

from tests.cluster.chaos_runs import JOBS, VARIABLES, new_folder, torchrun
from tests.cluster.slurm import Slurm

# What the other tests break is seen there to train.
pytestmark = pytest.mark.nightly


def steps_of(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"^step (\d+) ", output, re.MULTILINE)]


@pytest.mark.parametrize("script", ["ddp.py", "fsdp2.py"])
def test_ranks_that_slurm_starts_resume_from_a_checkpoint(slurm: Slurm, script: str) -> None:
    folder = str(new_folder(slurm))
    for steps, expected in ((7, [*range(1, 8)]), (9, [*range(6, 10)])):
        words = ("srun", sys.executable, str(JOBS / script), str(steps), folder)
        result = slurm.batch(*words, env=VARIABLES)
        assert (result.exit_code, steps_of(result.output)) == (0, expected), result.output


@pytest.mark.parametrize("script", ["ddp.py", "fsdp2.py"])
def test_torchrun_trains_over_all_hosts(slurm: Slurm, script: str) -> None:
    result = slurm.batch("srun", *torchrun(slurm, script, "6", str(new_folder(slurm))), env=VARIABLES)
    assert (result.exit_code, steps_of(result.output)) == (0, [*range(1, 7)]), result.output
