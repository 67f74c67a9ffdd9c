"""Contradictions in an experiment whose values are all valid by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from chaos.errors import UsageError, nearest, setting, shown
from chaos.experiment.backends import backends
from chaos.experiment.command_job import NO_REPAIR, CommandJob
from chaos.experiment.experiment import Experiment
from chaos.experiment.fault_spec import PARAMETERS, FaultSpec
from chaos.experiment.job import Job
from chaos.faults.process._processes import RUNNING
from chaos.language.target import ResolvedTarget, resolve
from chaos.language.trigger import SNAPSHOT_PHASES, Duration
from chaos.language.validation_errors import Problems
from chaos.language.yaml_lines import KeyPath
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.planners import stops_on_loss
from mecefo_runtime.prediction.named_devices import NAMES as DEVICE_NAMES

if TYPE_CHECKING:
    from chaos.faults.base import Fault


# Our runtime keeps all of them in fp32.
_HIGHEST_BIT = 31


_STEPS, _STRATEGY, _MODEL, _CHECKPOINT, _SNAPSHOTS, _QUALITY = (
    ("job", key) for key in ("steps", "strategy", "model", "checkpoint", "snapshots", "quality")
)
_RUNTIME: KeyPath = ("job", "runtime")
_SHAPE: Sequence[KeyPath] = tuple(
    ("job", key)
    for key in ("nodes", "gpus_per_node", "nodes_per_rack", "data_parallel", "pipeline", "model", "command", "runtime")
)


def contradictions(
    experiment: Experiment, kinds: Mapping[str, type[Fault[Any]]], problems: Problems, places: Sequence[int]
) -> None:
    """Add all of them to `problems`, each where it was said.

    `kinds` are the faults there are, by kind; `places` says at which index each fault of `experiment` was said.
    """
    job = experiment.job
    _about_backend(experiment, problems)
    if isinstance(job, Job):
        for key, message in job.contradictions_of_strategy().items():
            problems.add(("job", *key), message, rests_on=[_STRATEGY])
        hidden_size = job.preset().hidden_size
        if job.approximation.rank > hidden_size:
            message = f"rank {job.approximation.rank} is more than the model's hidden size: choose 1 to {hidden_size}"
            problems.add(("job", "approximation", "rank"), message, rests_on=[_MODEL])
        if job.quality != "auto" and job.degraded_share_limit is not None:
            message = f"{setting('job.quality')} says it too: leave one of the two out"
            problems.add(("job", "degraded_share_limit"), message, rests_on=[_QUALITY])
        for key, message in _about_device(job):
            problems.add(("job", *key), message, rests_on=[("job", "device_model")])
    cluster: Cluster | None = None
    if problems.are_sound(*_SHAPE):
        try:
            cluster = experiment.cluster()
        except UsageError as error:
            problems.note(("job", error.key or "nodes"), problems.source.placed(error, ("job",)))
    for index, fault in zip(places, experiment.faults, strict=True):
        where: KeyPath = ("faults", index)
        kind = kinds[fault.kind]
        _about_time(fault, kind, job, where, problems)
        _about_repair(fault, kind, job, where, problems)
        if isinstance(job, Job):
            _about_model(fault, job, where, problems)
        if cluster is None:
            continue
        try:
            target = resolve(fault.on, cluster, kind.scope, Random(0), nodes_per_rack=job.nodes_per_rack)
        except UsageError as error:
            if (advice := job.advice_on_ranks()) is not None:
                error = UsageError(f"{error.message}; {advice}")
            problems.note((*where, "on"), problems.source.placed(error, (*where, "on")))
            continue
        _about_target(fault, kind, target, job, where, problems)
    _about_starts(experiment, problems)


def _about_device(job: Job) -> Iterator[tuple[tuple[str, ...], str]]:
    """(Key of the job, what is wrong) for all that contradicts the device that it names, or asks for one."""
    device = job.stands_for()
    if device is None:
        if job.time_scale != "auto":
            name = setting("job.device_model", DEVICE_NAMES[0])
            yield ("time_scale",), f"is that of an emulated device: name one with {name}"
        if job.link is not None and job.device == "cuda":
            yield ("link",), "links are emulated between ranks on CPUs: choose device cpu"
        return
    table = f"the table of {device.name}"
    if job.dilation not in ("auto", "off"):
        slower = f"leave {setting('job.dilation')} out; {setting('job.time_scale')} makes all of it slower"
        yield ("dilation",), f"{table} says how long compute takes: {slower}"
    if job.pacing != "rated":
        yield ("pacing",), f"{table} rates the compute: leave it on rated"
    if job.precision != "fp32":
        yield ("precision",), f"what numbers the device computes with is in {table}: leave it out"
    if job.device == "cuda":
        yield ("device",), "an emulated device's arithmetic is done on CPUs: leave it out"
    if "model" in job.model_fields_set and job.model != device.model:
        yield ("model",), f"{table} is for {device.model}, not for {job.model}: leave it out"
    told = {
        ("sequence_length",): (job.sequence_length, device.sequence_length),
        ("microbatch_size",): (job.microbatch_size, device.microbatch_size),
        ("approximation", "rank"): (job.approximation.rank, device.approximation_rank),
    }
    for where, (asked, has) in told.items():
        owner = job.approximation if len(where) > 1 else job
        if where[-1] in owner.model_fields_set and asked != has:
            yield where, f"{table} was measured with {has}, not with {asked}: leave it out, or calibrate anew"


def _about_backend(experiment: Experiment, problems: Problems) -> None:
    chosen = experiment.nodes_on
    backend: Sequence[KeyPath] = [("backend",)]
    job = experiment.job if chosen.starts_command_on_each_node else None
    if job is not None and (why := job.why_not_on_nodes()):
        problems.add(("job", "nodes"), why, rests_on=[*backend, ("job", "command")])
    if experiment.network != "auto" and not chosen.divides_network:
        networks = (
            f"every {chosen.one_node} has its own network"
            if chosen.has_own_networks
            else (f"the network of {chosen.nodes} cannot be divided")
        )
        problems.add(("network",), f"{networks}: leave it on auto", rests_on=backend)
    for other in backends().values():
        given = other.settings_among(experiment.backend_settings).model_dump(exclude_defaults=True)
        if given and other.name != chosen.name:
            message = f"says what {other.nodes} are: add {setting('backend', other.name)}"
            problems.add((other.settings_key, next(iter(given))), message, rests_on=backend)


def _about_starts(experiment: Experiment, problems: Problems) -> None:
    chosen = experiment.nodes_on
    if not experiment.job.traits.is_user_script or not chosen.starts_command_on_each_node:
        return
    restarting = [other.name for other in backends().values() if not other.starts_command_on_each_node]
    others = " or ".join(setting("backend", name) for name in restarting)
    for key, is_asked in ((("twin",), experiment.twin), (("job", "reset"), experiment.job.reset)):
        if is_asked:
            problems.add(key, f"a command in {chosen.nodes} is started once: leave it out, or choose {others}")


def _about_time(
    fault: FaultSpec, kind: type[Fault[Any]], job: Job | CommandJob, where: KeyPath, problems: Problems
) -> None:
    step = fault.at.step
    if step is not None and job.steps is not None and step > job.steps:
        message = (
            f"step={step}, but the job has {job.steps} steps: choose a step from 1 to {job.steps}, "
            f"or raise {setting('job.steps')}"
        )
        problems.add((*where, "at", "step"), message, rests_on=[_STEPS])
    if violation := _about_phase(fault, job):
        problems.add((*where, "at", "phase"), violation, rests_on=[_CHECKPOINT, _SNAPSHOTS, _STRATEGY, _RUNTIME])
    if fault.then is not None and not kind.is_latent:
        message = f"is of faults whose damage shows when it is read, and {fault.kind} shows at once: leave it out"
        problems.add((*where, "then"), message)
    if violation := _about_save(fault, kind, job):
        key = "after" if fault.at.in_save is not None and fault.at.in_save.during is None else "during"
        problems.add((*where, "at", key), violation, rests_on=[_RUNTIME])
    if fault.at.phase == "encode" and fault.at.at_seconds is None and kind.acts_inside:
        message = f"holds a node's snapshot process, and {fault.kind} needs ranks that are held: choose another phase"
        problems.add((*where, "at", "phase"), message)
    is_of_checkpoints = kind.scope == "checkpoint"
    if is_of_checkpoints and (violation := job.violation_about_checkpoint_before(step)):
        problems.add((*where, "at", "step"), violation, rests_on=[_CHECKPOINT, _STRATEGY])
    if not problems.are_sound((*where, PARAMETERS)):
        return
    parameters = kind.Parameters.model_validate(fault.parameters)
    phases = kind.phases_for(parameters)
    if step is not None and phases is not None and fault.at.phase not in phases:
        seen = [phase for phase in phases if phase in job.phases]
        message = f"is too late in a step for {fault.kind} to have an effect in it: choose {', '.join(seen)}"
        problems.add((*where, "at", "phase"), message)
    if fault.lifetime is not None and not (kind.has_lifetime and kind(parameters).lasts()):
        problems.add((*where, "for"), f"{fault.kind} has no lifetime: {_ends_by(fault, kind, job)}")
    lifetime, longest_seconds = fault.lifetime or kind.default_lifetime, kind.longest_seconds(parameters)
    if lifetime is not None and longest_seconds is not None and (lifetime.seconds or 0.0) > longest_seconds:
        message = f"{fault.kind} is to go on for {lifetime}, but ends by itself after {longest_seconds:g}s"
        longer = setting(f"faults[{where[1]}].at_most")
        problems.add((*where, "for"), f"{message}: choose a shorter {setting('for')}, or a larger {longer}")


def _ends_by(fault: FaultSpec, kind: type[Fault[Any]], job: Job | CommandJob) -> str:
    """How a fault ends that has no lifetime, and what to write in place of one."""
    leave_out = f"leave {setting('for')} out"
    if not kind.is_loss:
        return f"it is over at once: {leave_out}"
    if job.traits.restarts_by_launcher:
        return f"its target is gone until the command's own launcher restarts it: {leave_out}"
    if fault.on is not None and fault.on.role is not None:
        return f"the {fault.on.role} is started again by itself, at once: {leave_out}"
    lifetime, step = fault.lifetime, fault.at.step
    assert lifetime is not None
    is_too_long = bool(step and lifetime.steps and job.steps and step + lifetime.steps > job.steps)
    repair = setting("repair") if is_too_long else setting("repair", lifetime)
    return f"the target is gone until the repair: write {repair} instead"


def _about_repair(
    fault: FaultSpec, kind: type[Fault[Any]], job: Job | CommandJob, where: KeyPath, problems: Problems
) -> None:
    place = (*where, "repair")
    if not isinstance(job, Job):
        return
    if kind.is_loss and fault.repair == "none" and stops_on_loss(job.strategy):
        message = (
            f"with the strategy {job.strategy} the job starts again when all ranks are back: it would wait for ever; "
            f"leave {setting('repair')} out"
        )
        problems.add(place, message, rests_on=[_STRATEGY])
    if fault.repair is not None and not kind.is_loss and problems.are_sound((*where, PARAMETERS)):
        why = f"it is over at once: leave {setting('repair')} out"
        if kind.has_lifetime and kind(kind.Parameters.model_validate(fault.parameters)).lasts():
            why = f"the target survives it: {setting('for')} is the duration of the fault, such as 30s or 10steps"
        problems.add(place, f"{fault.kind} has no repair: {why}")
    elif isinstance(fault.repair, Duration) and fault.repair.steps is not None and fault.at.step is not None:
        repaired = fault.at.step + fault.repair.steps
        if fault.at.step <= job.steps < repaired:
            message = (
                f"{fault.repair} after step {fault.at.step} is step {repaired}, but the job has {job.steps} steps: "
                f"repair sooner, or raise {setting('job.steps')}"
            )
            if not stops_on_loss(job.strategy):
                message += f", or write {setting('repair', 'none')}"
            problems.add(place, message, rests_on=[_STEPS, (*where, "at")])


def _about_model(fault: FaultSpec, job: Job, where: KeyPath, problems: Problems) -> None:
    """What no rank has, whoever holds which layers."""
    num_layers = job.preset().num_layers
    units = ("embedding", *(f"layer.{layer}" for layer in range(num_layers)), "head")
    layer, unit, bit = (fault.parameters.get(name) for name in ("layer", "unit", "bit"))
    if isinstance(layer, int) and layer >= num_layers:
        message = f"the model {job.model} has {num_layers} layers: choose 0 to {num_layers - 1}"
        problems.add((*where, "layer"), message, rests_on=[_MODEL])
    if isinstance(unit, str) and unit not in units:
        message = f"the model {job.model} has no unit {shown(unit)}: there are embedding, layer.0 to {units[-2]}, head"
        problems.add((*where, "unit"), message, nearest(unit, units), rests_on=[_MODEL])
    if isinstance(bit, int) and bit > _HIGHEST_BIT:
        message = f"parameters, gradients and the rest have 32 bits each: choose 0 to {_HIGHEST_BIT}"
        problems.add((*where, "bit"), message)


def _about_save(fault: FaultSpec, kind: type[Fault[Any]], job: Job | CommandJob) -> str | None:
    """A moment within a save is seen in a script that `chaos` starts."""
    moment = fault.at.in_save
    if moment is None:
        return None
    if isinstance(job, Job):
        return f"{moment} is of the saves of a training script of your own: of the built-in job write phase=checkpoint"
    if moment.num_bytes is not None and (kind.acts_inside or kind.exclusive == RUNNING):
        return f"{moment} stops the process from outside, and {fault.kind} needs one that runs: write after=file"
    return None


def _about_phase(fault: FaultSpec, job: Job | CommandJob) -> str | None:
    if isinstance(job, Job):
        if fault.at.at_seconds is None and fault.at.phase in SNAPSHOT_PHASES:
            return _about_snapshots(fault, job)
        return _about_checkpoints(fault, job) if fault.at.phase == "checkpoint" else None
    if fault.at.at_seconds is not None or fault.at.phase in job.phases:
        return None
    return f"the phases that can be seen in a script that was not changed are {', '.join(job.phases)}"


def _about_checkpoints(fault: FaultSpec, job: Job) -> str | None:
    violation = job.violation_about_checkpoint_of(fault.at.step)
    if violation is not None or job.checkpoint is None:
        return violation
    every_steps = job.checkpoint.every_steps
    if fault.rate is not None:
        instead = f"write {setting('every', f'{every_steps}steps')} instead"
        return f"a rate draws any step, but only every {every_steps}th writes a checkpoint: {instead}"
    if fault.every is not None and (fault.every.steps or 0) % every_steps:
        return f"every {fault.every} hits steps that write no checkpoint: choose a multiple of {every_steps}"
    return None


def _about_snapshots(fault: FaultSpec, job: Job) -> str | None:
    violation = job.violation_about_snapshot_of(fault.at.step, is_encoded=fault.at.phase == "encode")
    if violation is not None or job.snapshots is None:
        return violation
    every_steps = job.snapshots.every
    if every_steps == "auto":
        # What is copied shows when it is.
        return None
    if every_steps > 1 and fault.rate is not None:
        instead = f"write {setting('every', f'{every_steps}steps')} instead"
        return f"a rate draws any step, but only every {every_steps}th is copied: {instead}"
    if fault.every is not None and (fault.every.steps or 0) % every_steps:
        return f"every {fault.every} hits steps without a snapshot: choose a multiple of {every_steps}"
    return None


def _about_target(
    fault: FaultSpec,
    kind: type[Fault[Any]],
    target: ResolvedTarget,
    job: Job | CommandJob,
    where: KeyPath,
    problems: Problems,
) -> None:
    if job.traits.restarts_by_launcher and fault.repair not in (None, "none"):
        problems.add((*where, "repair"), NO_REPAIR)
    if target.role is None:
        return
    if target.role not in job.roles:
        message = f"a job of the runtime {job.runtime} has no {target.role}: there is {', '.join(job.roles)}"
        problems.add((*where, "on"), message)
    elif fault.repair is not None and kind.is_loss and not job.traits.restarts_by_launcher:
        message = f"the {target.role} is started again by itself, at once: leave {setting('repair')} out"
        problems.add((*where, "repair"), message)
