"""The named assumptions of the simulation.

The paper's summaries leave some of them open. The default reading was chosen by its fit to the authors' rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from chaos.errors import UsageError, nearest, shown
from mecefo_runtime.stacks.rulers import OffsetKind

Recovery = Literal["per_group_restart", "absorb", "global_restart"]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Of the failures, of a step, and of a recovery.

    `recovery` after a wipe-out. `per_group_restart`: every group restarts by itself, one that fails meanwhile begins
    again, and all wait for the last. `absorb`: failures meanwhile count for nothing. `global_restart`: any failure
    meanwhile begins the restart of all again.
    `restarting`: all groups, or those alone that have failed.
    `clocks`: a group's failures are a renewal process that runs on, dead or alive (`run_on`), or a lost group's next
    lifetime begins with the restart (`begin_anew`).
    `jitter`: of replication's r layers one draw in all (`block`), as of one computation, or one each (`layer`). SPARe's
    layers are one each.
    `barrier`: groups wait for each other before the all-reduce (`step`), or after every layer (`layer`).
    `patch`: the missing shards are computed by as many groups as there are shards (`missing`), or all groups compute a
    layer (`layer`), which differs by the slowest one's jitter.
    """

    recovery: Recovery = "per_group_restart"
    restarting: Literal["all", "failed"] = "all"
    clocks: Literal["run_on", "begin_anew"] = "run_on"
    jitter: Literal["block", "layer"] = "block"
    barrier: Literal["step", "layer"] = "step"
    patch: Literal["missing", "layer"] = "missing"
    offsets: OffsetKind = "golomb"
    # Weibull; the mean lifetime of a group is that of the system times the number of groups.
    weibull_shape: float = 0.78
    system_mtbf_seconds: float = 300.0
    layer_seconds: float = 64.0
    jitter_ratio: float = 0.05
    # 2, 6 and 10 s for 200, 600 and 1,000 groups.
    all_reduce_seconds_per_group: float = 0.01
    # 2e13 bytes at 340 GB/s, by the leader alone, while the others wait.
    save_seconds: float = 58.8
    controller_seconds: float = 0.1
    shrink_seconds: float = 0.1
    restart_seconds: float = 3600.0
    # Of the period that the closed form finds best.
    period_factor: float = 1.0

    @classmethod
    def parse(cls, pairs: tuple[str, ...]) -> Assumptions:
        """From `name=value`, each other than the default.

        Raises:
            UsageError: there is no such name, or it has no such value.
        """
        given: dict[str, Any] = {}
        hints = get_type_hints(cls)
        names = [field.name for field in fields(cls)]
        for pair in pairs:
            name, is_pair, value = pair.partition("=")
            if not is_pair or name not in names:
                message = f"{shown(pair)} is no assumption: NAME=VALUE, with {', '.join(names)}"
                raise UsageError(message, key="--assume", suggestion=nearest(name, names))
            given[name] = _number(name, value) if hints[name] is float else _word(name, value, get_args(hints[name]))
        return cls(**given)


def _word(name: str, value: str, words: tuple[str, ...]) -> str:
    if value not in words:
        message = f"{name} is one of {', '.join(words)}, not {shown(value)}"
        raise UsageError(message, key="--assume", suggestion=nearest(value, words))
    return value


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    # A system that fails every second is as hopeless as any, and takes as long. More than a year is a slip.
    leasts = {"jitter_ratio": 0.0, "controller_seconds": 0.0, "shrink_seconds": 0.0, "system_mtbf_seconds": 1.0}
    least = leasts.get(name, 1e-6)
    if not least <= number <= 366 * 86400:
        raise UsageError(f"{name} is a number of at least {least:g}, not {shown(value)}", key="--assume")
    return number
