"""What can be refused before anything is started: all of it at once; and what is warned of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.errors import UsageError, all_of, setting
from chaos.experiment.command_job import CommandConfig, CommandJob, check_command
from chaos.experiment.experiment import Experiment
from chaos.faults import registry
from chaos.faults.base import RunContext
from chaos.plan.incident import Incident, Plan
from chaos.plan.needs import Unmet, capabilities_of, check_needs
from chaos.plan.schedule import make_plan
from harness.analysis.words import count, name_bytes
from harness.backends.base import AnyConfig, kind_of
from harness.judging.early_end import check_gates
from harness.judging.gates import GateError, HaltCondition
from harness.node.node import Node
from mecefo_runtime.checkpoint.durable import MismatchedCheckpoint, newest_durable
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import LayoutError
from mecefo_runtime.model.data import DataError, read_corpus
from mecefo_runtime.prediction.device_model import rescaled
from mecefo_runtime.system.dilation import NO_DILATION, automatic_ratio

IsSound = Callable[..., bool]
"""Whether nothing was found wrong with any of some keys of the experiment."""

# A process with torch in it has more than that to itself: one of the smallest model has 28 MiB (measured).
_MIN_RANK_BYTES = 24 * 2**20
# Parameters, gradients and both moments of the optimizer, in fp32.
_STATE_BYTES_PER_PARAMETER = 16
# Ranks for each core, above which a run says more of the machine than of the job. The default job has 4 on two cores.
_MANY_RANKS_PER_CORE = 16
# Ranks of an emulated device are many on few cores: above this, signs of life are waited for so much longer, if it is
# not said how long.
_FEW_RANKS_PER_CORE = 4


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an experiment comes to on this machine: the job, the incidents, and what is unwise about it."""

    job: AnyConfig
    plan: Plan
    warnings: tuple[str, ...] = ()


def check(experiment: Experiment) -> tuple[AnyConfig, tuple[Incident, ...]]:
    """The job and the incidents of `experiment`.

    Raises:
        UsageError: the experiment cannot be run, and why.
    """
    prepared = prepare(experiment)
    return prepared.job, prepared.plan.incidents


def prepare(experiment: Experiment) -> Prepared:
    """Everything that can be refused before anything is started.

    Raises:
        UsageError: the experiment cannot be run, and all that is against it.
    """
    return _sound(*_examine(experiment, lambda *keys: True))


def violations(experiment: Experiment, is_sound: IsSound) -> list[UsageError]:
    """What `prepare` would refuse besides, of an experiment of which some is wrong already."""
    return _examine(experiment, is_sound)[1]


def prepare_anywhere(experiment: Experiment) -> Prepared:
    """As `prepare`, of what is true on every machine: neither data and programs nor networks, GPUs and memory count.

    Raises:
        UsageError: the experiment could be run nowhere.
    """
    return _sound(*_examine(experiment, lambda *keys: True, is_here=False))


def violations_anywhere(experiment: Experiment, is_sound: IsSound) -> list[UsageError]:
    """What `prepare_anywhere` would refuse besides; see `violations`."""
    return _examine(experiment, is_sound, is_here=False)[1]


def _sound(prepared: Prepared | None, problems: list[UsageError]) -> Prepared:
    if prepared is None or problems:
        raise all_of(problems)
    return prepared


def _examine(
    experiment: Experiment, is_sound: IsSound, *, is_here: bool = True
) -> tuple[Prepared | None, list[UsageError]]:
    """What the experiment comes to, and what is wrong with it: on this machine (`is_here`), or on any."""
    problems = _conditions(experiment, is_sound)
    node = kind_of(experiment.nodes_on).machine()
    job: AnyConfig | None = None
    plan: Plan | None = None
    if is_sound("job", "backend"):
        with _collecting(problems):
            job = _at_a_pace(experiment, node, is_here=is_here)
    warnings = _examine_machine(experiment, job, node, is_sound, problems) if is_here else []
    if job is None:
        return None, problems
    if is_sound("faults", "limits", "profile", "seed", "network"):
        with _collecting(problems):
            capabilities = _capabilities(experiment, job, node if is_here else None)
            plan = make_plan(experiment, job.cluster(), capabilities=capabilities)
            with _collecting(problems):
                _check_needs(plan, experiment, capabilities, node)
            _check_faults(plan, job, experiment, node)
    return None if plan is None else Prepared(job, plan, tuple(warnings)), problems


def _examine_machine(
    experiment: Experiment, job: AnyConfig | None, node: Node, is_sound: IsSound, problems: list[UsageError]
) -> list[str]:
    """What is unwise on the machine `node`; what cannot be done on it is added to `problems`."""
    warnings: list[str] = []
    if experiment.network == "namespaces" and (reason := node.why_no_networks()) is not None:
        problems.append(UsageError(reason, key="network"))
    if isinstance(experiment.job, CommandJob):
        if isinstance(job, CommandConfig):
            with _collecting(problems):
                check_command(job, is_in_containers=experiment.nodes_on.has_own_files)
    elif is_sound("job.data", "job.sequence_length"):
        with _collecting(problems):
            _check_data(experiment.job.data, experiment.job.sequence_length)
    if job is None:
        return warnings
    if not experiment.nodes_on.spans_hosts:
        with _collecting(problems):
            warnings += _check_machine(job, experiment, node)
    if job.checkpoint is not None and job.checkpoint.folder:
        with _collecting(problems):
            _check_checkpoint_folder(Path(job.checkpoint.folder))
            if isinstance(job, JobConfig) and job.checkpoint.resume:
                newest_durable(job)
    return warnings


@contextmanager
def _collecting(problems: list[UsageError]) -> Iterator[None]:
    """What is refused meanwhile is added to `problems`."""
    try:
        yield
    except UsageError as error:
        problems += error.problems
    except (LayoutError, MismatchedCheckpoint) as error:
        problems.append(UsageError(str(error)))


def _check_data(data: str | None, sequence_length: int) -> None:
    try:
        read_corpus(data, sequence_length=sequence_length)
    except DataError as error:
        raise UsageError(str(error), key="job.data") from error


def _check_checkpoint_folder(folder: Path) -> None:
    key = "job.checkpoint.folder"
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
        if not there.is_dir():
            raise UsageError(f"{there} is not a folder: name one that is, or that can be made", key=key)
        if there == folder:
            os.scandir(folder).close()
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror}", key=key) from error


def _check_machine(job: AnyConfig, experiment: Experiment, node: Node) -> list[str]:
    """Warnings about the number of ranks on the machine `node`.

    Raises:
        UsageError: its memory cannot hold them.
    """
    machine, num_ranks = node.capabilities(), job.cluster().num_ranks
    num_cores, memory_bytes = machine.num_cores, machine.memory_bytes
    wanted_bytes = num_ranks * _MIN_RANK_BYTES
    if job.device == "cpu" or not node.num_gpus():
        wanted_bytes += job.num_held_parameters * _STATE_BYTES_PER_PARAMETER
    if not job.traits.is_user_script or num_ranks > 1:
        has = f"this machine has {count(num_cores, 'core')} and {name_bytes(memory_bytes)} of memory"
        if wanted_bytes > memory_bytes:
            fewer = f"{setting('job.nodes')}, {setting('job.gpus_per_node')}"
            model = "" if job.traits.is_user_script else f" or {setting('job.model')}"
            raise UsageError(
                f"{count(num_ranks, 'rank')} take {name_bytes(wanted_bytes)} of memory or more, and {has}: "
                f"choose a smaller {fewer}{model}",
                key=_said_of_size(experiment),
            )
        if num_ranks > _MANY_RANKS_PER_CORE * num_cores:
            return [
                f"{count(num_ranks, 'rank')} share few cores, and {name_bytes(wanted_bytes)} of memory or "
                f"more: {has}. Expect long steps, and timeouts that look like losses"
            ]
    return []


def _said_of_size(experiment: Experiment) -> str:
    """Where it was said how many ranks there are."""
    job = experiment.job
    return "job.gpus_per_node" if (job.gpus_per_node or 1) > (job.nodes or 1) else "job.nodes"


def _capabilities(experiment: Experiment, job: AnyConfig, node: Node | None) -> frozenset[str]:
    """What faults can count on: what the experiment offers, and the machine `node`, or where it is None any."""
    is_divided = experiment.nodes_on.divides_network and experiment.network != "loopback"
    of_machine = {
        "root": node is None or node.capabilities().is_root,
        "cuda": job.device != "cpu" and (node is None or node.num_gpus() > 0),
        "links": is_divided and _may_need_links(experiment) and (node is None or node.why_no_networks() is None),
    }
    return capabilities_of(experiment) | {need for need, is_there in of_machine.items() if is_there}


def _may_need_links(experiment: Experiment) -> bool:
    """Whether it matters that ranks have links: to find out takes a moment."""
    kinds = registry()
    return experiment.profile is not None or any("links" in kinds[fault.kind].needs for fault in experiment.faults)


def _conditions(experiment: Experiment, is_sound: IsSound) -> list[UsageError]:
    """What is wrong with the gates and halt conditions that cannot be understood."""
    problems = []
    for index, gate in enumerate(experiment.gates):
        try:
            is_alone = not experiment.job.traits.has_baseline_beside
            is_started_once = is_alone and experiment.nodes_on.starts_command_on_each_node
            has_baseline = experiment.twin or not is_sound("twin")
            check_gates([gate], has_baseline=has_baseline, can_have_baseline=not is_started_once)
        except GateError as error:
            problems.append(UsageError(str(error), key=f"gates[{index}]"))
    for index, condition in enumerate(experiment.halt):
        try:
            HaltCondition.parse(condition)
        except GateError as error:
            problems.append(UsageError(str(error), key=f"halt[{index}]"))
    return problems


def _check_needs(plan: Plan, experiment: Experiment, capabilities: frozenset[str], node: Node) -> None:
    """Let faults pass that have what they need.

    Raises:
        UsageError: some have not; each of those at once, where it is said first.
    """
    kinds = registry()
    first_keys: dict[str, str] = {}
    for incident, key in zip(plan.incidents, plan.keys, strict=True):
        first_keys.setdefault(incident.fault, key)
    problems = []
    for fault, key in first_keys.items():
        for violation in check_needs({fault: kinds[fault].needs}, capabilities):
            problems.append(UsageError(_with_reason(violation, experiment, node), key=key))
    if problems:
        raise all_of(problems)


def _with_reason(violation: Unmet, experiment: Experiment, node: Node) -> str:
    """A violation about links says why there are none."""
    if "links" not in violation.needs:
        return violation.message
    nodes = experiment.nodes_on
    if not nodes.divides_network:
        return f"{violation.message}, which {nodes.nodes} have not: choose another {setting('backend')}"
    is_shared_by_choice = experiment.network == "loopback"
    loopback = f"with {setting('network', 'loopback')} they share one: leave it out"
    reason = loopback if is_shared_by_choice else node.why_no_networks()
    return f"{violation.message}, and {reason}"


def _check_faults(plan: Plan, job: AnyConfig, experiment: Experiment, node: Node) -> None:
    """Let every fault refuse what it can know to be impossible.

    Raises:
        UsageError: one of them does.
    """
    folder = Path(job.checkpoint.folder) if job.checkpoint is not None and job.checkpoint.folder else None
    nodes = experiment.nodes_on
    run = RunContext(
        job.cluster(),
        folder,
        sees_mounts=not nodes.has_own_files or node.shows_mounts(folder or Path.cwd()),
        ranks_are_hosts=job.traits.is_user_script and nodes.divides_network,
        node_memory_bytes=nodes.node_memory_bytes(experiment.node_settings),
        node_memory_key=nodes.node_memory_key,
        keeps_own_checkpoints=job.traits.keeps_own_checkpoints,
        nodes_are_hosts=nodes.spans_hosts,
        links_are_connections=nodes.links_are_connections,
    )
    for incident, of_fault in zip(plan.incidents, plan.keys, strict=True):
        kind = registry()[incident.fault]
        try:
            kind(kind.Parameters.model_validate(dict(incident.parameters))).check(incident.target, run)
        except UsageError as error:
            key = of_fault + (f".{error.key}" if error.key else "")
            raise UsageError(error.message, key=key, suggestion=error.suggestion) from error


def _at_a_pace(experiment: Experiment, node: Node, *, is_here: bool = True) -> AnyConfig:
    """The job, with its dilation or, of an emulated device, its time scale, which is measured where it is not said."""
    job, seed, num_cores = experiment.job, experiment.seed, node.capabilities().num_cores
    dilation_ratio = _dilation_ratio(experiment, node)
    if isinstance(job, CommandJob) or job.device_model is None:
        return job.to_config(seed, dilation_ratio)
    config = job.to_config(seed, NO_DILATION, 1.0 if job.time_scale == "auto" else float(job.time_scale))
    if config.heartbeat_timeout_seconds == JobConfig().heartbeat_timeout_seconds:
        ranks_per_core = job.num_ranks / num_cores
        patience_seconds = config.heartbeat_timeout_seconds * max(1.0, ranks_per_core / _FEW_RANKS_PER_CORE)
        config = replace(config, heartbeat_timeout_seconds=patience_seconds)
    if job.time_scale != "auto" or not is_here:
        return config
    # It takes torch, which nobody else here needs.
    from mecefo_runtime.training.carrying import smallest_time_scale

    config = rescaled(config, smallest_time_scale(config, num_cores))
    assert config.emulation is not None
    return replace(config, emulation=replace(config.emulation, is_scale_chosen=True))


def _dilation_ratio(experiment: Experiment, node: Node) -> float:
    """What a rank's CPU time is padded to; a rank that computes on a GPU has none to pad."""
    job = experiment.job
    if isinstance(job, CommandJob):
        return NO_DILATION
    uses_gpus = job.device == "cuda" or (job.device == "auto" and node.num_gpus() > 0)
    if job.pacing == "off" and job.dilation not in ("auto", "off"):
        raise UsageError(
            f"off: compute is not padded, and {setting('job.dilation')} {job.dilation:g} makes it slower: "
            "leave one of the two out",
            key="job.pacing",
        )
    match "off" if job.pacing == "off" else job.dilation:
        case "auto" if not uses_gpus:
            return automatic_ratio(job.nodes * job.gpus_per_node, node.capabilities().num_cores)
        case "auto" | "off":
            return NO_DILATION
        case ratio:
            if uses_gpus and float(ratio) > NO_DILATION:
                raise UsageError(
                    f"{ratio:g} pads CPU time, and the ranks compute on GPUs: leave it on auto, or choose device cpu",
                    key="job.dilation",
                )
            return float(ratio)
