"""By which option the command line says what a file says by a key, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping

from chaos.experiment.experiment import Experiment
from chaos.experiment.fault_spec import FAULT_KEYS
from chaos.language.yaml_lines import KeyPath

_OF_THE_JOB = (
    "data",
    "data_parallel",
    "device_model",
    "dilation",
    "gpus_per_node",
    "link",
    "microbatches_per_replica",
    "model",
    "nodes",
    "nodes_per_rack",
    "pacing",
    "pipeline",
    "quality",
    "redundancy",
    "reset",
    "spares",
    "stall_timeout",
    "step_from",
    "steps",
    "strategy",
    "time_scale",
)
_OF_THE_EXPERIMENT = ("backend", "name", "network", "profile", "seed")
CHECKPOINT_OPTIONS = {"checkpoint_every": "every_steps", "checkpoint_folder": "folder"}
SNAPSHOT_OPTIONS = {"snapshot_every": "every", "snapshot_protection": "protection"}
CONTAINER_OPTIONS = {"image": "image", "node_cpus": "cpus", "node_memory": "memory"}


def option_name(option: str) -> str:
    """The option of that name as it is written."""
    return "--param" if option == "parameters" else f"--{option.replace('_', '-')}"


def is_of_a_fault(option: str) -> bool:
    """Whether the option of that name says something of one fault, and not of the experiment."""
    return option in FAULT_KEYS or option == "parameters"


def place_of(option: str, fault: int = 0) -> KeyPath:
    """Where a file says what the option of that name says: one about a fault, of fault number `fault`."""
    if is_of_a_fault(option):
        return ("faults", fault, option)
    for part, options in _PARTS.items():
        if option in options:
            return (*part, options[option])
    return (option,) if option in Experiment.model_fields else ("job", option)


_PARTS: Mapping[KeyPath, Mapping[str, str]] = {
    ("job", "checkpoint"): CHECKPOINT_OPTIONS,
    ("job", "snapshots"): SNAPSHOT_OPTIONS,
    ("containers",): CONTAINER_OPTIONS,
}
TERMS: Mapping[str, str] = {
    **{f"job.{key}": option_name(key) for key in _OF_THE_JOB},
    **{key: option_name(key) for key in (*_OF_THE_EXPERIMENT, *FAULT_KEYS) if key not in ("kind", "draw")},
    **{f"job.checkpoint.{key}": option_name(option) for option, key in CHECKPOINT_OPTIONS.items()},
    **{f"job.snapshots.{key}": option_name(option) for option, key in SNAPSHOT_OPTIONS.items()},
    **{f"containers.{key}": option_name(option) for option, key in CONTAINER_OPTIONS.items()},
}
"""Key -> option; what stands beside every fault by its bare key."""
