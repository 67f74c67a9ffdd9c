"""An incident: one planned firing of a fault; and the plan, which is all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chaos.experiment.profile import TimeCompression
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Duration, Trigger
from mecefo_runtime.system.json_values import NOT_WRITTEN, called
from mecefo_runtime.system.run_records import PlannedIncident


@dataclass(frozen=True, slots=True)
class Incident:
    """One planned firing of a fault; `repair` None leaves it as it is (a role comes back by itself).

    `is_loss`: its ranks are gone until they are repaired. `lifetime`: it is undone after that; None: at the job's end,
    or it is over at once. `is_optional`: it is no fault of the run if the job ends before it. `retrigger`: at which
    attempts of the job's launcher it fires: `once`, `every-attempt`, or a number. `draw`: the incident that it repeats.
    `may_be_left_out`: chance chose its moment; where limits forbid it then, it is left out. `then`: the fault that
    follows when it is verified; that one `follows` it, and its trigger says nothing.
    """

    incident: int
    fault: str
    is_loss: bool
    parameters: Mapping[str, Any]
    target: ResolvedTarget
    target_text: str
    trigger: Trigger
    repair: Duration | None
    lifetime: Duration | None = None
    is_optional: bool = False
    retrigger: str | int = "once"
    draw: int | None = None
    may_be_left_out: bool = False
    then: str | None = None
    follows: int | None = None

    @property
    def rng_stream(self) -> int:
        """What its own random numbers are called: its number, or that of the incident which it repeats."""
        return self.incident if self.draw is None else self.draw

    def __str__(self) -> str:
        when = f"at {self.trigger}" if self.follows is None else f"once incident {self.follows} is verified"
        said = [f"incident {self.incident}: {self.fault} on {self.target_text} {when}"]
        if self.lifetime is not None:
            said.append(f"for {self.lifetime}")
        if self.repair is not None:
            said.append(f"repaired after {self.repair}")
        if self.retrigger != "once":
            said.append("at every attempt" if self.retrigger == "every-attempt" else f"at {self.retrigger} attempts")
        if self.is_optional:
            said.append("if the job is still running then")
        own = [f"{key}={_shown(value)}" for key, value in self.parameters.items() if value is not None]
        if own:
            said.append(f"with {' '.join(own)}")
        return ", ".join(said)

    def planned(self) -> PlannedIncident:
        """As the event `incidents_planned` has it."""
        trigger = self.trigger
        return PlannedIncident(
            incident=self.incident,
            fault=self.fault,
            parameters=dict(self.parameters),
            target=self.target_text,
            ranks=self.target.ranks,
            nodes=self.target.nodes,
            links=self.target.links,
            role=self.target.role,
            step=trigger.step,
            phase=trigger.phase if trigger.at_seconds is None else None,
            in_save=None if trigger.in_save is None else str(trigger.in_save),
            at_seconds=trigger.at_seconds,
            lifetime_steps=self.lifetime.steps if self.lifetime is not None else None,
            lifetime_seconds=self.lifetime.seconds if self.lifetime is not None else None,
            repair_steps=self.repair.steps if self.repair is not None else None,
            repair_seconds=self.repair.seconds if self.repair is not None else None,
            retrigger=self.retrigger,
            draw=self.rng_stream,
            then=self.then,
            follows=self.follows,
            is_optional=self.is_optional,
        )


def _shown(value: Any) -> str:
    """The value of a parameter as `-p` takes it."""
    return value if isinstance(value, str) and value and " " not in value else json.dumps(value)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run fires, in the order of the experiment, and what there is to be said of how it was drawn.

    `keys` are the keys of the experiment that the incidents come from, one for each. `left_out_ratio` is the share of
    the profile, by counts, that the job cannot have.
    """

    ALSO_WRITTEN: ClassVar[Mapping[str, str]] = {"incidents": "planned"}

    incidents: tuple[Incident, ...] = field(metadata=NOT_WRITTEN)
    keys: tuple[str, ...] = field(metadata=NOT_WRITTEN)
    notes: tuple[str, ...] = ()
    left_out_ratio: float | None = field(default=None, metadata=called("profile_left_out_ratio"))
    time_compression: TimeCompression | None = None

    @property
    def planned(self) -> tuple[PlannedIncident, ...]:
        """The incidents as the event `incidents_planned` has them."""
        return tuple(incident.planned() for incident in self.incidents)
