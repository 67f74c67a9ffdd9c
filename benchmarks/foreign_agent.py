"""What does the idle agent cost in an external job? `python -m benchmarks.foreign_agent [--json] [--quick]`.

One training script, followed as in a run by an agent that is told of a fault which never comes; blocks of steps in
turns with the agent's hooks and without them, in one process. As the noise of a step is larger than what is looked for,
what the agent does in a step is timed by itself as well: that is the figure which is judged.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks._machine import Machine, OtherLoad, confined_to, describe_machine
from benchmarks._runs import benchmark_options, finish
from benchmarks._spread import Spread, spread, table
from benchmarks.plain.runs import NeverReached
from harness.control.control_server import ControlServer
from mecefo_runtime.system.events import Event

ROOT = Path(__file__).resolve().parents[1]
NUM_CORES = 2
NUM_BLOCKS, STEPS_PER_BLOCK = 40, 20
QUICK_NUM_BLOCKS, QUICK_STEPS_PER_BLOCK = 4, 5
MAX_AGENT_RATIO = 0.01
RUN_TIMEOUT_SECONDS = 600.0
# Of an empty Python that starts, with and without our `sitecustomize`.
NUM_STARTS, QUICK_NUM_STARTS = 20, 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds: of a step without the agent, of what the agent does in one, of the start of a Python."""

    bare_cpu_seconds: Spread
    agent_seconds: Spread
    followed_over_bare_cpu: Spread
    followed_over_bare_wall: Spread
    added_start_seconds: Spread
    num_events: int

    @property
    def agent_ratio(self) -> float:
        """What the agent does in a step, over the step's own CPU time: medians."""
        return self.agent_seconds.median / self.bare_cpu_seconds.median

    @property
    def is_within(self) -> bool:
        """Whether it costs no more than it may."""
        return self.agent_ratio <= MAX_AGENT_RATIO


def judge(told: Mapping[str, Any], added_start_seconds: Sequence[float], num_events: int) -> Cost:
    """What the script measured: blocks in pairs, without the agent and with it."""
    pairs = list(zip(told["blocks"][::2], told["blocks"][1::2], strict=True))
    return Cost(
        bare_cpu_seconds=spread(bare["cpu_seconds"] for bare, _ in pairs),
        agent_seconds=spread(told["agent_seconds"]),
        followed_over_bare_cpu=spread(followed["cpu_seconds"] / bare["cpu_seconds"] for bare, followed in pairs),
        followed_over_bare_wall=spread(followed["wall_seconds"] / bare["wall_seconds"] for bare, followed in pairs),
        added_start_seconds=spread(added_start_seconds),
        num_events=num_events,
    )


async def measure(num_blocks: int, steps_per_block: int, num_starts: int) -> Cost:
    """Run the script under a control server, as `chaos run` does.

    Raises:
        RuntimeError: the script failed, or was not followed.
    """
    events: list[Event] = []
    control = ControlServer(events.append)
    control.agents = NeverReached()
    await control.open()
    environment = {**os.environ, "CHAOS_RUN": "benchmark", "CHAOS_AGENT": control.address}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "chaos/external/site"), str(ROOT)])
    try:
        script = str(ROOT / "benchmarks/_foreign_training.py")
        told = json.loads(await _run([script, str(num_blocks), str(steps_per_block)], environment))
        if not told["is_followed"]:
            raise RuntimeError("the script was not followed")
        added = []
        bare = {**environment, "PYTHONPATH": str(ROOT)}
        for _ in range(num_starts):
            started = [float(await _run(["-c", _CPU_SECONDS], which)) for which in (bare, environment)]
            added.append(started[1] - started[0])
    finally:
        await control.close()
    return judge(told, added, sum(event.kind == "step_committed" for event in events))


_CPU_SECONDS = "import time; print(time.process_time())"


async def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=dict(environment), stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), RUN_TIMEOUT_SECONDS)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise RuntimeError(f"the script ended with exit code {process.returncode}")
    return output.decode()


def report(cost: Cost, machine: Machine, others_cores: float) -> str:
    """As text."""

    def microseconds(seconds: float) -> str:
        return f"{seconds * 1e6:,.0f} us"

    def ratio(value: float) -> str:
        return f"{value:.4f}"

    rows = [
        ("a step without the agent, CPU", *cost.bare_cpu_seconds.to_text(microseconds)),
        ("what the agent does in one, CPU", *cost.agent_seconds.to_text(microseconds)),
        ("step with / without, CPU", *cost.followed_over_bare_cpu.to_text(ratio)),
        ("step with / without, wall clock", *cost.followed_over_bare_wall.to_text(ratio)),
        ("added to the start of a Python, CPU", *cost.added_start_seconds.to_text(microseconds)),
    ]
    judged = "within" if cost.is_within else "MORE than"
    return "\n".join(
        [
            f"machine: {machine}; others used {others_cores:.2f} cores",
            table(("", "median", "min", "max", "n"), rows),
            f"the agent costs {cost.agent_ratio:.2%} of a step, {judged} {MAX_AGENT_RATIO:.1%}; "
            f"{cost.num_events} steps were told",
        ]
    )


def to_document(cost: Cost, machine: Machine, others_cores: float) -> dict[str, Any]:
    """As plain JSON values."""
    return {
        "machine": machine.to_dict(),
        "others_cores": others_cores,
        "bare_cpu_seconds": cost.bare_cpu_seconds.to_dict(),
        "agent_seconds": cost.agent_seconds.to_dict(),
        "followed_over_bare_cpu": cost.followed_over_bare_cpu.to_dict(),
        "followed_over_bare_wall": cost.followed_over_bare_wall.to_dict(),
        "added_start_seconds": cost.added_start_seconds.to_dict(),
        "agent_ratio": cost.agent_ratio,
        "max_agent_ratio": MAX_AGENT_RATIO,
        "num_events": cost.num_events,
    }


@click.command(help=__doc__)
@benchmark_options
def main(as_json: bool, quick: bool, out: Path | None) -> None:
    """Entry point; there are no runs to keep in `out`."""
    sizes = (
        (QUICK_NUM_BLOCKS, QUICK_STEPS_PER_BLOCK, QUICK_NUM_STARTS)
        if quick
        else (NUM_BLOCKS, STEPS_PER_BLOCK, NUM_STARTS)
    )
    with confined_to(NUM_CORES) as cores:
        machine = describe_machine()
        with OtherLoad(cores) as others:
            cost = asyncio.run(measure(*sizes))
    finish(
        to_document(cost, machine, others.num_cores),
        report(cost, machine, others.num_cores),
        as_json=as_json,
        has_failures=not cost.is_within,
    )


if __name__ == "__main__":
    main()
