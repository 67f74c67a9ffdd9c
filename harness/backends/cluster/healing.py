"""Undoes what a run whose tool is dead has left on its other hosts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from chaos.errors import EnvironmentFailure
from chaos.undo.heal import Healed
from chaos.undo.run_registry import OpenRun, register, registered
from harness.backends.cluster.asking import ask, of_each
from harness.backends.cluster.engine import Engine
from harness.backends.cluster.slurm import HOSTS_VARIABLE, JOB_VARIABLE, Slurm
from harness.backends.cluster.ssh import Ssh
from harness.node.socket_folder import SocketFolder
from mecefo_runtime.system.json_values import JsonTypeError, from_json


def heal_hosts(run: OpenRun) -> tuple[Healed, ...]:
    """What came of it on each of the run's other hosts; `folder` is the name of the host.

    On this host the sockets at which processes of the job reported are removed.
    """
    SocketFolder(run.run).remove()
    engine = _engine(run)
    if engine is None:
        ended = "the allocation has ended, and Slurm has ended what ran in it"
        return tuple(Healed(run.run, host, removed=(ended,)) for host in run.hosts)
    return of_each(run.hosts, partial(heal_host, engine, run.run))


def forget_ended_allocations() -> None:
    """Before a new run: of earlier ones whose allocation has ended nothing can be left on its hosts."""
    for entry in registered():
        run = entry.run
        if run is None or not run.hosts or run.is_elsewhere() or run.is_owned():
            continue
        name, _, job = run.reached_by.partition(":")
        if name == Slurm.name and Slurm.has_ended(job):
            SocketFolder(run.run).remove()
            register(replace(run, hosts=(), reached_by=""))


def _engine(run: OpenRun) -> Engine | None:
    """The engine that reaches the hosts; None: there is nothing left of them to be reached."""
    name, _, job = run.reached_by.partition(":")
    if name != Slurm.name:
        return Ssh(run.hosts)
    if Slurm.has_ended(job):
        return None
    return Slurm({JOB_VARIABLE: job, HOSTS_VARIABLE: ",".join(run.hosts)})


def heal_host(engine: Engine, run: str, host: str, timeout_seconds: float = 120.0) -> Healed:
    """What came of it on one host; `folder` is its name."""
    try:
        return replace(from_json(Healed, ask(engine, host, run, "heal", timeout_seconds=timeout_seconds)), folder=host)
    except (EnvironmentFailure, JsonTypeError) as error:
        return Healed(run, host, problems=(f"{error}; heal again when it can",))
