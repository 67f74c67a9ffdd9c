"""`chaos calibrate`: what a model's layers cost on this device, as a table that other machines can emulate."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaos.errors import EnvironmentFailure, UsageError, nearest
from chaos.user_files import write_output
from mecefo_chaos.cli.shared.options import JSON_OPTION, FileToWrite
from mecefo_chaos.cli.shared.output import print_as_is, print_json, print_text
from mecefo_runtime.system.json_values import to_json

if TYPE_CHECKING:
    from mecefo_runtime.prediction.device_model import DeviceModel


@click.command()
@click.option("--out", type=FileToWrite(), required=True, help="File to write the table to.")
@click.option("--model", default="llama-tiny", show_default=True, help="Model preset.")
@click.option(
    "--sequence-length", type=click.IntRange(1, 2**20), default=256, show_default=True, help="Tokens per sequence."
)
@click.option(
    "--microbatch-size", type=click.IntRange(1, 2**20), default=1, show_default=True, help="Sequences per microbatch."
)
@click.option(
    "--rank", type=click.IntRange(1, 2**16), default=16, show_default=True, help="Rank r of low-rank gradients."
)
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--link",
    metavar="bandwidth=B,latency=T",
    help="Link between such devices, e.g. bandwidth=25GB/s,latency=20us. Default: as measured between two ranks here.",
)
@click.option("--name", help="Name of the device model. Default: that of the file.")
@JSON_OPTION
def calibrate(
    out: Path,
    model: str,
    sequence_length: int,
    microbatch_size: int,
    rank: int,
    precision: str,
    device: str,
    link: str | None,
    name: str | None,
    as_json: bool,
) -> int:
    """Measure the layers of a model on this device, and write a table for `chaos run --device-model FILE`.

    On one CPU thread or a GPU: times of every kind of layer (medians of 15 rounds) and sizes. Memory for one layer, the
    embedding and the head is enough.
    """
    from chaos.experiment.device import LinkSpec
    from harness.live.working import Working
    from mecefo_runtime.job.config import PRESETS, ApproximationConfig, JobConfig
    from mecefo_runtime.system.devices import DeviceError, require_device

    if model not in PRESETS:
        message = f"there is no model {model!r}: there are {', '.join(PRESETS)}"
        raise UsageError(message, key="--model", suggestion=nearest(model, PRESETS))
    shape = PRESETS[model]
    if rank > shape.hidden_size:
        raise UsageError(f"more than the model's hidden size: choose 1 to {shape.hidden_size}", key="--rank")
    try:
        links = None if link is None else LinkSpec.parse(link).links()
    except UsageError as error:
        raise UsageError(error.message, key="--link", suggestion=error.suggestion) from None
    job = JobConfig(
        model=shape,
        nodes=1,
        gpus_per_node=1,
        data_parallel=1,
        pipeline=1,
        sequence_length=sequence_length,
        microbatch_size=microbatch_size,
        approximation=ApproximationConfig(rank=rank),
        precision="bf16" if precision == "bf16" else "fp32",
        device="cuda" if device == "cuda" else "cpu" if device == "cpu" else "auto",
    )
    try:
        require_device(job.device)
    except DeviceError as error:
        raise EnvironmentFailure(str(error)) from None
    with Working(f"measuring {model}") as progress:
        progress("import of torch")
        from mecefo_runtime.training.device_table import measure_device

        today = datetime.now(UTC).date().isoformat()
        table = measure_device(job, name=name or out.stem, model=model, links=links, date=today, progress=progress)
    try:
        write_output(out, table.to_text())
    except OSError as error:
        raise EnvironmentFailure(f"{out} cannot be written: {error.strerror}") from None
    if as_json:
        print_json(to_json(table))
    else:
        print_text(_told(table))
        print_as_is(f"chaos run kill-process --at step=30 --device-model {out}")
    return 0


def _told(table: DeviceModel) -> str:
    costs = table.costs
    milliseconds = {
        "a layer, both passes": costs.layer_seconds,
        "degraded": costs.degraded_seconds,
        "degraded with recomputation": costs.recomputed_seconds,
        "embedding": costs.embedding_seconds,
        "head and loss": costs.head_seconds,
        "optimizer, of a layer": costs.layer_update_seconds,
    }
    shape = f"{table.microbatch_size} x {table.sequence_length} tokens"
    lines = [f"{table.model} on {table.device}, microbatches of {shape}:"]
    lines += [f"  {what:<28} {1000 * seconds:10.3f} ms" for what, seconds in milliseconds.items()]
    lines.append(f"  {'state moves at':<28} {costs.transfer_bytes_per_second / 1e9:10.3f} GB/s")
    return "\n".join(lines)
