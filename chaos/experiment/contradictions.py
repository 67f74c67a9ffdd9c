"""What cannot be in an experiment although every value in it by itself can."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from chaos.errors import UsageError, nearest, shown
from chaos.experiment.command_job import PHASES_OF_A_COMMAND, CommandJob, ranks_of_command, refusal
from chaos.experiment.experiment import Experiment
from chaos.experiment.fault_spec import FaultSpec
from chaos.experiment.job import ROLES_OF_RUNTIME, Job
from chaos.spec.quantities import bytes_text
from chaos.spec.target import ResolvedTarget, resolve
from chaos.spec.validation_errors import Source
from chaos.spec.yaml_lines import KeyPath
from mecefo_runtime.job.config import PRESETS
from mecefo_runtime.planners import stops_on_loss

if TYPE_CHECKING:
    from chaos.faults.base import Fault


# Less than any process takes that has torch in it.
_MIN_NODE_BYTES = 64 * 2**20
# Our runtime keeps all of them in fp32.
_HIGHEST_BIT = 31


def contradictions(experiment: Experiment, kinds: Mapping[str, type[Fault[Any]]], source: Source) -> list[UsageError]:
    """All of them, each where it was said; `kinds` are the faults there are, by kind."""
    job = experiment.job
    try:
        cluster = experiment.cluster()
    except UsageError as error:
        return [source.placed(error, ("job",))]
    problems = _about_backend(experiment, source)
    hidden_size = PRESETS[job.model].hidden_size if isinstance(job, Job) else 0
    if isinstance(job, Job) and job.approximation.rank > hidden_size:
        message = f"rank {job.approximation.rank} is more than the model's hidden size: choose 1 to {hidden_size}"
        problems.append(source.problem(("job", "approximation", "rank"), message))
    for index, fault in enumerate(experiment.faults):
        where: KeyPath = ("faults", index)
        kind = kinds[fault.kind]
        problems += _about_time(fault, kind, job, where, source)
        if isinstance(job, Job):
            problems += _about_model(fault, job, where, source)
        try:
            target = resolve(fault.on, cluster, kind.scope, Random(0), nodes_per_rack=job.nodes_per_rack)
        except UsageError as error:
            if isinstance(job, CommandJob) and ranks_of_command(job.command) == (None, None):
                error = UsageError(f"{error.message}; the command does not tell: nodes and gpus_per_node do")
            problems.append(source.placed(error, (*where, "on")))
            continue
        problems += _about_target(fault, kind, target, job, where, source)
    return problems


def _about_backend(experiment: Experiment, source: Source) -> list[UsageError]:
    problems = []
    is_in_containers = experiment.backend == "docker"
    if is_in_containers and isinstance(experiment.job, CommandJob) and (why := experiment.job.why_not_on_nodes()):
        problems.append(source.problem(("job", "nodes"), why))
    if is_in_containers and experiment.network != "auto":
        message = "every container has a network of its own: leave it on auto"
        problems.append(source.problem(("network",), message))
    memory_bytes = experiment.containers.memory
    if memory_bytes is not None and memory_bytes < _MIN_NODE_BYTES:
        message = f"must be at least {bytes_text(_MIN_NODE_BYTES)}: a rank with torch in it takes more than that"
        problems.append(source.problem(("containers", "memory"), message))
    if not is_in_containers and experiment.containers != type(experiment.containers)():
        said = next(iter(experiment.containers.model_dump(exclude_defaults=True)))
        problems.append(source.problem(("containers", said), "says what containers are: add --backend docker"))
    return problems


def _about_time(
    fault: FaultSpec, kind: type[Fault[Any]], job: Job | CommandJob, where: KeyPath, source: Source
) -> list[UsageError]:
    problems = []
    if isinstance(job, Job) and kind.is_loss and fault.repair == "none" and stops_on_loss(job.strategy):
        message = (
            f"with the strategy {job.strategy} the job starts again when all ranks are back: it would wait for ever"
        )
        problems.append(source.problem((*where, "repair"), message))
    step = fault.at.step
    if step is not None and job.steps is not None and step > job.steps:
        message = (
            f"step={step}, but the job has {job.steps} steps: choose a step from 1 to {job.steps}, or raise --steps"
        )
        problems.append(source.problem((*where, "at", "step"), message))
    if violation := _about_phase(fault, job):
        problems.append(source.problem((*where, "at", "phase"), violation))
    is_of_checkpoints = kind.scope == "checkpoint"
    if isinstance(job, Job) and is_of_checkpoints and (violation := job.violation_about_checkpoint_before(step)):
        problems.append(source.problem((*where, "at", "step"), violation))
    parameters = kind.Parameters.model_validate(fault.parameters)
    phases = kind.phases_for(parameters)
    if step is not None and phases is not None and fault.at.phase not in phases:
        message = f"is too late in a step for {fault.kind} to have an effect in it: choose {', '.join(phases)}"
        problems.append(source.problem((*where, "at", "phase"), message))
    if fault.lifetime is not None and not (kind.has_lifetime and kind(parameters).lasts()):
        why = "it is over at once: leave for out"
        if kind.is_loss:
            why = "whom it strikes is gone until the repair: write repair"
        problems.append(source.problem((*where, "for"), f"{fault.kind} has no lifetime: {why}"))
    if fault.repair is not None and not kind.is_loss and isinstance(job, Job):
        why = "it is over at once: leave repair out"
        if kind.has_lifetime and kind(parameters).lasts():
            why = "whom it strikes is not gone: for says how long it goes on, such as 30s or 10steps"
        problems.append(source.problem((*where, "repair"), f"{fault.kind} has no repair: {why}"))
    lifetime, longest_seconds = fault.lifetime or kind.default_lifetime, kind.longest_seconds(parameters)
    if lifetime is not None and longest_seconds is not None and (lifetime.seconds or 0.0) > longest_seconds:
        message = f"{fault.kind} is to go on for {lifetime}, but ends by itself after {longest_seconds:g}s"
        problems.append(source.problem((*where, "for"), f"{message}: choose a shorter for, or a larger at_most"))
    return problems


def _about_model(fault: FaultSpec, job: Job, where: KeyPath, source: Source) -> list[UsageError]:
    """What no rank has, whoever holds which layers."""
    num_layers = PRESETS[job.model].num_layers
    units = ("embedding", *(f"layer.{layer}" for layer in range(num_layers)), "head")
    layer, unit, bit = (fault.parameters.get(name) for name in ("layer", "unit", "bit"))
    problems = []
    if isinstance(layer, int) and layer >= num_layers:
        message = f"the model {job.model} has {num_layers} layers: choose 0 to {num_layers - 1}"
        problems.append(source.problem((*where, "layer"), message))
    if isinstance(unit, str) and unit not in units:
        message = f"the model {job.model} has no unit {shown(unit)}: there are embedding, layer.0 to {units[-2]}, head"
        problems.append(source.problem((*where, "unit"), message, nearest(unit, units)))
    if isinstance(bit, int) and bit > _HIGHEST_BIT:
        message = f"parameters, gradients and the rest have 32 bits each: choose 0 to {_HIGHEST_BIT}"
        problems.append(source.problem((*where, "bit"), message))
    return problems


def _about_phase(fault: FaultSpec, job: Job | CommandJob) -> str | None:
    if isinstance(job, Job):
        return _about_checkpoints(fault, job) if fault.at.phase == "checkpoint" else None
    if fault.at.at_seconds is not None or fault.at.phase in PHASES_OF_A_COMMAND:
        return None
    return f"the phases that can be seen in a script that was not changed are {', '.join(PHASES_OF_A_COMMAND)}"


def _about_checkpoints(fault: FaultSpec, job: Job) -> str | None:
    violation = job.violation_about_checkpoint_of(fault.at.step)
    if violation is not None or job.checkpoint is None:
        return violation
    every_steps = job.checkpoint.every_steps
    if fault.rate is not None:
        return f"a rate draws any step, but only every {every_steps}th writes a checkpoint: write every instead"
    if fault.every is not None and (fault.every.steps or 0) % every_steps:
        return f"every {fault.every} comes to steps that write no checkpoint: choose a multiple of {every_steps}"
    return None


def _about_target(
    fault: FaultSpec,
    kind: type[Fault[Any]],
    target: ResolvedTarget,
    job: Job | CommandJob,
    where: KeyPath,
    source: Source,
) -> list[UsageError]:
    problems = []
    if isinstance(job, CommandJob) and fault.repair not in (None, "none"):
        problems.append(source.problem((*where, "repair"), refusal("repair")))
    if target.role is None:
        return problems
    roles = ROLES_OF_RUNTIME.get(job.runtime)
    if roles is not None and target.role not in roles:
        message = f"a job of the runtime {job.runtime} has no {target.role} of its own: there is {', '.join(roles)}"
        problems.append(source.problem((*where, "on"), message))
    elif fault.repair is not None and kind.is_loss and isinstance(job, Job):
        message = f"the {target.role} is started again by itself, at once: leave repair out"
        problems.append(source.problem((*where, "repair"), message))
    return problems
