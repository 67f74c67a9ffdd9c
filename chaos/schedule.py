"""The experiment and its seed -> the incidents: a pure function, so that a run can be planned, repeated and checked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from chaos.errors import UsageError
from chaos.experiment import Experiment, FaultSpec
from chaos.target import DEFAULT_TARGET, ResolvedTarget, resolve
from chaos.trigger import PHASES, Duration, Trigger
from mecefo_runtime.layout import Cluster

if TYPE_CHECKING:
    from chaos.experiment import Registry
    from chaos.faults.base import Fault

# Long enough to see the degraded speed over several steps, short enough to see the target come back in a short run.
DEFAULT_KILL_REPAIR = Duration(steps=40)

# A step and how many of its phases went before.
_Moment = tuple[float, int]
_NEVER: _Moment = (math.inf, 0)


@dataclass(frozen=True, slots=True)
class Incident:
    """One planned firing of a fault; `repair` None leaves it as it is (a role comes back by itself).

    `is_loss`: its ranks are gone until they are repaired.
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

    def __str__(self) -> str:
        repair = f", repaired after {self.repair}" if self.repair is not None else ""
        return f"incident {self.incident}: {self.fault} on {self.target_text} at {self.trigger}{repair}"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values; see `incidents_planned` in docs/events.md."""
        return {
            "incident": self.incident,
            "fault": self.fault,
            "parameters": dict(self.parameters),
            "target": self.target_text,
            "ranks": list(self.target.ranks),
            "nodes": list(self.target.nodes),
            "role": self.target.role,
            "step": self.trigger.step,
            "phase": self.trigger.phase if self.trigger.step is not None else None,
            "at_seconds": self.trigger.at_seconds,
            "repair_steps": self.repair.steps if self.repair is not None else None,
            "repair_seconds": self.repair.seconds if self.repair is not None else None,
        }


def plan_incidents(
    experiment: Experiment, cluster: Cluster, *, registry: Registry | None = None
) -> tuple[Incident, ...]:
    """One incident for each fault of `experiment`, in its order; the same experiment always gives the same incidents.

    A random target is drawn from what will be up, as far as that is known: not from what another fault has killed by
    then, nor from what a fault with a named target kills before this one is repaired.

    Raises:
        UsageError: a fault has no possible target, kills what is still down, or leaves no rank of the job alive.
    """
    if registry is None:
        from chaos.faults import registry as installed

        registry = installed()
    planned: dict[int, Incident] = {}
    # Those with a choice last, in the order in which they fire, so that they can go out of the others' way.
    for index in sorted(range(len(experiment.faults)), key=lambda i: _turn(experiment.faults[i], i)):
        fault = experiment.faults[index]
        kind = registry[fault.kind]
        planned[index] = _plan(index, fault, kind, experiment.seed, cluster, list(planned.values()))
    incidents = tuple(planned[index] for index in range(len(experiment.faults)))
    _check(incidents, cluster)
    return incidents


def _turn(fault: FaultSpec, index: int) -> tuple[bool, _Moment, int]:
    return ((fault.on or DEFAULT_TARGET).random is not None, _moment(fault.at), index)


def _plan(
    index: int, fault: FaultSpec, kind: type[Fault[Any]], seed: int, cluster: Cluster, others: list[Incident]
) -> Incident:
    wanted = fault.on or DEFAULT_TARGET
    repair = _repair(fault, kind)
    taken = {
        rank
        for other in others
        if other.is_loss and kind.is_loss and _overlap(other.trigger, other.repair, fault.at, repair)
        for rank in other.target.ranks
    }
    try:
        target = resolve(wanted, cluster, kind.scope, _rng(seed, index), unavailable=taken)
    except UsageError as error:
        why = f" ({len(taken)} of {cluster.num_ranks} ranks are down then)" if taken else ""
        raise UsageError(f"{error.message}{why}", key=f"faults[{index}].on") from error
    return Incident(
        incident=index,
        fault=fault.kind,
        is_loss=kind.is_loss,
        parameters=fault.parameters,
        target=target,
        target_text=str(wanted if wanted.random is None else target),
        trigger=fault.at,
        repair=None if target.role is not None else repair,
    )


def _repair(fault: FaultSpec, kind: type[Fault[Any]]) -> Duration | None:
    if fault.repair is None:
        return DEFAULT_KILL_REPAIR if kind.is_loss else None
    return None if isinstance(fault.repair, str) else fault.repair


def _rng(seed: int, index: int) -> Random:
    # Not hash(): Python's differs from process to process. One generator for each incident, so that a fault which is
    # added at the end changes none of the others.
    return Random(int.from_bytes(hashlib.sha256(f"{seed}:{index}".encode()).digest()))


def _moment(trigger: Trigger) -> _Moment:
    """When, as far as it is known in steps; a time comes last."""
    return (trigger.step, PHASES.index(trigger.phase)) if trigger.step is not None else _NEVER


def _down(trigger: Trigger, repair: Duration | None) -> tuple[_Moment, _Moment] | None:
    """First and last moment at which what is killed so is known to be down; None when that is not known in steps.

    The last step counts in full: the repair begins when it is committed.
    """
    if trigger.step is None:
        return None
    first = _moment(trigger)
    if repair is None:
        return first, _NEVER
    return first, first if repair.steps is None else (trigger.step + repair.steps, len(PHASES))


def _overlap(one: Trigger, one_repair: Duration | None, other: Trigger, other_repair: Duration | None) -> bool:
    a, b = _down(one, one_repair), _down(other, other_repair)
    return a is not None and b is not None and a[0] <= b[1] and b[0] <= a[1]


def _check(incidents: tuple[Incident, ...], cluster: Cluster) -> None:
    """Refuse what cannot be: see `plan_incidents`."""
    kills = sorted((i for i in incidents if i.is_loss and i.target.ranks), key=lambda i: _moment(i.trigger))
    for position, kill in enumerate(kills):
        down = [
            earlier
            for earlier in kills[:position]
            if _overlap(earlier.trigger, earlier.repair, kill.trigger, kill.repair)
        ]
        gone = frozenset[tuple[str, int]]().union(*map(_processes, down))
        key = f"faults[{kill.incident}]"
        if _processes(kill) <= gone:
            first = next(earlier for earlier in reversed(down) if _processes(earlier) & _processes(kill))
            until = f"until {first.repair} later" if first.repair is not None else "for good"
            raise UsageError(
                f"{kill.fault} on {kill.target} at {kill.trigger}, but faults[{first.incident}] took it down at "
                f"{first.trigger} {until}: choose another target, a later step or an earlier repair",
                key=key,
            )
        ranks = {rank for incident in (*down, kill) for rank in incident.target.ranks}
        if len(ranks) == cluster.num_ranks:
            raise UsageError(
                f"{kill.fault} on {kill.target} at {kill.trigger} leaves none of the job's {cluster.num_ranks} ranks "
                "alive: strike fewer of them" + (", or repair those that were struck before it sooner" if down else ""),
                key=key,
            )


def _processes(incident: Incident) -> frozenset[tuple[str, int]]:
    """What a kill takes down: ranks, and the supervisors of whole nodes."""
    ranks = frozenset(("rank", rank) for rank in incident.target.ranks)
    return ranks | {("supervisor", node) for node in incident.target.nodes}
