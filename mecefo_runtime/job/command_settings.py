"""The settings of a job that is a training script of the user, started by a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mecefo_runtime.job.config import MAX_STEPS, NODES_PER_RACK_TEXT, num_setting
from mecefo_runtime.job.setting import REQUIRED, Option, setting


@dataclass(frozen=True, slots=True)
class CommandCheckpoint:
    """Where a script saves its checkpoints."""

    folder: str = setting(
        REQUIRED,
        "folder, relative to the working directory of the command",
        option=Option("--checkpoint-folder", "DIRECTORY"),
    )


@dataclass(frozen=True, slots=True)
class HangRule:
    """When a monitor of the user's own takes the job for hung: no line of its log matches in that time."""

    pattern: str = setting(REQUIRED, "regular expression that a line matches while the job is at work")
    seconds: float = setting(REQUIRED, "time without such a line after which the rule fires", unit="seconds")


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """The settings of such a job, as `JobSettings` has those of the built-in one.

    A setting with the option of one of those shares it; the defaults are in the texts.
    """

    command: tuple[str, ...] = setting(
        REQUIRED, "command that starts the training: one text, as in a shell, or a list of words"
    )
    nodes: int | None = num_setting(
        None, "number of nodes; default: from torchrun's options, else 1", Option("--nodes")
    )
    gpus_per_node: int | None = num_setting(
        None, "ranks per node; default: from torchrun's options, else 1", Option("--gpus-per-node")
    )
    data_parallel: int | None = num_setting(
        None,
        "number of model replicas, for the target `replica=0`; default: every rank is one",
        Option("--data-parallel", "D"),
    )
    steps: int | None = setting(
        None,
        "number of optimizer steps, to refuse later triggers before the start; default: not known",
        at_least=1,
        at_most=MAX_STEPS,
        option=Option("--steps"),
    )
    nodes_per_rack: int | None = num_setting(None, NODES_PER_RACK_TEXT, Option("--nodes-per-rack"))
    step_from: str | None = setting(
        None,
        "regular expression that finds the step in the log, for jobs without a PyTorch optimizer",
        option=Option(
            "--step-from",
            "REGEX",
            help="Find the step in the log, for jobs without a torch optimizer: 'step (?P<step>[0-9]+)'.",
        ),
    )
    hang_rule: HangRule | None = setting(
        None,
        "your own rule for a hang, `10min:PATTERN`: would it have fired, and when; default: none",
        option=Option(
            "--hang-rule",
            "TIME:REGEX",
            help="Say when your own rule 'no line matches REGEX for TIME' would have fired: '10min:step [0-9]+'.",
        ),
    )
    folder: str | None = setting(None, "working directory of the command; default: the current one")
    checkpoint: CommandCheckpoint | None = setting(
        None, "folder of the script's checkpoints; default: observed while it saves"
    )
    reset: str | None = setting(
        None,
        "shell command to run before each start, also of the baseline and of repeats: `rm -rf checkpoints`",
        option=Option("--reset", "SHELL", help="Shell command to run before each start of the job: 'rm -rf out'."),
    )
    environment: Mapping[str, str] = setting({}, "environment variables to add")
    startup_timeout_seconds: float = setting(
        600.0, "maximum time to the first step", key="startup_timeout", unit="seconds"
    )
    stall_timeout_seconds: float = setting(
        600.0,
        "maximum time without a step after that",
        key="stall_timeout",
        unit="seconds",
        option=Option(
            "--stall-timeout",
            "DURATION",
            help="Give the job up after this long without a step. Default: 10min.",
        ),
    )
