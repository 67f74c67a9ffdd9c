"""The options that describe an experiment, and the command after `--`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import click
from click.shell_completion import CompletionItem

from chaos.experiment.fault_options import AND, MORE_FAULTS
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.grouped import option
from mecefo_chaos.cli.shared.hints import Answered
from mecefo_chaos.cli.shared.several_faults import EXAMPLE, CommandOfFaults


class _Number(click.ParamType[Any]):
    """A number; anything else is refused with all other errors, when the whole experiment is judged."""

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


class CommandOfAJob(CommandOfFaults):
    """A subcommand that hands on what stands behind `--`: the command of an external job, as `command`."""

    takes_command: ClassVar[bool] = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at `--`: what is before it is ours."""
        own = args.index("--") if "--" in args else len(args)
        job_command = args[own + 1 :]
        if own < len(args):
            ctx.meta[completing.BEHIND] = True
        if own < len(args) and not job_command and not ctx.resilient_parsing:
            raise Answered(
                "there is no command after --: write the one that starts your training, as in `-- torchrun train.py`",
                ctx,
            )
        rest = super().parse_args(ctx, list(args[:own]))
        ctx.params["command"] = tuple(job_command)
        return rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Files, of a command behind `--`."""
        if ctx.meta.get(completing.BEHIND):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """With the command at the end."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


# The headings of help. What is not in one of these is of the built-in job alone.
FAULT = "Fault (also with -- COMMAND)"
CRITERIA = "Pass criteria (also with -- COMMAND)"
ANY_JOB = "Job (also with -- COMMAND)"
OWN_JOB = "Your own job (only with -- COMMAND)"
BUILT_IN_JOB = "Built-in job (not with -- COMMAND)"
NODES = "Nodes and network (also with -- COMMAND)"


def experiment_options(command: Any) -> Any:
    """The options that describe an experiment, shared by the commands that take one."""
    options = [
        click.argument("subject", metavar="[FAULT|FILE.yaml]", required=False, shell_complete=completing.KINDS),
        option(
            FAULT,
            "--at",
            "at",
            metavar="WHEN",
            shell_complete=completing.TRIGGERS,
            help="Trigger: step=N[,phase=P], phase=regroup, or time=10s.",
        ),
        option(
            FAULT,
            "--on",
            "on",
            shell_complete=completing.TARGETS,
            metavar="TARGET",
            help="Target: rank=3, node=1+2, rack=0, stage=2, replica=0, link=2-5, role=coordinator, random[:K]. "
            "Default: drawn by the seed.",
        ),
        option(FAULT, "--for", "for", metavar="DURATION", help="Duration: 30s or 10steps. Default: that of the fault."),
        option(
            FAULT,
            "--repair",
            shell_complete=completing.words("none", "40steps"),
            metavar="AFTER",
            help="Restart the affected ranks after 40steps, 10s, or none. Built-in job only. Default: 40steps.",
        ),
        option(FAULT, "--every", metavar="INTERVAL", help="Repeat the fault every 50steps or 10s, first at --at."),
        option(
            FAULT, "--rate", metavar="RATE", help="Repeat the fault at random times: 0.5/min or 2/100steps on average."
        ),
        option(FAULT, "--count", type=NUMBER, metavar="K", help="With --every or --rate: maximum number of incidents."),
        option(
            FAULT, "--within", metavar="DURATION", help="With --every or --rate: only in the first 5min or 300steps."
        ),
        option(
            FAULT,
            "--retrigger",
            shell_complete=completing.words("once", "every-attempt"),
            metavar="once|every-attempt|K",
            help="Attempts of the job's launcher at which the fault fires. Default: once.",
        ),
        option(
            FAULT,
            "-p",
            "--param",
            "parameters",
            shell_complete=completing.PARAMETERS,
            multiple=True,
            metavar="KEY=VALUE",
            help="Parameter of this kind of fault, e.g. delay=50ms. Repeatable.",
        ),
        option(
            FAULT,
            AND,
            MORE_FAULTS,
            shell_complete=completing.ONLY_KINDS,
            multiple=True,
            metavar="FAULT",
            help=f"Begin another fault; the options above are of the fault that they follow: {EXAMPLE}. Repeatable.",
        ),
        option(
            FAULT,
            "--profile",
            shell_complete=completing.PROFILES,
            metavar="NAME[:K]",
            help="K faults in the proportions of a real cluster: llama3, failslow. Needs no FAULT.",
        ),
        option(
            CRITERIA,
            "--gate",
            "gates",
            shell_complete=completing.METRICS,
            multiple=True,
            metavar="EXPRESSION",
            help="Pass criterion, in quotes: 'recovery_seconds < 60'. Repeatable. `chaos gates` lists metrics.",
        ),
        option(
            CRITERIA,
            "--abort-unless",
            shell_complete=completing.METRICS,
            multiple=True,
            metavar="EXPRESSION",
            help="Gate that ends the run as soon as it is certain to fail. Repeatable.",
        ),
        option(CRITERIA, "--abort-on-fail", is_flag=True, default=None, help="Make every gate one of these."),
        option(
            CRITERIA,
            "--baseline-run/--no-baseline-run",
            "--twin/--no-twin",
            "twin",
            default=None,
            help="Also run the same job without faults and compare with it. Default: on, off with -- COMMAND.",
        ),
        option(ANY_JOB, "--nodes", type=NUMBER, help="Number of nodes. Default: 4; of a COMMAND: from its options."),
        option(
            ANY_JOB, "--gpus-per-node", type=NUMBER, help="Ranks per node. Default: 2; of a COMMAND: from its options."
        ),
        option(ANY_JOB, "--nodes-per-rack", type=NUMBER, help="Nodes per rack, for `--on rack=0`."),
        option(ANY_JOB, "--data-parallel", type=NUMBER, metavar="D", help="Number of model replicas."),
        option(
            ANY_JOB, "--steps", type=NUMBER, help="Number of training steps. Default: 560; of a COMMAND: not known."
        ),
        option(
            ANY_JOB,
            "--checkpoint-folder",
            metavar="DIRECTORY",
            help="Folder of the checkpoints. Default: inside the run's folder; of a COMMAND: observed.",
        ),
        option(ANY_JOB, "--seed", type=NUMBER, help="Seed of everything random. Default: 0."),
        option(ANY_JOB, "--name", metavar="NAME", help="Name of the experiment and of the folder of its runs."),
        option(
            OWN_JOB,
            "--step-from",
            metavar="REGEX",
            help="Find the step in the log, for jobs without a torch optimizer: 'step (?P<step>[0-9]+)'.",
        ),
        option(
            OWN_JOB,
            "--reset",
            metavar="SHELL",
            help="Shell command to run before each start of the job: 'rm -rf out'.",
        ),
        option(
            OWN_JOB,
            "--stall-timeout",
            metavar="DURATION",
            help="Give the job up after this long without a step. Default: 10min.",
        ),
        option(BUILT_IN_JOB, "--model", shell_complete=completing.MODELS, help="Model preset. Default: llama-tiny."),
        option(
            BUILT_IN_JOB,
            "--data",
            type=click.Path(),
            help="Text file or folder to train on. Default: the Python standard library's sources.",
        ),
        option(
            BUILT_IN_JOB,
            "--strategy",
            shell_complete=completing.STRATEGIES,
            help="Recovery strategy: mecefo, mecefo-paper, ndb, exact, oobleck-like, spare, mecefo+spare, checkpoint, "
            "reft. Default: mecefo.",
        ),
        option(
            BUILT_IN_JOB,
            "--quality",
            shell_complete=completing.words("auto", "speed", "exact"),
            metavar="auto|speed|exact|X",
            help="With mecefo: approximate for the earliest final loss (auto), for full speed, not at all, or at most "
            "this share of samples. Default: auto.",
        ),
        option(BUILT_IN_JOB, "--pipeline", type=NUMBER, metavar="P", help="Pipeline stages per replica."),
        option(
            BUILT_IN_JOB,
            "--microbatches-per-replica",
            type=NUMBER,
            metavar="M",
            help="Microbatches per step. Default: 3.",
        ),
        option(BUILT_IN_JOB, "--spares", type=NUMBER, metavar="K", help="Spare nodes, which replace lost ones."),
        option(
            BUILT_IN_JOB,
            "--redundancy",
            type=NUMBER,
            metavar="R",
            help="With spare: number of replicas that hold each shard of a step.",
        ),
        option(
            BUILT_IN_JOB,
            "--checkpoint-every",
            type=NUMBER,
            metavar="STEPS",
            help="Interval between checkpoints. Default: no checkpoints.",
        ),
        option(
            BUILT_IN_JOB,
            "--snapshot-every",
            shell_complete=completing.words("auto"),
            metavar="STEPS|auto",
            help="Interval between snapshots in the nodes' memory; auto: the cheapest. Default: no snapshots.",
        ),
        option(
            BUILT_IN_JOB,
            "--snapshot-protection",
            shell_complete=completing.words("none", "copy", "xor", "pq"),
            metavar="none|copy|xor|pq",
            help="What snapshots survive: a lost rank (none), any one node of a group (copy, xor), any two (pq). "
            "Default: xor.",
        ),
        option(
            BUILT_IN_JOB,
            "--dilation",
            shell_complete=completing.words("auto", "off"),
            metavar="auto|off|X",
            help="Time dilation: each rank computes X times slower than this CPU. Default: auto.",
        ),
        option(
            BUILT_IN_JOB,
            "--pacing",
            shell_complete=completing.words("rated", "measured", "off"),
            metavar="rated|measured|off",
            help="Duration of dilated compute: a rated time, measured at the start (rated), or X times the CPU time "
            "used (measured); off: no dilation. Default: rated.",
        ),
        option(
            BUILT_IN_JOB,
            "--device-model",
            shell_complete=completing.DEVICES,
            metavar="FILE|NAME",
            help="Emulate a device: a table gives the times, a small model does the arithmetic. a100-7b, a100-1b, "
            "a100-350m, or a file by `chaos calibrate`.",
        ),
        option(
            BUILT_IN_JOB,
            "--time-scale",
            metavar="auto|X",
            help="With a device model: real seconds per emulated second. Default: auto, the smallest that the cores "
            "can sustain.",
        ),
        option(
            BUILT_IN_JOB,
            "--link",
            metavar="bandwidth=B,latency=T",
            help="Emulate this link between ranks, e.g. bandwidth=25GB/s,latency=20us.",
        ),
        option(
            NODES,
            "--backend",
            type=Word(["local", "docker"]),
            help="What a node is: a process group on this machine (local), or a container. Default: local.",
        ),
        option(NODES, "--image", metavar="IMAGE", help="With docker: image of the containers. Default: mecefo-chaos."),
        option(NODES, "--node-cpus", type=REAL, metavar="CORES", help="With docker: CPU limit of each node."),
        option(NODES, "--node-memory", metavar="BYTES", help="With docker: memory limit of each node, such as 2GiB."),
        option(
            NODES,
            "--network",
            type=Word(["auto", "namespaces", "loopback"]),
            help="Network between ranks on this machine. Default: auto, namespaces where a fault needs links.",
        ),
    ]
    for decorate in reversed(options):
        command = decorate(command)
    return command
