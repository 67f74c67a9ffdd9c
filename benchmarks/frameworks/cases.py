"""The rows and the columns: frameworks with their commands, and faults with their options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "framework_scripts"
FAULT_STEP = 35
# Torch 2.13: without it a later attempt can find an earlier one's addresses in torchrun's store, and wait for them.
# It names no launcher whose ranks could be counted: two replicas of one rank each.
TWO_GROUPS = ("--data-parallel", "2", "--gpus-per-node", "1")
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True, slots=True)
class Framework:
    """A row. `command` makes the job's command of its checkpoints' folder; `victim` is the target of its faults.

    `options` are what else `chaos run` has to be told of the job.
    """

    name: str
    title: str
    libraries: tuple[str, ...]
    command: Callable[[Path], list[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    victim: str = "rank=1"
    options: tuple[str, ...] = ()

    def versions(self) -> dict[str, str | None]:
        """By distribution; None is not installed."""
        return {library: _version_of(library) for library in self.libraries}


@dataclass(frozen=True, slots=True)
class Fault:
    """A column: the fault's kind and options, and how often it is measured (`num_rounds`)."""

    name: str
    kind: str
    options: tuple[str, ...] = ()
    num_rounds: int = 1
    at: str = f"step={FAULT_STEP}"


_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def _torchrun(script: str) -> Callable[[Path], list[str]]:
    return lambda folder: [*_TORCHRUN, "--max-restarts", "1", str(SCRIPTS / script), str(folder)]


def _torchft(*options: str) -> Callable[[Path], list[str]]:
    """Two replica groups of one rank, each under its own torchrun."""
    return lambda folder: ["bash", str(SCRIPTS / "torchft.sh"), str(folder), *options]


def _torchtitan(folder: Path) -> list[str]:
    """Its own trainer with its smallest model: there is no script to write, and no other place for checkpoints."""
    options = ["--model.name", "llama3", "--model.flavor", "debugmodel", "--training.steps", "60"]
    return [*_TORCHRUN, "-m", "torchtitan.train", *options, "--job.dump_folder", str(folder)]


def _version_of(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


FRAMEWORKS = (
    Framework("ddp", "DistributedDataParallel", ("torch",), _torchrun("train_ddp.py"), OWN_STORE),
    Framework("nanogpt", "nanoGPT's loop", ("torch",), _torchrun("train_nanogpt.py"), OWN_STORE),
    Framework(
        "trainer",
        "Hugging Face Trainer",
        ("transformers", "accelerate"),
        _torchrun("train_trainer.py"),
        OWN_STORE,
    ),
    Framework("accelerate", "Accelerate", ("accelerate",), _torchrun("train_accelerate.py"), OWN_STORE),
    Framework("lightning", "Lightning", ("lightning",), _torchrun("train_lightning.py"), OWN_STORE),
    Framework("fsdp", "FSDP2 with DCP", ("torch",), _torchrun("train_fsdp.py"), OWN_STORE),
    Framework("deepspeed", "DeepSpeed ZeRO-1", ("deepspeed",), _torchrun("train_deepspeed.py"), OWN_STORE),
    # Its Manager (0.2.0) needs the store of torchrun that the others are better off without.
    Framework("torchft", "torchft with its DistributedDataParallel", ("torchft",), _torchft(), options=TWO_GROUPS),
    Framework(
        "torchft-manager",
        "torchft with its Manager's allreduce",
        ("torchft",),
        _torchft("allreduce"),
        options=TWO_GROUPS,
    ),
    Framework("torchtitan", "torchtitan", ("torchtitan",), _torchtitan, OWN_STORE),
)

FAULTS = (
    Fault("kill-process", "kill-process", num_rounds=3),
    Fault("raise", "raise"),
    Fault("set-nan", "set-nan"),
    # After the step, so that nothing but the framework itself can write the parameter again before it is read; by so
    # little that no loss shows it.
    Fault(
        "scale-parameter",
        "scale",
        ("-p", "where=parameters", "-p", "elements=1", "-p", "factor=1.001"),
        at=f"step={FAULT_STEP},phase=commit",
    ),
    Fault("pause-process", "pause-process", ("--for", "20s")),
    Fault("slow-rank", "slow-rank", ("-p", "factor=3")),
)
