"""How an experiment names hosts, and what it is where it does not: `hosts_of`, the implied backend, the shape."""

import io
import sys

import pytest

from chaos.errors import EnvironmentFailure, UsageError
from chaos.experiment.reading import from_mapping, from_options
from harness.backends.base import kind_of
from harness.backends.cluster.settings import hosts_of
from harness.run.preparation import prepare

pytestmark = pytest.mark.unit

TORCHRUN = ["torchrun", "--nproc-per-node", "2", "train.py"]
VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    "SLURM_NNODES",
)


@pytest.fixture(autouse=True)
def no_allocation(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def allocation(monkeypatch):
    """A function that pretends an allocation of so many hosts."""

    def pretend(num_hosts, **more):
        values = {"JOB_ID": "7", "JOB_NODELIST": f"node[1-{num_hosts}]", "JOB_NUM_NODES": str(num_hosts), **more}
        for name, value in values.items():
            monkeypatch.setenv(f"SLURM_{name}", value)

    return pretend


def command(words=TORCHRUN, **more):
    return from_mapping({"name": "n", "job": {"runtime": "command", "command": words}, **more})


# ---- hosts ----


@pytest.mark.parametrize(
    ("value", "hosts"),
    [
        ("a,b,c", ["a", "b", "c"]),
        ("a", ["a"]),
        (" a , b,", ["a", "b"]),
        (["a", "b"], ["a", "b"]),
        ("alice@node1.cluster.org,10.0.0.2,[fe80::1]", ["alice@node1.cluster.org", "10.0.0.2", "[fe80::1]"]),
    ],
)
def test_hosts_as_they_are_written(value, hosts):
    assert hosts_of(value) == hosts


def test_a_file_of_hosts(tmp_path):
    """As those of MPI: further words and comments do not count."""
    path = tmp_path / "hosts"
    path.write_text("# ours\nnode1 slots=8\n\n  node2   # the slow one\nnode3\n")
    assert hosts_of(str(path)) == ["node1", "node2", "node3"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "names no host"),
        (",,", "names no host"),
        ([], "names no host"),
        ("-oProxyCommand=touch x", "is not a host"),
        ("a,-oProxyCommand=x", "is not a host"),
        ("-oProxyCommand", "is not a host"),
        ("a b", "is not a host"),
        ("a;reboot", "is not a host"),
        ("a,b,a", "a is named twice: each host is one node"),
        (3, "must be hosts"),
        (",".join(f"h{number}" for number in range(5000)), "5000 hosts are more than 4096"),
    ],
)
def test_what_names_no_hosts_is_refused(value, why):
    with pytest.raises(UsageError, match=why):
        hosts_of(value)


@pytest.mark.parametrize("content", [b"", b"# nobody\n", b"\xff\xfe\n"])
def test_a_file_without_hosts_is_refused(tmp_path, content):
    path = tmp_path / "hosts"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"names no host|cannot be read"):
        hosts_of(str(path))


def test_options_in_a_file_are_no_hosts(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("-oProxyCommand=x\n")
    with pytest.raises(UsageError, match="is not a host"):
        hosts_of(str(path))


def test_wrong_hosts_are_refused_at_their_place():
    with pytest.raises(UsageError) as refused:
        from_options("kill-node", {"at": "step=5", "hosts": "a,a", "command": TORCHRUN})
    assert refused.value.problems[0].key == "--hosts"


# ---- what is implied ----


def test_named_hosts_are_reached_by_ssh_and_each_is_a_node():
    experiment = command(ssh={"hosts": ["a", "b", "c"]})
    assert (experiment.backend, experiment.node_settings.hosts) == ("ssh", ["a", "b", "c"])
    cluster = experiment.cluster()
    assert (cluster.nodes, cluster.gpus_per_node) == (3, 2)


def test_an_allocation_of_several_hosts_is_recognised(allocation):
    allocation(4)
    experiment = command(["srun", *TORCHRUN])
    assert experiment.backend == "slurm"
    assert (experiment.cluster().nodes, experiment.cluster().gpus_per_node) == (4, 2)


def test_hosts_that_are_named_count_more_than_the_allocation(allocation):
    allocation(4)
    assert command(ssh={"hosts": ["a", "b"]}).backend == "ssh"


def test_one_host_or_none_is_this_machine(allocation):
    assert command().backend == "local"
    allocation(1)
    assert command().backend == "local"


def test_the_built_in_job_stays_here(allocation):
    allocation(4)
    assert from_mapping({"name": "n"}).backend == "local"


def test_who_names_a_backend_gets_it(allocation):
    allocation(4)
    assert command(backend="local").backend == "local"


@pytest.mark.parametrize(
    ("variables", "words", "shape"),
    [
        ({"NTASKS_PER_NODE": "8"}, ["srun", "python", "train.py"], (4, 8)),
        ({"NTASKS_PER_NODE": "8(x4)"}, ["srun", "python", "train.py"], (4, 8)),
        ({"NTASKS": "12"}, ["srun", "python", "train.py"], (4, 3)),
        ({}, ["srun", "python", "train.py"], (4, 1)),
        ({"NTASKS": "many"}, ["srun", "python", "train.py"], (4, 1)),
        ({"NTASKS_PER_NODE": "1"}, ["srun", *TORCHRUN], (4, 2)),
        ({"NTASKS_PER_NODE": "1"}, ["srun", "torchrun", "--nnodes", "3:4", *TORCHRUN[1:]], (4, 2)),
        ({"NTASKS_PER_NODE": "8"}, ["srun", "-n", "8", "python", "train.py"], (4, 2)),
        ({"NTASKS_PER_NODE": "8"}, ["srun", "-N2", "-n4", "python", "train.py"], (2, 2)),
    ],
)
def test_the_shape_is_that_of_the_command_or_of_the_allocation(allocation, variables, words, shape):
    allocation(4, **variables)
    cluster = command(words).cluster()
    assert (cluster.nodes, cluster.gpus_per_node) == shape
    # On the command line they are a tuple.
    cluster = from_options("none", {"command": tuple(words)}).cluster()
    assert (cluster.nodes, cluster.gpus_per_node) == shape


def test_the_hosts_of_the_allocation_count_on_the_command_line_where_torchrun_is_elastic(allocation):
    allocation(4)
    words = ("srun", "torchrun", "--nnodes", "3:4", "--nproc-per-node", "1", "train.py")
    options = {"at": "step=5", "on": "node=3", "command": words}
    assert from_options("kill-node", options).job.nodes == 4


def test_numbers_that_are_given_count_most(allocation):
    allocation(4, NTASKS_PER_NODE="8")
    job = {"runtime": "command", "command": ["srun", "x"], "nodes": 2, "gpus_per_node": 1}
    cluster = from_mapping({"name": "n", "job": job}).cluster()
    assert (cluster.nodes, cluster.gpus_per_node) == (2, 1)


# ---- what is refused before anything is made ----


def require(experiment):
    kind_of(experiment.nodes_on).require(experiment, io.StringIO())


@pytest.mark.parametrize("backend", ["slurm", "ssh"])
def test_the_built_in_job_is_refused(allocation, backend):
    allocation(4)
    with pytest.raises(EnvironmentFailure, match="add -- COMMAND, or choose --backend local"):
        require(from_mapping({"name": "n", "backend": backend}))


def test_slurm_outside_of_an_allocation_is_refused():
    with pytest.raises(EnvironmentFailure, match="start `chaos` in one, by sbatch or salloc"):
        require(command(backend="slurm"))


def test_ssh_without_hosts_is_refused():
    with pytest.raises(UsageError, match="name them with --hosts"):
        require(command(backend="ssh"))


def test_another_number_of_nodes_than_hosts_is_refused():
    job = {"runtime": "command", "command": TORCHRUN, "nodes": 3}
    with pytest.raises(UsageError, match="3 nodes are on 2 hosts"):
        require(from_mapping({"name": "n", "job": job, "ssh": {"hosts": ["a", "b"]}}))


def test_the_ranks_of_other_hosts_do_not_count_against_this_machine(monkeypatch):
    # No machine holds the 1024 ranks that a job has at most.
    monkeypatch.setattr("harness.run.preparation._MIN_RANK_BYTES", 2**50)
    job = {"runtime": "command", "command": [sys.executable, "-c", "pass"], "nodes": 128, "gpus_per_node": 8}
    with pytest.raises(UsageError, match="1024 ranks take"):
        prepare(from_mapping({"name": "n", "backend": "local", "job": job}))
    hosts = [f"node{number}" for number in range(128)]
    assert prepare(from_mapping({"name": "n", "job": job, "ssh": {"hosts": hosts}})).warnings == ()


def test_what_has_all_that_it_needs_is_not_refused(allocation):
    allocation(2)
    require(command(backend="slurm"))
    require(command(ssh={"hosts": ["a", "b"]}))
