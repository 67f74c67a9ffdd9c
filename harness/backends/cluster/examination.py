"""What works on each host of a cluster: the checks of `chaos doctor`, made there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from chaos.errors import EnvironmentFailure
from harness.backends.cluster.asking import ask, of_each
from harness.backends.cluster.engine import Engine
from harness.backends.cluster.settings import hosts_of
from harness.backends.cluster.slurm import Slurm
from harness.backends.cluster.ssh import Ssh
from harness.doctor.finding import Check, Finding
from harness.node.facts import tool_version
from mecefo_runtime.system.json_values import JsonTypeError, from_json

REACHED = Check("agent", "observing and injecting on the host", ("slurm", "ssh"))


def engine_of(hosts: str) -> Engine:
    """The engine that reaches `hosts` (see `hosts_of`); empty: those of the Slurm allocation.

    Raises:
        EnvironmentFailure: there is no allocation.
        UsageError: they name no hosts.
    """
    return Ssh(hosts_of(hosts)) if hosts else Slurm()


def examine_hosts(engine: Engine) -> tuple[tuple[str, tuple[Finding, ...]], ...]:
    """(host, findings) of each host."""
    hosts: Sequence[str] = engine.hosts
    return tuple(zip(hosts, of_each(hosts, partial(_examine, engine)), strict=True))


def _examine(engine: Engine, host: str) -> tuple[Finding, ...]:
    try:
        told = ask(engine, host, "doctor", "examine")
        version, findings = str(told["version"]), tuple(from_json(Finding, one) for one in told["findings"])
    except EnvironmentFailure as error:
        remedy = "install this version of mecefo-chaos there, at the same path as here, and see that you can log in"
        return (REACHED.missing(str(error), remedy),)
    except (JsonTypeError, KeyError, TypeError) as error:
        return (REACHED.wrong(f"it does not answer as this version does: {error}", f"install {tool_version()} there"),)
    if version != tool_version():
        return (REACHED.wrong(f"version {version} is installed there", f"install {tool_version()} there"), *findings)
    return (REACHED.ok(f"version {version}, by {engine.name}"), *findings)
