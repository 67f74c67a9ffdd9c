"""`chaos run --quick`: the built-in job with fewer steps, for a first look or a smoke test in CI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from chaos.errors import UsageError, shown

STEPS = 100
# Early enough for the repair and for some steps after it, late enough for a speed to compare with.
AT_STEP = 40
REPAIR_STEPS = 20
DEFAULT_FAULT = "kill-node"
_OPTION = "--quick"


def quick(subject: str | None, options: Mapping[str, Any]) -> tuple[str | None, dict[str, Any], str]:
    """(subject, options, what was chosen, in a sentence): what is given stays as it is.

    Raises:
        UsageError: the job is not the built-in one, or a file says how long it is.
    """
    from chaos.experiment.reading import installed_faults

    if "command" in options:
        raise UsageError(
            "shortens the built-in job. How long your command takes is up to its own options: "
            "let it train some 100 steps, and write --at step=30",
            key=_OPTION,
        )
    chosen: dict[str, Any] = {}
    if subject is None and "profile" not in options:
        subject = DEFAULT_FAULT
    fault = installed_faults().get(subject or "")
    if subject is not None and fault is None and ("/" in subject or subject.endswith((".yaml", ".yml"))):
        message = f"{shown(subject)} says how many steps there are: leave --quick out, or write --steps {STEPS} instead"
        raise UsageError(message, key=_OPTION)
    if "steps" not in options:
        chosen["steps"] = STEPS
        step = re.match(r"step=(\d{1,9})", str(options.get("at", "")))
        if step is not None and int(step[1]) > STEPS:
            message = f"{options['at']} is after the {STEPS} steps of --quick: write --at step={AT_STEP}"
            raise UsageError(message, key="--at")
    if fault is not None and not options.keys() & {"at", "every", "rate"}:
        chosen["at"] = f"step={AT_STEP}"
    if fault is not None and fault.is_loss and "repair" not in options and "steps" in chosen:
        chosen["repair"] = f"{REPAIR_STEPS}steps"
    said = ", ".join([str(subject or options.get("profile")), *(f"--{key} {value}" for key, value in chosen.items())])
    return subject, {**options, **chosen}, f"quick run: {said}"
