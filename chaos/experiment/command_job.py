"""A job that is the user's own training script: a command that starts PyTorch ranks, unchanged."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from chaos.errors import UsageError, setting, shown
from chaos.experiment.fields import require_few_ranks
from chaos.experiment.programs import require_program
from chaos.experiment.settings import SettingsText, config_values, model_of, with_texts
from chaos.language.launcher import launcher_of_command, ranks_of_command, script_of_command
from chaos.language.validation_errors import said
from mecefo_runtime.job.command_settings import CommandCheckpoint, CommandSettings, HangRule
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.job.traits import OF_COMMAND, JobTraits
from mecefo_runtime.system.dilation import NO_DILATION
from mecefo_runtime.system.job_records import JobStarted


def _argument(text: object) -> str:
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"{shown(text)} cannot be part of a command")
    return text


def _pattern(text: object) -> str:
    text = _argument(text)
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"{shown(text)} is no regular expression: {error}") from None
    return text


def words_of_command(value: object) -> list[object]:
    """The words of a command that is written as one text, split as a POSIX shell does; of a list, its items.

    Raises:
        UsageError: it is neither, has no word, or a quotation is not closed.
    """
    if isinstance(value, list | tuple):
        words = list(value)
    elif isinstance(value, str):
        try:
            words = [*shlex.split(value)]
        except ValueError as error:
            raise UsageError(f"{shown(value)} cannot be split into words: {str(error).lower()}") from None
    else:
        raise UsageError(f"must be text, as in a shell, or a list of words, not {shown(value)}")
    if not words:
        raise UsageError("names no program: write a command such as 'torchrun train.py'")
    return words


_MAX_WORDS, _MAX_WORD = 10_000, 100_000
_COMMAND_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1, "examples": ["torchrun --standalone --nproc-per-node 2 train.py"]},
        {
            "type": "array",
            "items": {"type": "string", "maxLength": _MAX_WORD},
            "minItems": 1,
            "maxItems": _MAX_WORDS,
        },
    ]
}
Argument = Annotated[str, Field(max_length=_MAX_WORD), AfterValidator(said(_argument))]


PHASES_OF_A_COMMAND = ("data", "forward", "backward", "optimizer", "commit", "checkpoint")
"""The phases of a step that can be seen in a script that was not changed: its reductions cannot."""


class _OwnScript(SettingsText, frozen=True):
    runtime: Literal["command"] = Field(description="your own training script, started by `command`")


if TYPE_CHECKING:
    # The fields that the models get of the settings, for type checkers.
    class _CommandSettings(_OwnScript, CommandSettings, frozen=True): ...

    class _SavedIn(SettingsText, CommandCheckpoint, frozen=True): ...

    class _HangRuleText(SettingsText, HangRule, frozen=True): ...

else:
    _CommandSettings, _SavedIn = model_of(CommandSettings, _OwnScript), model_of(CommandCheckpoint)
    _HangRuleText = model_of(HangRule)


class SavedIn(_SavedIn, frozen=True):
    """Where a script saves its checkpoints: its `folder`, from where the command runs."""


def _saved_in(said: object) -> object:
    return {"folder": said} if isinstance(said, str) else said


@with_texts(HangRule)
class HangRuleText(_HangRuleText, frozen=True):
    """The user's own rule for a hang: no line of the log matches `pattern` for `seconds`."""

    pattern: Annotated[str, Field(min_length=1, max_length=1_000), AfterValidator(said(_pattern))]


def _hang_rule(value: object) -> object:
    """`10min:PATTERN` in two parts.

    Raises:
        UsageError: it has no two parts.
    """
    if not isinstance(value, str):
        return value
    seconds, colon, pattern = value.partition(":")
    if not colon or not pattern or not seconds:
        raise UsageError(f"{shown(value)} is no rule: write TIME:REGEX, such as '10min:step [0-9]+'")
    return {"seconds": seconds, "pattern": pattern}


@with_texts(CommandSettings)
class CommandJob(_CommandSettings, frozen=True):
    """A command that starts the ranks, as a user writes it; of nodes and gpus_per_node what is not given is derived.

    `steps` are optimizer steps, where they are known; `data_parallel` is the number of replicas of as many ranks each,
    every rank where it is left out. The command is given up when it takes no step for `startup_timeout`, or none for
    `stall_timeout` after that. It runs in `folder`, by default where chaos does. `reset` is a shell command that puts
    it back to its beginning, before each start of it: `rm -rf checkpoints`.
    """

    traits: ClassVar[JobTraits] = OF_COMMAND
    # The phases at which a rank can be held, and the roles of processes beside the ranks.
    phases: ClassVar[tuple[str, ...]] = PHASES_OF_A_COMMAND
    roles: ClassVar[tuple[str, ...]] = ("launcher", "store")
    snapshots: ClassVar[None] = None

    # What a user writes in another way than the launcher of the command has it; all else is in the settings.
    command: Annotated[  # type: ignore[assignment]
        list[Argument],
        BeforeValidator(said(words_of_command)),
        WithJsonSchema(_COMMAND_SCHEMA),
        Field(max_length=_MAX_WORDS),
    ]
    step_from: Annotated[str, Field(max_length=1_000), AfterValidator(said(_pattern))] | None = None
    checkpoint: Annotated[SavedIn | None, BeforeValidator(_saved_in)] = None
    hang_rule: Annotated[HangRuleText | None, BeforeValidator(said(_hang_rule))] = None
    reset: Annotated[str, Field(max_length=10_000), AfterValidator(said(_argument))] | None = None
    environment: dict[str, Argument] = Field(default_factory=dict)

    def filled(self) -> CommandJob:
        """With the number of nodes and of ranks on each, as far as the command tells; else one.

        Raises:
            UsageError: there are too many ranks.
        """
        nodes, per_node = ranks_of_command(self.command, Path(self.folder) if self.folder else None)
        per_node = self.gpus_per_node or per_node or 1
        if self.nodes is None and self.data_parallel is not None and self.data_parallel > (nodes or 1) * per_node:
            # Replica groups, each under a separate launcher.
            nodes = self.data_parallel * (nodes or 1)
        nodes = self.nodes or nodes or 1
        given = [name for name in ("nodes", "gpus_per_node") if getattr(self, name) is not None]
        require_few_ranks(nodes, per_node, given, otherwise="command")
        if nodes * per_node % (self.data_parallel or 1):
            message = f"{nodes} nodes x {per_node} ranks are not {self.data_parallel} replicas of as many ranks each"
            raise UsageError(message, key="job.data_parallel")
        return self.model_copy(update={"nodes": nodes, "gpus_per_node": per_node})

    def advice_on_ranks(self) -> str | None:
        """What to add where a target names ranks that the job does not have."""
        shape = f"{setting('job.nodes')} and {setting('job.gpus_per_node')}"
        is_told = ranks_of_command(self.command, Path(self.folder or ".")) != (None, None)
        return f"{'if the command starts more than that' if is_told else 'the command does not tell'}: {shape} do"

    def violation_about_checkpoint_before(self, step: int | None) -> str | None:
        """None: when a script saves is not known."""
        return None

    def why_not_on_nodes(self) -> str | None:
        """Why the command cannot be started once on each of its nodes; None: it can."""
        nodes = self.filled().nodes or 1
        if nodes > 1 and "--standalone" in self.command:
            return f"torchrun --standalone is a job of one node: leave it out, for {nodes} nodes to find each other"
        return None

    def to_config(self, seed: int, dilation_ratio: float) -> CommandConfig:
        """The job as it is run; a command takes neither our seed nor a dilation.

        Raises:
            UsageError: there are too many ranks.
        """
        job = self.filled()
        assert job.nodes is not None and job.gpus_per_node is not None
        saved_in = None if job.checkpoint is None else _within(job.folder, job.checkpoint.folder)
        values = config_values(job, CommandSettings)
        timeouts = ("startup_timeout_seconds", "stall_timeout_seconds")
        written_otherwise = {
            "command": tuple(job.command),
            "checkpoint": None if saved_in is None else CommandCheckpoint(saved_in),
            "environment": dict(job.environment),
            "hang_rule": None if job.hang_rule is None else HangRule(**config_values(job.hang_rule, HangRule)),
            **{name: values[name] or math.inf for name in timeouts},
        }
        return CommandConfig(**values | written_otherwise)


def _within(folder: str | None, path: str) -> str:
    return str(Path(folder or ".", path).absolute())


@dataclass(frozen=True, slots=True)
class CommandConfig(CommandSettings):
    """A command to run, with its shape; `steps` None: not known beforehand. The path of `checkpoint` is a whole one."""

    traits: ClassVar[JobTraits] = OF_COMMAND
    # Its silence says nothing.
    heartbeat_timeout_seconds: ClassVar[float] = 0.0
    # What its ranks compute on, read and hold is not known.
    device: ClassVar[Literal["auto"]] = "auto"
    data: ClassVar[None] = None
    num_held_parameters: ClassVar[int] = 0

    nodes: int = 1
    gpus_per_node: int = 1

    def __str__(self) -> str:
        steps = "steps not known beforehand" if self.steps is None else f"{self.steps} steps"
        nodes = f"{self.nodes} {'node' if self.nodes == 1 else 'nodes'}"
        return f"{command_text(self.command)}: {nodes} x {self.gpus_per_node} ranks, {steps}"

    def start_record(self) -> JobStarted:
        """The event of its start; the sizes of its steps are not known then."""
        return JobStarted(
            num_ranks=self.cluster().num_ranks,
            nodes=self.nodes,
            steps=self.steps,
            tokens_per_step=None,
            samples_per_step=None,
            dilation_ratio=NO_DILATION,
            runtime="command",
            traits=self.traits.to_dict(),
            command=command_text(self.command),
            started_in=str(Path.cwd()),
            launcher=launcher_of_command(self.command, Path(self.folder) if self.folder else None),
        )

    def with_checkpoints_in(self, folder: Path) -> CommandConfig:
        """The same: a script chooses the folder itself."""
        return self

    def step_timeout_seconds(self, *, has_steps: bool) -> float:
        """How long it may take without a step, the first one or a later one."""
        return self.stall_timeout_seconds if has_steps else self.startup_timeout_seconds

    def cluster(self) -> Cluster:
        """Its ranks as targets see them: every rank is a replica, or as many in a row as `data_parallel` leaves."""
        num_ranks = self.nodes * self.gpus_per_node
        replicas = self.data_parallel or num_ranks
        ranks_each = num_ranks // replicas
        return _CommandCluster(self.nodes, self.gpus_per_node, replicas, ranks_each, ranks_each, replicas)


class _CommandCluster(Cluster):
    """Replicas are ranks in a row, as process groups of PyTorch number them."""

    def cell_of(self, rank: int) -> tuple[int, int]:
        """(replica, place within it)."""
        return divmod(rank, self.pipeline)


def check_command(job: CommandConfig, *, is_in_containers: bool = False) -> None:
    """Check that the command exists. Which programs containers have is not known here.

    Raises:
        UsageError: its folder or its program is not there, or the folder cannot be in a container.
    """
    folder = Path(job.folder or ".")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {shown(job.folder)}", key="job.folder")
    if is_in_containers:
        if folder.resolve() == Path("/"):
            message = "a container has its own root: start the command in a folder that can be mounted there"
            raise UsageError(message, key="job.folder")
        _check_script(job.command, folder, is_in_containers=True)
        return
    require_program(job.command[0], folder, job.environment)
    _check_script(job.command, folder, is_in_containers=False)


def _check_script(command: Sequence[str], folder: Path, *, is_in_containers: bool) -> None:
    script = script_of_command(command)
    # What lies elsewhere may be in the image.
    if script is None or (is_in_containers and Path(script).is_absolute()):
        return
    if not (folder / script).exists():
        message = f"there is no file {shown(script)} in the folder {shown(str(folder.absolute()))} for it to start"
        raise UsageError(message, key="job.command")


def command_text(command: Sequence[str]) -> str:
    """A command on one line, as short as a report needs it."""
    text = " ".join(" ".join(command).split())
    return text if len(text) <= 120 else f"{text[:117]}..."


NO_REPAIR = f"the job is a command, and only its own launcher restarts lost ranks: leave {setting('repair')} out"
