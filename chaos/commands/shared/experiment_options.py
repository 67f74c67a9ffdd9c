"""The options that describe an experiment, and what stands behind `--`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import click

from chaos.errors import UsageError


class _Number(click.ParamType[Any]):
    """A number; what is none is refused when the whole experiment is judged, with all else that is wrong."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or else the text."""
        try:
            return self._read(value)
        except ValueError:
            return value


NUMBER = _Number("integer", int)
REAL = _Number("float", float)


class Word(click.Choice[str]):
    """One of some words; another one is refused when the whole experiment is judged, with all else that is wrong."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word."""
        return value


class CommandOfAJob(click.Command):
    """A subcommand that hands on what stands behind `--`: the command of an external job, as `command`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Everything up to `--` is ours."""
        own = args.index("--") if "--" in args else len(args)
        job_command = args[own + 1 :]
        if own < len(args) and not job_command:
            raise click.UsageError("there is no command behind --", ctx)
        try:
            rest = super().parse_args(ctx, list(args[:own]))
        except click.UsageError as error:
            if hint := _hint(error, args[:own]):
                raise click.UsageError(f"{error.format_message().rstrip('.')}: {hint}", ctx) from error
            raise
        _, _, order = self.make_parser(ctx).parse_args(list(args[:own]))
        for option in ("at", "on"):
            if sum(param.name == option for param in order) > 1:
                raise UsageError("is there twice: it is of one fault, and several stand in a file", key=f"--{option}")
        ctx.params["command"] = tuple(job_command)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """With the command at the end."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def _hint(error: click.UsageError, words: Sequence[str]) -> str | None:
    """What was probably meant by a command line that cannot be parsed, and how that is written."""
    from chaos.experiment.reading import installed_faults

    kinds = installed_faults()
    joined = next((f"{one}-{two}" for one, two in pairwise(words) if f"{one}-{two}" in kinds), None)
    if joined is not None:
        return f"did you mean {joined!r}?"
    if isinstance(error, click.NoSuchOption):
        key = error.option_name.lstrip("-").replace("-", "_")
        kind = next((word for word in words if word in kinds), None)
        if kind is not None and key in kinds[kind].Parameters.model_fields:
            return f"it is a parameter of {kind}, write -p {key}=VALUE"
    program = next((word for word in words[1:] if word.endswith(".py") or _is_program(word)), None)
    return None if program is None else f"a command of your own stands behind --, as in `-- {program} ...`"


def _is_program(word: str) -> bool:
    return not word.startswith("-") and os.sep not in word and shutil.which(word) is not None


def experiment_options(command: Any) -> Any:
    """The options that describe an experiment, shared by `run` and `plan`."""
    options = [
        click.argument("subject", metavar="FAULT|FILE.yaml", required=False),
        click.option("--at", "at", metavar="WHEN", help="When: step=N[,phase=P], phase=regroup or time=10s."),
        click.option(
            "--on",
            "on",
            metavar="TARGET",
            help="On whom: rank=3, node=1+2, rack=0, stage=2, replica=0, link=2-5, role=coordinator, random[:K]. "
            "Default: the seed draws.",
        ),
        click.option("--for", "for", metavar="DURATION", help="How long: 30s or 10steps. Default: the fault's own."),
        click.option(
            "--repair", metavar="AFTER", help="Start the target again after 40steps, 10s, or none. Default: 40steps."
        ),
        click.option("--every", metavar="PERIOD", help="Again and again: every 50steps or 10s, first at --at."),
        click.option("--rate", metavar="RATE", help="At random, from the seed: 0.5/min or 2/100steps in the mean."),
        click.option("--count", type=NUMBER, metavar="K", help="With --every or --rate: at most so many times."),
        click.option(
            "--within", metavar="DURATION", help="With --every or --rate: only in the first 5min or 300steps."
        ),
        click.option(
            "--retrigger",
            metavar="once|every-attempt|K",
            help="At which attempts of the job's launcher it fires. Default: once.",
        ),
        click.option(
            "--profile",
            metavar="NAME[:K]",
            help="Faults as a real cluster has them, K in all: llama3, failslow. FAULT may be left out then.",
        ),
        click.option(
            "-p",
            "--param",
            "parameters",
            multiple=True,
            metavar="KEY=VALUE",
            help="A parameter of the fault's own, e.g. delay=50ms. Repeatable.",
        ),
        click.option("--nodes", type=NUMBER, help="Nodes. Default: 4."),
        click.option("--spares", type=NUMBER, metavar="K", help="Nodes more, which take the place of lost ones."),
        click.option(
            "--redundancy", type=NUMBER, metavar="R", help="With spare: how many replicas hold each shard of a step."
        ),
        click.option("--nodes-per-rack", type=NUMBER, help="Nodes that `--on rack=0` strikes together."),
        click.option("--gpus-per-node", type=NUMBER, help="Ranks per node. Default: 2."),
        click.option("--data-parallel", type=NUMBER, metavar="D", help="Replicas of the model."),
        click.option("--pipeline", type=NUMBER, metavar="P", help="Pipeline stages of a replica."),
        click.option(
            "--microbatches-per-replica", type=NUMBER, metavar="M", help="Microbatches of a step. Default: 3."
        ),
        click.option("--model", help="Model preset. Default: llama-tiny."),
        click.option(
            "--data",
            type=click.Path(),
            help="Text file or folder to train on. Default: the Python standard library's sources.",
        ),
        click.option("--steps", type=NUMBER, help="Training steps. Default: 560."),
        click.option(
            "--strategy",
            help="Who takes over lost layers, and how: mecefo, mecefo-paper, ndb, exact, oobleck-like, checkpoint, "
            "reft. Default: mecefo.",
        ),
        click.option(
            "--quality",
            metavar="auto|speed|exact|X",
            help="With mecefo: approximate what brings the job to its loss sooner, what keeps its pace, nothing, or at "
            "most this share of the samples. Default: auto.",
        ),
        click.option(
            "--checkpoint-every", type=NUMBER, metavar="STEPS", help="Write a checkpoint so often. Default: none."
        ),
        click.option(
            "--checkpoint-folder", metavar="DIRECTORY", help="Where checkpoints go. Default: into the run's folder."
        ),
        click.option(
            "--snapshot-every",
            metavar="STEPS|auto",
            help="Copy the state to the nodes' memory so often, or as often as costs least. Default: never.",
        ),
        click.option(
            "--snapshot-protection",
            metavar="none|copy|xor|pq",
            help="What snapshots survive: the ranks alone, or any one node of a group, or any two. Default: xor.",
        ),
        click.option(
            "--step-from",
            metavar="REGEX",
            help="Of a command without a torch optimizer: its steps in the log, e.g. 'step (?P<step>[0-9]+)'.",
        ),
        click.option(
            "--reset",
            metavar="COMMAND",
            help="Of a command of your own: what puts it back to its beginning, before each start: 'rm -rf out'.",
        ),
        click.option("--seed", type=NUMBER, help="Seed of everything random. Default: 0."),
        click.option(
            "--dilation",
            metavar="auto|off|X",
            help="Time dilation: each rank computes X times slower than this CPU. Default: auto.",
        ),
        click.option(
            "--pacing",
            metavar="rated|measured|off",
            help="Dilated compute lasts its rated time, measured at the start, or X times its own; off: no dilation. "
            "Default: rated.",
        ),
        click.option(
            "--device-model",
            metavar="FILE|NAME",
            help="Emulate a device: a table gives the times, a small model does the arithmetic. a100-7b, a100-1b, "
            "a100-350m, or a file by `chaos calibrate`.",
        ),
        click.option(
            "--time-scale",
            metavar="auto|X",
            help="With a device model: seconds that a second of the device lasts. Default: auto, what the cores carry.",
        ),
        click.option(
            "--link",
            metavar="bandwidth=B,latency=T",
            help="What moves between ranks takes as long as on such a link, e.g. bandwidth=25GB/s,latency=20us.",
        ),
        click.option(
            "--gate",
            "gates",
            multiple=True,
            metavar="EXPRESSION",
            help='What must hold, e.g. "throughput_drop <= 40%". Repeatable.',
        ),
        click.option(
            "--abort-unless",
            multiple=True,
            metavar="EXPRESSION",
            help="A gate that ends the run as soon as it is certain to fail. Repeatable.",
        ),
        click.option("--abort-on-fail", is_flag=True, default=None, help="The same of every gate."),
        click.option(
            "--twin/--no-twin",
            default=None,
            help="Also run the same job without faults, to compare. Default: on, but off for a command of your own.",
        ),
        click.option(
            "--backend",
            type=Word(["local", "docker"]),
            help="What nodes are: process groups of this machine, or containers. Default: local.",
        ),
        click.option(
            "--image", metavar="IMAGE", help="With docker: what a node's container is. Default: mecefo-chaos."
        ),
        click.option("--node-cpus", type=REAL, metavar="CORES", help="With docker: a node's share of the cores."),
        click.option("--node-memory", metavar="BYTES", help="With docker: a node's memory, such as 2GiB."),
        click.option(
            "--network",
            type=Word(["auto", "namespaces", "loopback"]),
            help="What connects ranks on this machine. Default: auto, namespaces where a fault needs links.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command
