"""What the engines start: the words, and the environment."""

import os
import shlex
import subprocess

import pytest

from chaos.errors import EnvironmentFailure
from harness.backends.cluster.engine import is_same_host
from harness.backends.cluster.slurm import Slurm
from harness.backends.cluster.ssh import Ssh

pytestmark = pytest.mark.unit

WORDS = ("python", "/opt/my env/agent.py", "a'b", "$HOME", "")
ALLOCATION = {"SLURM_JOB_ID": "1234", "SLURM_JOB_NODELIST": "node[1-3]"}


def program(folder, name, script):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o700)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder of programs that come first."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "bin"


# ---- Slurm ----


def test_the_hosts_of_an_allocation(programs):
    program(programs, "scontrol", 'test "$*" = "show hostnames node[1-3]" && printf "node1\\nnode2\\nnode3\\n"')
    engine = Slurm(ALLOCATION)
    assert engine.hosts == ("node1", "node2", "node3") and engine.reference == "slurm:1234"


@pytest.mark.parametrize(
    ("script", "why"), [("echo no such job >&2; exit 1", "no such job"), (None, "No such file or directory")]
)
def test_hosts_that_slurm_does_not_name(programs, monkeypatch, script, why):
    if script is None:
        monkeypatch.setenv("PATH", str(programs))
    else:
        program(programs, "scontrol", script)
    with pytest.raises(EnvironmentFailure, match=f"hosts of job 1234: .*{why}"):
        _ = Slurm(ALLOCATION).hosts


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": "1"}, {"SLURM_JOB_NODELIST": "a"}])
def test_without_an_allocation_it_says_how_to_get_one(environment):
    with pytest.raises(EnvironmentFailure, match="sbatch or salloc"):
        Slurm(environment)


def test_one_step_for_one_host_that_takes_nothing_from_the_job():
    words = Slurm(ALLOCATION).command("node 2", WORDS)
    assert words[0] == "srun" and tuple(words[-len(WORDS) :]) == WORDS, "no shell reads them"
    assert {"--jobid=1234", "--nodelist=node 2", "--nodes=1", "--ntasks=1"} < set(words)
    assert {"--overlap", "--mem=0", "--gres=none", "--mpi=none"} < set(words)


def test_how_the_job_was_asked_for_is_not_how_the_step_is():
    kept = {"SLURM_CONF": "/etc/x", "SLURM_JOB_ID": "1234", "SLURM_JOB_NODELIST": "n", "PATH": "/bin", "MY_SLURM": "1"}
    in_the_way = dict.fromkeys(
        (
            *("SLURM_CPU_BIND", "SLURM_MEM_PER_NODE", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_GRES"),
            *("SLURM_DISTRIBUTION", "SLURM_STEP_ID", "SBATCH_PARTITION", "SRUN_DEBUG", "PMI_RANK", "PMIX_RANK"),
        ),
        "1",
    )
    assert Slurm(ALLOCATION).environment({**kept, **in_the_way}) == kept


def test_the_steps_of_a_host_are_ended_by_name_alone(programs, tmp_path):
    """`srun` that was killed tells nobody: its tasks go on."""
    program(programs, "squeue", f"echo \"$@\" >> {tmp_path / 'asked'}; printf '1234.0 train\\n1234.7 chaos-agent\\n'")
    program(programs, "scancel", f'echo "$@" >> {tmp_path / "ended"}')
    subprocess.run(Slurm(ALLOCATION).end("node2"), check=True)
    assert (tmp_path / "ended").read_text() == "1234.7\n"
    assert {"--jobs=1234", "--nodelist=node2"} <= set((tmp_path / "asked").read_text().split())


@pytest.mark.parametrize(
    ("script", "has_ended"),
    [
        ("echo RUNNING", False),
        ("echo COMPLETING", False),
        ("printf 'CANCELLED\\n'", True),
        ("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1", True),
        ("echo cannot contact the controller >&2; exit 1", False),
        (None, False),
    ],
)
def test_whether_an_allocation_is_over(programs, monkeypatch, script, has_ended):
    if script is None:
        monkeypatch.setenv("PATH", str(programs))
    else:
        program(programs, "squeue", script)
    assert Slurm.has_ended("1234") is has_ended


# ---- ssh ----


def test_ssh_asks_for_nothing_and_runs_the_words_as_they_are(programs):
    """The shell of the other side is played by this one's."""
    program(programs, "ssh", 'for last; do true; done; exec sh -c "$last"')
    engine = Ssh(["alice@node1", "node2"])
    assert engine.hosts == ("alice@node1", "node2") and engine.end("node2") == []
    words = engine.command("alice@node1", ["printf", "%s|", *WORDS])
    assert words[-2] == "alice@node1" and "-oBatchMode=yes" in words and "-T" in words
    told = subprocess.run(words, capture_output=True, text=True, check=True)
    assert told.stdout == "".join(f"{word}|" for word in WORDS)
    assert shlex.split(words[-1]) == ["exec", "printf", "%s|", *WORDS]


def test_the_users_own_environment_is_the_one_of_ssh():
    environment = {"SSH_AUTH_SOCK": "/tmp/agent", "SLURM_JOB_ID": "7"}
    assert Ssh(["a"]).environment(environment) == environment


# ---- names ----


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("node1", "node1", True),
        ("node1.cluster.org", "node1", True),
        ("node1", "node1.cluster.org", True),
        ("node1.a.org", "node1.b.org", False),
        ("node1", "node11", False),
        ("node1", "node2", False),
    ],
)
def test_whether_two_names_are_of_one_host(one, other, is_same):
    assert is_same_host(one, other) is is_same
