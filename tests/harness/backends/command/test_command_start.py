"""What a command is told when it is started on several nodes, and how its ends are taken together."""

import os
import subprocess
import sys

import pytest
from torch.distributed.run import get_args_parser

from chaos.experiment.command_job import CommandConfig
from harness.backends.command.attempts import deciding_end
from harness.backends.command.on_nodes import job_logs
from harness.backends.command.start import NOT_FOUND, SITE_FOLDER, node_environment, with_site

pytestmark = pytest.mark.unit

ADDRESSES = {"node-0": "10.96.0.16", "node-1": "10.96.0.17"}


def options_of(monkeypatch, environment, *words):
    """What torchrun makes of it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return get_args_parser().parse_args([*words, "train.py"])


def test_torchrun_takes_its_place_among_the_nodes_from_the_environment(monkeypatch):
    job = CommandConfig(("torchrun", "train.py"), nodes=2, gpus_per_node=3)
    options = options_of(monkeypatch, node_environment(job, 1, ADDRESSES, 29400))
    assert (options.nnodes, options.nproc_per_node, options.node_rank) == ("2", "3", 1)
    assert (options.rdzv_backend, options.rdzv_endpoint) == ("c10d", "10.96.0.16:29400")
    assert (options.local_addr, options.master_addr, options.master_port) == ("10.96.0.17", "10.96.0.16", 29400)


def test_what_the_command_says_itself_counts(monkeypatch):
    job = CommandConfig(("torchrun",), nodes=2, environment={"PET_MASTER_PORT": "1234"})
    environment = node_environment(job, 0, ADDRESSES, 29400)
    options = options_of(monkeypatch, environment, "--nnodes", "1:2", "--rdzv-backend", "static")
    assert (options.nnodes, options.rdzv_backend, options.master_port) == ("1:2", "static", 1234)


def test_other_launchers_and_plain_scripts_get_their_place_by_the_usual_variables():
    job = CommandConfig(("sh", "-c", "RANK=$NODE_RANK python train.py"), nodes=2, environment={"NNODES": "3"})
    environment = node_environment(job, 1, ADDRESSES, 29400)
    assert {name: environment[name] for name in ("NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT")} == {
        "NODE_RANK": "1",
        "NNODES": "3",
        "MASTER_ADDR": "10.96.0.16",
        "MASTER_PORT": "29401",
    }, "torchrun's own store listens on 29400; what the job sets counts"
    assert "NODE_RANK" not in node_environment(CommandConfig(("torchrun",)), 0, ADDRESSES, 29400)


def test_on_one_node_torchrun_chooses_how_its_ranks_meet(monkeypatch):
    environment = node_environment(CommandConfig(("torchrun",), gpus_per_node=2), 0, ADDRESSES, 29400)
    options = options_of(monkeypatch, environment)
    assert (options.nnodes, options.nproc_per_node) == ("1", "2")
    assert (options.rdzv_backend, options.rdzv_endpoint, options.master_port) == ("static", "", None)


def test_our_agent_comes_before_what_is_on_the_path_already():
    assert with_site({"A": "b", "PYTHONPATH": "/own"}) == {"A": "b", "PYTHONPATH": f"{SITE_FOLDER}{os.pathsep}/own"}
    assert with_site({})["PYTHONPATH"] == str(SITE_FOLDER)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ({"words": ["sh", "-c", "echo $PWD $A ${PYTHONPATH##*/}; exit 3"]}, (3, "{folder} b site\n", "")),
        (
            {"words": ["no-such-program"]},
            (NOT_FOUND, "", "'no-such-program' cannot be started in the container: No s"),
        ),
        (
            {"words": ["sh"], "folder": "/no/such"},
            (NOT_FOUND, "", "cannot be started in the container: No such file"),
        ),
    ],
)
def test_a_process_becomes_the_command_or_says_why_not(tmp_path, order, expected):
    environment = {"A": "b", "CHAOS_AGENT": "unix:/none", "PYTHONPATH": ""}
    order = {"folder": str(tmp_path), "where": "in the container", "environment": environment, **order}
    code = f"from harness.backends.command.start import become; raise SystemExit(become({order!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (expected[0], expected[1].format(folder=tmp_path))
    assert expected[2] in done.stderr


def test_each_node_has_a_log_of_its_own_where_there_are_several(tmp_path):
    assert job_logs(tmp_path, 1) == {0: tmp_path / "job.log"}
    assert job_logs(tmp_path, 2) == {node: tmp_path / f"job-node-{node}.log" for node in (0, 1)}


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({0: 0}, (0, 0)),
        ({0: -9}, (0, -9)),
        ({1: -9, 0: 0}, (0, 0)),
        ({1: -9, 0: 1}, (0, 1)),
        ({0: 0, 1: 3}, (1, 3)),
        ({2: 4, 0: 0, 1: 3}, (2, 4)),
        ({1: -9, 0: -15}, (1, -9)),
    ],
)
def test_a_node_that_was_killed_does_not_decide_where_others_went_on(codes, expected):
    assert deciding_end(codes) == expected
