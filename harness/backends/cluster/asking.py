"""Asks a host a single question, without an agent: what it can do, or what a run has left there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from chaos.errors import EnvironmentFailure
from chaos.host import python_module
from chaos.host.run_processes import RUN_VARIABLE
from chaos.undo.run_registry import STATE_VARIABLE
from harness.backends.cluster.engine import NOISE, Engine
from mecefo_runtime.system.json_values import loads

_TIMEOUT_SECONDS = 120.0
_AT_ONCE = 16

T = TypeVar("T")


def command_there(engine: Engine, host: str, *words: str) -> list[str]:
    """What is started here so that `python -m harness.node` with these words runs on `host`.

    It is at the same path as here: on a file system that the hosts share, or installed there in the same way.
    """
    state = [f"{STATE_VARIABLE}={os.environ[STATE_VARIABLE]}"] if STATE_VARIABLE in os.environ else []
    return engine.command(host, ["env", *state, *python_module.command("harness.node", *words)])


def environment_here(engine: Engine) -> dict[str, str]:
    """The environment of that; it is none of the run's processes, so that a fault of a node does not end it."""
    return engine.environment({name: value for name, value in os.environ.items() if name != RUN_VARIABLE})


def ask(engine: Engine, host: str, *words: str, timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
    """What `python -m harness.node` with these words prints there, as JSON.

    Raises:
        EnvironmentFailure: the host cannot be reached, or the tool is not there.
    """
    try:
        done = subprocess.run(
            command_there(engine, host, *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            env=environment_here(engine),
            check=False,
        )
        _, begin, told = done.stdout.partition(python_module.BEGIN)
        if begin:
            return loads(told)
        why = last_line(done.stderr) or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        why = f"no answer within {timeout_seconds:g} s"
    except (OSError, ValueError) as error:
        why = str(error)
    raise EnvironmentFailure(f"{host} cannot be asked: {why}")


def of_each(hosts: Sequence[str], question: Callable[[str], T]) -> tuple[T, ...]:
    """The answers of the hosts to `question`, several of which are asked at the same time."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(question, hosts))


def last_line(text: bytes) -> str:
    """The last line of what an engine has printed that says anything."""
    lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and NOISE not in line), "")
