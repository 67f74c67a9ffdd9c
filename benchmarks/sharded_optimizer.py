"""What does a rank's state take with a sharded optimizer? `python -m benchmarks.sharded_optimizer [--json]`.

For each number of holders: a process of its own builds the state of a rank (parameters, gradients, moments), makes an
optimizer step, and says how much more of the machine's memory it has than before.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import torch

from benchmarks._runs import finish
from benchmarks._spread import table
from mecefo_runtime.job.config import PRESETS, JobConfig
from mecefo_runtime.job.layout import configured_layout
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.system.process import run_apart

NUM_HOLDERS = (1, 2, 4, 8)
MODEL = "130m"


def resident_bytes(num_holders: int, model: str, *, is_sharded: bool) -> int:
    """What a rank's state adds to the memory of its process, where so many ranks hold all of the model."""

    def measure() -> str:
        job = JobConfig(model=PRESETS[model], nodes=num_holders, gpus_per_node=1, data_parallel=num_holders, pipeline=1)
        job = replace(job, sharded_optimizer=is_sharded)
        torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True)
        before = _resident_bytes()
        state = ModelState(job, configured_layout(job.cluster()), 0, {}, 0)
        state.gradients.normal_()
        state.apply(1e-3, 1.0)
        return json.dumps(_resident_bytes() - before)

    return int(json.loads(run_apart(measure)))


def _resident_bytes() -> int:
    with Path("/proc/self/status").open(encoding="utf-8") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))


def measure(model: str = MODEL) -> list[dict[str, float]]:
    """For each number of holders: bytes with all moments on every holder, with a share on each, and their ratio."""
    rows = []
    for num_holders in NUM_HOLDERS:
        whole, sharded = (resident_bytes(num_holders, model, is_sharded=is_sharded) for is_sharded in (False, True))
        # Parameters, gradients, two moments.
        expected = (2 + 2 / num_holders) / 4
        rows.append(
            {
                "holders": num_holders,
                "replicated_bytes": whole,
                "sharded_bytes": sharded,
                "ratio": sharded / whole,
                "expected_ratio": expected,
            }
        )
    return rows


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
@click.option("--model", type=click.Choice(sorted(PRESETS)), default=MODEL, show_default=True)
def main(as_json: bool, model: str) -> None:
    """Measure and print."""
    rows = measure(model)
    lines = [
        [str(row["holders"])]
        + [f"{row[key] / 2**20:,.0f} MiB" for key in ("replicated_bytes", "sharded_bytes")]
        + [f"{row[key]:.3f}" for key in ("ratio", "expected_ratio")]
        for row in rows
    ]
    header = ["holders", "all moments", "a share each", "ratio", "(2 + 2/D) / 4"]
    text = "\n".join([f"State of a rank that holds all of {model}", "", table(header, lines)])
    finish({"model": model, "rows": rows}, text, as_json=as_json, has_failures=False)


if __name__ == "__main__":
    main()
