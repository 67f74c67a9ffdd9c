"""`chaos run --quick`: the built-in job with fewer steps, for a first look or a smoke test in CI."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chaos.errors import UsageError, shown
from chaos.experiment.fault_options import MORE_FAULTS, FaultOptions

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
    from chaos.experiment.sources import distinction

    if "command" in options:
        raise UsageError(
            "shortens the built-in job. How long your command takes is up to its own options: let it train some 100 "
            "steps, and leave --quick out, as in `chaos run kill-process --at step=30 -- torchrun train.py`",
            key=_OPTION,
        )
    if subject is None and "profile" not in options:
        subject = DEFAULT_FAULT
    kinds = installed_faults()
    if subject is not None and subject not in kinds and ("/" in subject or subject.endswith((".yaml", ".yml"))):
        message = f"{shown(subject)} says how many steps there are: leave --quick out, or write --steps {STEPS} instead"
        raise UsageError(message, key=_OPTION)
    chosen: dict[str, Any] = {} if "steps" in options else {"steps": STEPS}
    first = FaultOptions(subject or "", options)
    more: Sequence[FaultOptions] = options.get(MORE_FAULTS, ())
    line = [one.kind for one in (first, *more)]
    if "steps" in chosen:
        for place, one in enumerate((first, *more)):
            _require_early(one, f"--at{distinction(line, place)}")
    if subject in kinds and not options.keys() & {"at", "every", "rate"}:
        chosen["at"] = f"step={AT_STEP}"
    if "steps" in chosen:
        chosen |= _early_repair(first)
        more = [replace(one, options={**one.options, **_early_repair(one)}) for one in more]
    parts = [str(subject or options.get("profile")), *(f"--{key} {value}" for key, value in chosen.items())]
    parts += [" ".join((f"--and {one.kind}", *_of_more(one))) for one in more]
    all_options = {**options, **chosen} | ({MORE_FAULTS: tuple(more)} if more else {})
    return subject, all_options, f"quick run: {', '.join(parts)}"


def _require_early(fault: FaultOptions, label: str) -> None:
    """Check that the fault is injected before the end of the short job.

    Raises:
        UsageError: it is not.
    """
    step = _step_of(fault)
    if step is not None and step > STEPS:
        message = f"{fault.options['at']} is after the {STEPS} steps of --quick: write --at step={AT_STEP}"
        raise UsageError(message, key=label)


def _early_repair(fault: FaultOptions) -> dict[str, str]:
    """The option by which what the fault takes away is repaired within the short job, where nothing else is given."""
    from chaos.experiment.reading import installed_faults

    kind = installed_faults().get(fault.kind)
    # What plays a role is started again at once.
    if kind is None or not kind.is_loss or "repair" in fault.options or "role=" in str(fault.options.get("on", "")):
        return {}
    steps = min(REPAIR_STEPS, STEPS - (_step_of(fault) or 0))
    return {"repair": f"{steps}steps"} if steps > 0 else {}


def _step_of(fault: FaultOptions) -> int | None:
    match = re.match(r"step=(\d{1,9})", str(fault.options.get("at", "")))
    return None if match is None else int(match[1])


def _of_more(fault: FaultOptions) -> list[str]:
    return [f"--{key} {value}" for key, value in fault.options.items() if key in ("at", "repair")]
