"""Slurm 24.11, which is newer than that of the oldest Debian here: all that the hosts run is another Debian's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.chaos_runs import assert_nothing_left
from tests.cluster.folders import cluster_folder
from tests.cluster.hosts import why_no_hosts
from tests.cluster.slurm import Slurm

pytestmark = pytest.mark.nightly

SUITE = "trixie"
MIRROR = "http://deb.debian.org/debian"
INCLUDED = "slurmctld,slurmd,slurm-client,munge,iproute2,procps,util-linux"
# 150 MB are loaded.
TIMEOUT_SECONDS = 1500.0


@pytest.fixture(scope="module")
def debian() -> Iterator[Path]:
    """Another Debian: that in $CHAOS_TEST_DEBIAN, else one that is made here and thrown away."""
    if (reason := why_no_hosts()) is not None:
        pytest.skip(f"no hosts here: {reason}")
    if given := os.environ.get("CHAOS_TEST_DEBIAN"):
        yield Path(given)
        return
    if shutil.which("debootstrap") is None:
        pytest.skip("no debootstrap here (Debian's package debootstrap)")
    with cluster_folder() as folder:
        root = folder / "debian"
        words = ["debootstrap", "--variant=minbase", f"--include={INCLUDED}", SUITE, str(root), MIRROR]
        made = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        if made.returncode != 0:
            pytest.skip(f"no Debian {SUITE} from {MIRROR}: {made.stdout[-500:]}")
        yield root


@pytest.fixture
def newer_slurm(debian: Path) -> Iterator[Slurm]:
    """Four hosts with that Slurm."""
    with cluster_folder() as folder, Slurm(folder / "slurm", 4, root=debian) as slurm:
        yield slurm


def test_it_is_newer_and_runs_jobs(newer_slurm: Slurm) -> None:
    assert newer_slurm.run(0, "srun", "--version").stdout.startswith("slurm-wlm 24.11")
    result = newer_slurm.batch("srun", "sh", "-c", "hostname; exit 3")
    assert result.exit_code == 3 and {*newer_slurm.names} <= {*result.output.split()}
    newer_slurm.crash(3)
    newer_slurm.boot(3)
    newer_slurm.wait_idle()
    assert_nothing_left(newer_slurm)
