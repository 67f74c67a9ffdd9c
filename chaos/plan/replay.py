"""A run's log -> an experiment that names each of its incidents: the same faults on the same ranks at the same steps.

Nothing is drawn any more: what the seed, a rate or a profile chose stands there in full, and a fault that came at a
time comes at the step at which it was injected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.errors import UsageError
from chaos.faults import registry
from chaos.language.trigger import Trigger
from chaos.plan.schedule import DEFAULT_KILL_REPAIR
from mecefo_runtime.job.traits import JobTraits, traits_of
from mecefo_runtime.system.events import MAIN_JOB, Event

# What says which faults there are; all else of an experiment is kept.
_SCHEDULE_KEYS = ("faults", "profile")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a log says of the run that it is of. `planned` are its incidents, `injected` where those that fired did.

    `started_in` is the folder in which a command was started, None of other jobs.
    """

    experiment: Mapping[str, Any]
    planned: Sequence[Mapping[str, Any]]
    injected: Mapping[int, Event]
    started_in: str | None = None

    @property
    def traits(self) -> JobTraits:
        """What kind of job it is."""
        return traits_of(self.experiment["job"]["runtime"])

    @classmethod
    def of(cls, events: Iterable[Event]) -> Recorded:
        """Read it.

        Raises:
            UsageError: the log does not get as far as the plan.
        """
        experiment: Mapping[str, Any] | None = None
        planned: Sequence[Mapping[str, Any]] | None = None
        injected: dict[int, Event] = {}
        started_in: str | None = None
        for event in events:
            if event.job != MAIN_JOB:
                continue
            match event.kind:
                case "run_started":
                    experiment = event.fields["experiment"]
                case "incidents_planned":
                    planned = event.fields["incidents"]
                case "job_started":
                    started_in = event.fields.get("started_in")
                case "injected":
                    injected.setdefault(int(event.fields["incident"]), event)
        if experiment is None or planned is None:
            raise UsageError("its log does not say what was planned: it was cut off before that, or is of another tool")
        return cls(experiment, planned, injected, started_in)


def explicit_faults(recorded: Recorded, only: Iterable[int] = ()) -> list[dict[str, Any]]:
    """Each incident as a fault of an experiment file, those in `only` (all, when there are none), in their order.

    Of the incidents that may come to nothing (`is_optional`), those that did are left out.

    Raises:
        UsageError: the run has no such incident.
    """
    wanted = list(only)
    numbers = [int(plan["incident"]) for plan in recorded.planned]
    for number in wanted:
        if number not in numbers:
            raise UsageError(f"the run has no incident {number}: it has {', '.join(map(str, numbers)) or 'none'}")
    return [
        fault
        for plan in recorded.planned
        for fault in _explicit(plan, recorded)
        if (not wanted or plan["incident"] in wanted)
        if plan["incident"] in recorded.injected or not plan.get("is_optional")
    ]


def explicit(recorded: Recorded, faults: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The recorded experiment with `faults` in place of its schedule, as plain values.

    A command runs where it ran: its arguments may name files from there.
    """
    kept = {key: value for key, value in recorded.experiment.items() if key not in _SCHEDULE_KEYS}
    if recorded.traits.is_user_script and recorded.started_in is not None:
        job = kept["job"]
        kept["job"] = {**job, "folder": str(Path(recorded.started_in) / (job.get("folder") or "."))}
    return {**kept, "name": name, "faults": without_late_repairs(faults, (kept.get("job") or {}).get("steps"))}


def drawn_experiment(recorded: Recorded) -> dict[str, Any]:
    """The experiment that repeats the recorded run, the same for a run, its replay, and a replay of that."""
    faults = [{**fault, "at": str(Trigger.parse(fault["at"]))} for fault in explicit_faults(recorded)]
    return explicit(recorded, faults, str(recorded.experiment.get("name")))


def without_late_repairs(faults: Sequence[Mapping[str, Any]], num_steps: int | None) -> list[dict[str, Any]]:
    """`faults` with no word of repairs that would come after the end of a job of `num_steps`: that is refused."""
    kept = []
    for fault in faults:
        at = re.match(r"step=(\d+)", str(fault["at"]))
        repair = re.fullmatch(r"(\d+)steps?", str(fault.get("repair")))
        if at and repair and num_steps is not None and int(at[1]) + int(repair[1]) > num_steps:
            rest = {key: value for key, value in fault.items() if key != "repair"}
            # Unsaid it would come as late, or soon enough.
            is_late = int(at[1]) + (DEFAULT_KILL_REPAIR.steps or 0) > num_steps
            fault = rest if is_late else {**rest, "repair": "none"}
        kept.append(dict(fault))
    return kept


def _explicit(plan: Mapping[str, Any], recorded: Recorded) -> list[dict[str, Any]]:
    """The faults that make up one incident: one, but of several links one for each."""
    number = int(plan["incident"])
    if plan.get("follows") is not None:
        # The one that it follows says so.
        return []
    fault: dict[str, Any] = {"kind": plan["fault"], "at": _trigger(plan, recorded.injected.get(number))}
    for key, name in (("repair", "repair"), ("lifetime", "for")):
        steps, seconds = plan.get(f"{key}_steps"), plan.get(f"{key}_seconds")
        if steps is not None or seconds is not None:
            fault[name] = f"{steps}steps" if steps is not None else f"{seconds}s"
    kind = registry().get(plan["fault"])
    is_repairable = not recorded.traits.restarts_by_launcher and plan.get("role") is None
    if "repair" not in fault and kind is not None and kind.is_loss and is_repairable:
        fault["repair"] = "none"
    if plan.get("retrigger", "once") != "once":
        fault["retrigger"] = plan["retrigger"]
    if plan.get("then") is not None:
        fault["then"] = plan["then"]
    # What the fault itself draws when it fires, such as an element of a tensor, is drawn as it was.
    fault["draw"] = int(plan.get("draw", number))
    fault |= {key: value for key, value in plan["parameters"].items() if value is not None}
    return [{**fault, **({"on": target} if target is not None else {})} for target in _targets(plan)]


def _trigger(plan: Mapping[str, Any], injected: Event | None) -> str:
    if plan.get("at_seconds") is None:
        parts = [f"step={plan['step']}"] if plan.get("step") is not None else []
        in_save = [plan["in_save"]] if plan.get("in_save") else []
        return ",".join([*parts, f"phase={plan['phase']}", *in_save])
    if injected is None or injected.step is None:
        return f"time={plan['at_seconds']}s"
    return f"step={injected.step}"


def _targets(plan: Mapping[str, Any]) -> list[str | None]:
    if plan.get("role") is not None:
        return [f"role={plan['role']}"]
    if plan.get("links"):
        return [f"link={a}-{b}" for a, b in plan["links"]]
    for key in ("nodes", "ranks"):
        if plan.get(key):
            return [f"{key.removesuffix('s')}={'+'.join(map(str, plan[key]))}"]
    return [None]
