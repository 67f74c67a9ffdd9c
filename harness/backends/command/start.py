"""Starts an external command: its environment, on this machine and in a container."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chaos
from chaos.experiment.command_job import CommandConfig, command_text
from chaos.external.identity import JOB_VARIABLE, NODE_VARIABLE
from chaos.in_process.protocol import AGENT_VARIABLE
from harness.backends.command.launcher_log import STORE_SETTING
from mecefo_runtime.system.events import MAIN_JOB

SITE_FOLDER = Path(chaos.__file__).parent / "external" / "site"
# As a shell has them.
NOT_FOUND, NOT_STARTED = 127, 126


def with_site(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Python finds our `sitecustomize` first: that of the `chaos` that runs this."""
    path = [str(SITE_FOLDER), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def agent_environment(address: str, job: str = MAIN_JOB) -> dict[str, str]:
    """The variables that tell agents where to report, and for which job."""
    return {AGENT_VARIABLE: address, JOB_VARIABLE: job}


def node_environment(job: CommandConfig, node: int, addresses: Mapping[str, str], port: int) -> dict[str, str]:
    """What tells the launcher that is started on `node` of its place among all; they meet at `port` of node 0.

    `addresses` are those of the nodes (`node-0`). torchrun takes the defaults of its options from variables of the
    names PET_OPTION (torch 2.11-2.13, `torch/distributed/argparse_util.py`). Other launchers and plain scripts read
    NODE_RANK, NNODES, MASTER_ADDR and MASTER_PORT: their process groups meet at the next port, since torchrun's store
    listens at the first. On one node none of this is set.
    """
    own = {
        NODE_VARIABLE: str(node),
        "PET_NNODES": str(job.nodes),
        "PET_NPROC_PER_NODE": str(job.gpus_per_node),
        "PYTHONUNBUFFERED": "1",
    }
    if job.nodes > 1:
        own |= {
            # For a script that no launcher starts.
            "NODE_RANK": str(node),
            "NNODES": str(job.nodes),
            "MASTER_ADDR": addresses["node-0"],
            "MASTER_PORT": str(port + 1),
            "PET_NODE_RANK": str(node),
            "PET_MASTER_ADDR": addresses["node-0"],
            "PET_MASTER_PORT": str(port),
            "PET_RDZV_ENDPOINT": f"{addresses['node-0']}:{port}",
            # The static one, torchrun's default, does not get through a restart: its second attempt finds the first
            # one's addresses in the store. With c10d that can be helped (torch 2.13).
            "PET_RDZV_BACKEND": "c10d",
            STORE_SETTING: "1",
            # It numbers the nodes in the order of these.
            "PET_LOCAL_ADDR": addresses[f"node-{node}"],
        }
    return {**own, **job.environment}


def become(command: Mapping[str, Any]) -> int:
    """Be the command from now on, in a session of its own; returns, with the exit code, only where that cannot be.

    `command` is the order: `words`, the `folder` to run in, `where` that is in messages, and the `environment` beside
    this process's own. Where that says where agents report, they are brought along.
    """
    environment: Mapping[str, str] = {**os.environ, **command["environment"]}
    words: list[str] = command["words"]
    os.setsid()
    try:
        os.chdir(command["folder"])
        os.execvpe(words[0], words, with_site(environment) if AGENT_VARIABLE in environment else environment)
    except OSError as error:
        text = f"the command {command_text(words)!r} cannot be started {command['where']}: {error.strerror}"
        print(f"chaos: {text}", file=sys.stderr)
        return NOT_FOUND if error.errno == errno.ENOENT else NOT_STARTED
    return NOT_STARTED
