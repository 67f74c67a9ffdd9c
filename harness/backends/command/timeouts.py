"""The time-outs in the environment of a command and in the options of its launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Of the watchdog of NCCL and of its heartbeat (torch 2.4-2.13, `ProcessGroupNCCL.hpp`), of torchrun's health check
# and of the rank's own handling of errors.
VARIABLES = (
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
    "TORCH_NCCL_COORD_CHECK_MILSEC",
    "NCCL_TIMEOUT",
)
_CONF = ("--rdzv-conf", "--rdzv_conf")


def timeouts_of(command: Sequence[str], environment: Mapping[str, str]) -> Mapping[str, str]:
    """By name of the variable, or key of torchrun's `--rdzv-conf` after `rdzv.`: the value as it was written."""
    found = {name: environment[name] for name in VARIABLES if name in environment}
    text = environment.get("PET_RDZV_CONF", environment.get("PET_RDZV_CONFIGS", ""))
    for index, word in enumerate(command):
        option, equals, value = word.partition("=")
        if option in _CONF:
            text = value if equals else command[index + 1] if index + 1 < len(command) else ""
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if equals and ("timeout" in key or key.startswith("keep_alive")):
            found[f"rdzv.{key.strip()}"] = value.strip()
    return found
