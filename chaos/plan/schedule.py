"""The experiment and its seed -> the incidents: a pure function, so that a run can be planned, repeated and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from chaos.errors import UsageError, setting
from chaos.experiment.experiment import Experiment
from chaos.experiment.fault_spec import FaultSpec, written
from chaos.experiment.profile import (
    DEFAULT_LIFETIME,
    PROFILES,
    ProfileSpec,
    coverage,
    draw,
    time_compression,
)
from chaos.language.recurrence import MAX_INCIDENTS
from chaos.language.target import WITHOUT_TARGET, ResolvedTarget, Target, resolve
from chaos.language.trigger import Duration, Trigger
from chaos.plan.incident import Incident, Plan
from chaos.plan.needs import capabilities_of
from chaos.plan.overlap import Interval, Placed, check, check_exclusive, interval_of, is_possible, taken_ranks
from chaos.refusals import refusal_text
from mecefo_runtime.job.layout import Cluster

if TYPE_CHECKING:
    from chaos.experiment.sources import Registry
    from chaos.faults.base import Fault

# For jobs of unknown length, more than any takes: `within` and `count` end what recurs in them.
_MANY_STEPS = 10**9
# Long enough to see the degraded speed over several steps, short enough to see the target come back in a short run.
DEFAULT_KILL_REPAIR = Duration(steps=40)

# Where in the experiment the failures of a profile come from.
_PROFILE = "profile"


@dataclass(frozen=True, slots=True)
class _Draft:
    """An incident whose target is not resolved yet.

    `rng_stream` names its random numbers. What was drawn by a rate or from a profile `may_be_left_out` where it cannot
    be.
    """

    key: str
    rng_stream: str
    kind: type[Fault[Any]]
    on: Target | None
    trigger: Trigger
    repair: Duration | None
    lifetime: Duration | None
    parameters: Mapping[str, Any]
    retrigger: str | int = "once"
    draw: int | None = None
    is_optional: bool = False
    may_be_left_out: bool = False
    then: str | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether its target is drawn from the seed."""
        return self.kind.scope not in WITHOUT_TARGET and (self.on is None or self.on.random is not None)

    @property
    def interval(self) -> Interval | None:
        """When it is active, as far as that is known."""
        if self.kind.is_loss:
            return interval_of(self.trigger, self.repair)
        return interval_of(self.trigger, self.lifetime if self.kind.has_lifetime else "moment")


def make_plan(
    experiment: Experiment,
    cluster: Cluster,
    *,
    registry: Registry | None = None,
    capabilities: Collection[str] | None = None,
) -> Plan:
    """All firings of the faults of `experiment`, in its order, then those of its profile; always the same ones.

    A random target is drawn from what will be up, as far as that is known: not from what an earlier fault of the file
    has killed by then, nor from what a fault with a named target kills before this one is repaired. `capabilities` (see
    `chaos.plan.needs`; by default, what the experiment alone says) decide which kinds of a profile the job can have.

    Raises:
        UsageError: a fault has no possible target, affects what is still down, leaves no rank of the job alive, or is
            beyond the experiment's limits.
    """
    if registry is None:
        from chaos.faults import registry as installed

        registry = installed()
    job = experiment.job
    if capabilities is None:
        capabilities = capabilities_of(experiment)
    notes: list[str] = []
    drafts: list[_Draft] = []
    for index, fault in enumerate(experiment.faults):
        drafts += _firings(index, fault, registry[fault.kind], experiment, notes)
        if len(drafts) > MAX_INCIDENTS:
            raise UsageError(f"more than {MAX_INCIDENTS} incidents: fire fewer", key=f"faults[{index}]")
    left_out_ratio = compression = None
    if experiment.profile is not None:
        from_profile, left_out_ratio = _failures(experiment.profile, experiment, registry, capabilities, notes)
        drafts += from_profile
    placed = _place(drafts, experiment, cluster, notes)
    notes += _late_repairs(placed, job.steps)
    if job.traits.restarts_by_launcher:
        # Who is down when is its launcher's doing, and to lose all ranks at once what it may be there to survive.
        _check_limits(placed, experiment, cluster)
    else:
        check(placed, cluster, experiment.limits)
    check_exclusive(placed)
    if experiment.profile is not None:
        num_failures = sum(one.key == _PROFILE for one in placed)
        compression = time_compression(experiment.profile.name, cluster.num_ranks, num_failures)
        if compression is not None:
            notes.append(f"time compression: {compression}; here {num_failures} failures in {job.steps} steps")
    incidents, keys = _numbered(placed, cluster, registry)
    return Plan(incidents, keys, tuple(notes), left_out_ratio, compression)


def _numbered(
    placed: Collection[Placed], cluster: Cluster, registry: Registry
) -> tuple[tuple[Incident, ...], tuple[str, ...]]:
    """The incidents with their numbers, each followed by the one that follows when it is verified; and their keys."""
    incidents: list[Incident] = []
    keys: list[str] = []
    for one in placed:
        number = len(incidents)
        incidents.append(replace(one.incident, incident=number))
        keys.append(one.key)
        if one.incident.then is None:
            continue
        kind = registry[one.incident.then]
        target = resolve(None, cluster, kind.scope, _rng(one.key), unavailable=set())
        follower = Incident(
            incident=number + 1,
            fault=kind.kind,
            is_loss=kind.is_loss,
            parameters=written(kind.Parameters.model_validate({})),
            target=target,
            target_text=str(target),
            trigger=one.incident.trigger,
            repair=None,
            is_optional=one.incident.is_optional,
            follows=number,
        )
        incidents.append(follower)
        keys.append(one.key)
    return tuple(incidents), tuple(keys)


def _firings(
    index: int, fault: FaultSpec, kind: type[Fault[Any]], experiment: Experiment, notes: list[str]
) -> list[_Draft]:
    key = f"faults[{index}]"
    recurrence = fault.recurrence
    triggers: tuple[Trigger, ...] = (fault.at,)
    if recurrence is not None:
        try:
            triggers = recurrence.triggers(_rng(f"{experiment.seed}:{index}:when"), experiment.job.steps or _MANY_STEPS)
        except UsageError as error:
            raise UsageError(error.message, key=f"{key}.{error.key}") from error
        how = f"rate {fault.rate}" if fault.rate is not None else f"every {fault.every}"
        until = ""
        if recurrence.is_by_time:
            said = " (say otherwise with within)" if fault.within is None else ""
            until = f" in the first {recurrence.horizon}{said}"
        notes.append(f"{key}: {how} makes {len(triggers)} firings{until}")
    return [
        _Draft(
            key=key,
            # The first firing draws as a fault does that fires once.
            rng_stream=f"{experiment.seed}:{index}" + (f":{firing}" if firing else ""),
            kind=kind,
            on=fault.on,
            trigger=trigger,
            repair=None if experiment.job.traits.restarts_by_launcher else _repair(fault, kind),
            lifetime=fault.lifetime or kind.default_lifetime if kind.has_lifetime else None,
            parameters=fault.parameters,
            retrigger=fault.retrigger,
            draw=fault.draw,
            is_optional=recurrence is not None and (recurrence.is_by_time or experiment.job.steps is None),
            may_be_left_out=fault.rate is not None,
            then=fault.then,
        )
        for firing, trigger in enumerate(triggers)
    ]


def _failures(
    spec: ProfileSpec, experiment: Experiment, registry: Registry, capabilities: Collection[str], notes: list[str]
) -> tuple[list[_Draft], float]:
    """The failures of a profile, in the order of their steps, and which share of its counts the job cannot have."""
    profile = PROFILES[spec.name]
    notes.append(f"profile {profile.name}: {profile.source}")
    num_steps = experiment.job.steps
    if num_steps is None:
        message = f"a profile is spread over the job's steps: say how many they are: {setting('job.steps', 560)}"
        raise UsageError(message, key=_PROFILE)
    covered = coverage(profile, registry, capabilities, num_nodes=experiment.job.nodes or 1)
    missing = "; ".join(f"{failure.name} {failure.count}: {why}" for failure, why in covered.left_out)
    if not covered.classes:
        raise UsageError(f"the job can have none of the failures of {spec.name} ({missing})", key=_PROFILE)
    if missing:
        notes.append(f"profile {profile.name}: left out, {covered.left_out_ratio:.1%} by counts: {missing}")
    num_failures = spec.num_failures(num_steps)
    drawn = []
    for number in range(num_failures):
        rng_stream = f"{experiment.seed}:profile:{number}"
        drawn.append((draw(covered.classes, num_steps, _rng(f"{rng_stream}:what")), rng_stream))
    drafts = []
    for failure, rng_stream in sorted(drawn, key=lambda pair: pair[0].step):
        kind = registry[failure.failure_class.kind]
        drafts.append(
            _Draft(
                key=_PROFILE,
                rng_stream=rng_stream,
                kind=kind,
                on=failure.failure_class.target,
                trigger=Trigger(step=failure.step),
                repair=None if not kind.is_loss or experiment.job.traits.restarts_by_launcher else DEFAULT_KILL_REPAIR,
                lifetime=(kind.default_lifetime or DEFAULT_LIFETIME) if kind.has_lifetime else None,
                parameters=written(kind.Parameters.model_validate({})),
                is_optional=True,
                may_be_left_out=True,
            )
        )
    return drafts, covered.left_out_ratio


def _place(drafts: list[_Draft], experiment: Experiment, cluster: Cluster, notes: list[str]) -> list[Placed]:
    """Resolve the target of each draft; drafts without a possible target are left out where that is allowed."""
    placed: dict[int, Placed] = {}
    left_out: dict[str, list[str]] = {}
    # What has a choice comes last, so that it can go out of the others' way, in the order of the file: a fault that is
    # added at its end finds all draws made.
    for position in sorted(range(len(drafts)), key=lambda i: drafts[i].is_drawn or drafts[i].may_be_left_out):
        draft = drafts[position]
        try:
            one = _inject_into(draft, experiment, cluster, placed.values())
            why = None
            if draft.may_be_left_out and not experiment.job.traits.restarts_by_launcher:
                why = is_possible(one, placed.values(), cluster, experiment.limits)
        except UsageError as error:
            if not draft.may_be_left_out:
                raise
            why = error.message
        if why is None:
            placed[position] = one
        else:
            left_out.setdefault(draft.key, []).append(why)
    for key, reasons in left_out.items():
        total = sum(draft.key == key for draft in drafts)
        notes.append(f"{key}: {len(reasons)} of {total} firings are left out, since they cannot be: {reasons[0]}")
    return [placed[position] for position in sorted(placed)]


def _late_repairs(placed: Collection[Placed], num_steps: int | None) -> list[str]:
    """What there is to be said of ranks that stay away, since the job is over before their repair."""
    late = []
    for one in placed:
        step, repair = one.incident.trigger.step, one.incident.repair
        if step is None or repair is None or repair.steps is None or num_steps is None:
            continue
        if step <= num_steps < step + repair.steps:
            late.append(
                f"{one.key}: {one.incident.fault} at step {step} is not repaired: {repair} later is after the end"
            )
    return late


def _check_limits(placed: Collection[Placed], experiment: Experiment, cluster: Cluster) -> None:
    for one in placed:
        violation = experiment.limits.violation(set(one.incident.target.ranks), cluster)
        if violation is not None:
            what = f"{one.incident.fault} on {one.incident.target} at {one.incident.trigger}"
            raise UsageError(f"{what}: {refusal_text(violation)}", key=one.key)


def _inject_into(draft: _Draft, experiment: Experiment, cluster: Cluster, others: Collection[Placed]) -> Placed:
    kind = draft.kind
    anywhere = Incident(
        incident=0,
        fault=kind.kind,
        is_loss=kind.is_loss,
        parameters=draft.parameters,
        target=ResolvedTarget(),
        target_text="",
        trigger=draft.trigger,
        repair=draft.repair,
        lifetime=draft.lifetime,
        is_optional=draft.is_optional,
        retrigger=draft.retrigger,
        draw=draft.draw,
        may_be_left_out=draft.may_be_left_out,
        then=draft.then,
    )
    here = Placed(anywhere, draft.key, draft.interval, kind.exclusive)
    taken = set() if experiment.job.traits.restarts_by_launcher else taken_ranks(here, others)
    racks = experiment.job.nodes_per_rack
    try:
        target = resolve(draft.on, cluster, kind.scope, _rng(draft.rng_stream), unavailable=taken, nodes_per_rack=racks)
    except UsageError as error:
        why = f" ({len(taken)} of {cluster.num_ranks} ranks are down then)" if taken else ""
        raise UsageError(f"{error.message}{why}", key=f"{draft.key}.on") from error
    named = draft.on is not None and draft.on.random is None
    incident = replace(
        anywhere,
        target=target,
        target_text=kind.affects if kind.scope == "checkpoint" else str(draft.on if named else target),
        repair=None if target.role is not None else draft.repair,
    )
    return replace(here, incident=incident)


def _repair(fault: FaultSpec, kind: type[Fault[Any]]) -> Duration | None:
    if fault.repair is None:
        return DEFAULT_KILL_REPAIR if kind.is_loss else None
    return None if isinstance(fault.repair, str) else fault.repair


def _rng(rng_stream: str) -> Random:
    # Not hash(): Python's differs from process to process. One generator for each incident, so that a fault which is
    # added at the end changes none of the others.
    return Random(int.from_bytes(hashlib.sha256(rng_stream.encode()).digest()))
