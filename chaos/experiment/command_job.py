"""The job of an experiment that is somebody else's: a command that starts PyTorch ranks, no line of it changed."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from chaos.errors import UsageError, shown
from chaos.experiment.fields import MAX_RANKS, Said, Text, WaitText, require_few_ranks
from chaos.spec.trigger import Duration
from chaos.spec.validation_errors import said
from mecefo_runtime.job.layout import Cluster

# How launchers name the number of nodes and of processes on each; Hugging Face's gives the number over all nodes.
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_ACCELERATE = ("accelerate", "accelerate.commands.launch")
_OPTION = re.compile(r"--([a-z][a-z_-]*)(?:=(.*))?", re.DOTALL)
# The launcher's own options end with the script.
_SCRIPT = re.compile(r".*\.py")
_PYTHON = re.compile(r"python[0-9.]*")
_PYTHON_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def _argument(text: object) -> str:
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"{shown(text)} cannot be part of a command")
    return text


Argument = Annotated[str, Field(max_length=100_000), AfterValidator(said(_argument))]


class CommandJob(Said):
    """A command that starts the ranks, as a user writes it; of nodes and gpus_per_node what is not given is derived.

    `steps` are optimizer steps, where they are known. The command is given up when it takes no step for
    `startup_timeout`, or none for `stall_timeout` after that. It runs in `folder`, by default where chaos does.
    """

    runtime: Literal["command"]
    command: list[Argument] = Field(min_length=1, max_length=10_000)
    nodes: int | None = Field(default=None, ge=1, le=MAX_RANKS)
    gpus_per_node: int | None = Field(default=None, ge=1, le=MAX_RANKS)
    steps: int | None = Field(default=None, ge=1, le=10**8)
    nodes_per_rack: int | None = Field(default=None, ge=1, le=MAX_RANKS)
    folder: Text | None = None
    environment: dict[str, Argument] = Field(default_factory=dict)
    startup_timeout: WaitText = Duration(seconds=600.0)
    stall_timeout: WaitText = Duration(seconds=600.0)

    def filled(self) -> CommandJob:
        """With the number of nodes and of ranks on each, as far as the command tells; else one.

        Raises:
            UsageError: there are too many ranks.
        """
        nodes, per_node = ranks_of_command(self.command)
        nodes, per_node = self.nodes or nodes or 1, self.gpus_per_node or per_node or 1
        given = [name for name in ("nodes", "gpus_per_node") if getattr(self, name) is not None]
        require_few_ranks(nodes, per_node, given, otherwise="command")
        return self.model_copy(update={"nodes": nodes, "gpus_per_node": per_node})

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
        return CommandConfig(
            command=tuple(job.command),
            nodes=job.nodes,
            gpus_per_node=job.gpus_per_node,
            steps=job.steps,
            folder=job.folder,
            environment=dict(job.environment),
            startup_timeout_seconds=job.startup_timeout.seconds or math.inf,
            stall_timeout_seconds=job.stall_timeout.seconds or math.inf,
        )


@dataclass(frozen=True, slots=True)
class CommandConfig:
    """A command to run and what is expected of it; `steps` None: nobody knows beforehand."""

    command: tuple[str, ...]
    nodes: int = 1
    gpus_per_node: int = 1
    steps: int | None = None
    folder: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    startup_timeout_seconds: float = 600.0
    stall_timeout_seconds: float = 600.0

    def __str__(self) -> str:
        steps = "steps not known beforehand" if self.steps is None else f"{self.steps} steps"
        return f"{command_text(self.command)}: {self.nodes} nodes x {self.gpus_per_node} ranks, {steps}"

    def cluster(self) -> Cluster:
        """Its ranks as targets see them: every rank is a replica of one stage."""
        num_ranks = self.nodes * self.gpus_per_node
        return Cluster(self.nodes, self.gpus_per_node, num_ranks, 1, num_layers=1, num_microbatches=num_ranks)


def check_command(job: CommandConfig, *, is_in_containers: bool = False) -> None:
    """See that there is something to start. Which programs containers have is not known here.

    Raises:
        UsageError: its folder or its program is not there, or the folder cannot be in a container.
    """
    folder = Path(job.folder or ".")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {shown(job.folder)}", key="job.folder")
    if is_in_containers:
        if folder.resolve() == Path("/"):
            message = "a container has a root of its own: start the command in a folder, which is mounted there"
            raise UsageError(message, key="job.folder")
        _check_script(job.command, folder, is_in_containers=True)
        return
    program = job.command[0]
    path = job.environment.get("PATH", os.environ.get("PATH"))
    # A path is looked up from the folder in which the command will run.
    where = str(folder / program) if os.sep in program else program
    if shutil.which(where, path=path) is None:
        raise UsageError(f"there is no program {shown(program)} that could be started", key="job.command")
    _check_script(job.command, folder, is_in_containers=False)


def _check_script(command: Sequence[str], folder: Path, *, is_in_containers: bool) -> None:
    script = script_of_command(command)
    # What lies elsewhere may be in the image.
    if script is None or (is_in_containers and Path(script).is_absolute()):
        return
    if not (folder / script).exists():
        message = f"there is no file {shown(script)} in the folder {shown(str(folder.absolute()))} for it to start"
        raise UsageError(message, key="job.command")


def script_of_command(command: Sequence[str]) -> str | None:
    """The script that python, torchrun or accelerate is told to start; None: it starts a module, or nobody can tell."""
    words = list(command)
    while words:
        program = Path(words.pop(0)).name
        is_python = _PYTHON.fullmatch(program) is not None
        if not is_python and program not in (*_TORCHRUN, *_ACCELERATE):
            return None
        if program == "accelerate" and words[:1] == ["launch"]:
            words.pop(0)
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option in ("-m", "--module") and is_python:
                break
            if option in ("-c", "-m", "--module", "--no-python", "--no_python", "-"):
                return None
            if is_python and option in _PYTHON_OPTIONS_WITH_VALUE:
                del words[:1]
        else:
            if is_python:
                return words[0] if words else None
            # Options of launchers have values, or none: the script is what ends like one.
            following = iter(words)
            for word in following:
                if word in ("-m", "--module", "--no-python", "--no_python"):
                    return None
                if _SCRIPT.fullmatch(word) and not word.startswith("-"):
                    return word
            return None
        # A module that is started: a launcher is one, too.
    return None


def command_text(command: Sequence[str]) -> str:
    """A command on one line, as short as a report needs it."""
    text = " ".join(" ".join(command).split())
    return text if len(text) <= 120 else f"{text[:117]}..."


def ranks_of_command(command: Sequence[str]) -> tuple[int | None, int | None]:
    """(nodes, ranks on each) as the options of torchrun or accelerate tell them in numbers; None: they do not."""
    launcher = [index for index, word in enumerate(command) if Path(word).name in (*_TORCHRUN, *_ACCELERATE)]
    if not launcher:
        return None, None
    options: dict[str, str] = {}
    words = list(command[launcher[0] + 1 :])
    for index, word in enumerate(words):
        if word in ("-m", "--module") or _SCRIPT.fullmatch(word):
            break
        if match := _OPTION.fullmatch(word):
            following = words[index + 1] if index + 1 < len(words) else ""
            options[match[1].replace("_", "-")] = following if match[2] is None else match[2]
    if Path(command[launcher[0]]).name in _ACCELERATE:
        nodes, total = _number(options.get("num-machines")), _number(options.get("num-processes"))
        return nodes, None if total is None else max(1, total // (nodes or 1))
    return _number(options.get("nnodes")), _number(options.get("nproc-per-node"))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[1-9][0-9]{0,3}", text) else None


# What is said of the main job alone, and why a command's job has none of it.
_NOT_OF_A_COMMAND: Mapping[str, str] = {
    "twin": "it is not run a second time: leave twin out",
    "repair": "its own launcher starts lost ranks again, or nobody does: leave repair out",
}
PHASES_OF_A_COMMAND = ("data", "forward", "backward", "optimizer", "commit", "checkpoint")
"""The phases of a step that can be seen in a script that was not changed: its reductions cannot."""


def refusal(what: str) -> str:
    """Why a command's job cannot have `what`."""
    return f"the job is a command: {_NOT_OF_A_COMMAND[what]}"
