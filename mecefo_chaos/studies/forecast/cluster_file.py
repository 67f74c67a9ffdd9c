"""The file that `chaos forecast` reads: a cluster, what trains on it, how it fails, as one frozen value.

All mistakes in a file are told at once, each with its line, its key and the nearest valid word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from chaos.errors import UsageError, all_of, nearest, shown
from chaos.language.validation_errors import Problems, Source, explain
from chaos.language.yaml_lines import Mistake, read
from chaos.user_files import read_input
from mecefo_chaos.studies.forecast.cluster_schema import (
    BEST,
    MOST_RANKS,
    Burst,
    ClusterFile,
    ClusterShape,
    FailureSpec,
    Group,
    RecoverySpec,
    SavingSpec,
    SnapshotSpec,
    Training,
)
from mecefo_chaos.studies.forecast.failures import read_trace
from mecefo_chaos.studies.forecast.masking import MASKING, job_of_groups, most_redundancy
from mecefo_chaos.studies.forecast.model import Failures, JobModel, Policy, Recovery, Saving
from mecefo_chaos.studies.forecast.strategies import OF_GROUPS, all_policies
from mecefo_runtime.job.layout import Cluster, LayoutError
from mecefo_runtime.planners import goes_back_to
from mecefo_runtime.prediction.device_model import DeviceModel, DeviceModelError, parse_device_model
from mecefo_runtime.prediction.named_devices import NAMES, named_device

_KEYS: Mapping[tuple[str, ...], Collection[str]] = {
    (): tuple(ClusterFile.model_fields),
    ("group",): tuple(Group.model_fields),
    ("cluster",): tuple(ClusterShape.model_fields),
    ("training",): tuple(Training.model_fields),
    ("failures",): tuple(FailureSpec.model_fields),
    ("failures", "burst"): tuple(Burst.model_fields),
    ("recovery",): tuple(RecoverySpec.model_fields),
    ("checkpoint",): tuple(SavingSpec.model_fields),
    ("snapshot",): tuple(SnapshotSpec.model_fields),
}


class Question:
    """A file that makes sense: its parts as the forecast takes them. A checkpoint's `interval` may be BEST."""

    def __init__(self, said_file: ClusterFile, job: JobModel, device: DeviceModel | None, failures: Failures) -> None:
        self.file = said_file
        self.job = job
        # None: what computes is said by `group`.
        self.device = device
        self.failures = failures
        times = said_file.recovery
        saving, snapshot = said_file.checkpoint, said_file.snapshot
        self.wants_best_interval = saving is not None and saving.interval == BEST and saving.save > 0
        self.recovery = Recovery(
            detection_seconds=times.detection,
            regroup_seconds=times.regroup,
            first_step_seconds=times.first_step,
            restart_seconds=times.restart,
            replacement_seconds=times.replacement,
            checkpoint=None if saving is None else Saving(_seconds(saving), saving.save, saving.restore),
            snapshot=None if snapshot is None else snapshot.by_chance(),
            memory=None if snapshot is None else snapshot.of_runtime(),
        )
        by_default = all_policies(has_snapshots=snapshot is not None, of_groups=said_file.group is not None)
        self.policies = tuple(said_file.strategies or by_default)

    def recovery_of(self, policy: Policy, recovery: Recovery) -> Recovery:
        """What of `recovery` the strategy has: one that goes back to checkpoints takes no snapshots."""
        has_none = goes_back_to(policy.name) == "checkpoint"
        return replace(recovery, snapshot=None, memory=None) if has_none else recovery


def _seconds(saving: SavingSpec) -> float:
    # Before the best one is sought, and where saving costs nothing.
    return 600.0 if isinstance(saving.interval, str) else saving.interval


def load(path: Path) -> Question:
    """Read a cluster file.

    Raises:
        UsageError: it cannot be read or does not make sense; all mistakes at once, with their lines.
    """
    mistakes: list[Mistake] = []
    if path.is_file() and not path.stat().st_size:
        raise UsageError("the file is empty: `chaos forecast --example` prints one", path=str(path))
    document = read(path, mistakes)
    source = Source(document.path, document.lines)
    problems = Problems(source, mistakes)
    try:
        found = ClusterFile.model_validate(document.values)
    except ValidationError as error:
        for where, mistake in explain(error, source, _KEYS):
            problems.note(where, mistake)
        raise all_of(problems.errors) from error
    if problems.errors:
        raise all_of(problems.errors)
    _about_snapshots(found, problems)
    if found.group is None:
        device = _device(found, path.parent, problems)
        cluster = _cluster(found, device, problems)
        job = None if device is None or cluster is None else _job(device, cluster)
    else:
        device, job = None, _job_of_groups(found, found.group, problems)
        cluster = None if job is None else job.cluster
    if cluster is not None:
        _about_redundancy(found, cluster.data_parallel, problems)
    failures = _failures(found, cluster, path.parent, problems)
    if job is None or failures is None or problems.errors:
        raise all_of(problems.errors)
    try:
        return Question(found, job, device, failures)
    except ValueError as error:
        raise UsageError(f"this cannot be simulated: {error}", path=str(path)) from error


def _job(device: DeviceModel, cluster: Cluster) -> JobModel:
    return JobModel(
        cluster,
        device.costs,
        tokens_per_step=cluster.num_microbatches * device.tokens_per_microbatch,
        link=device.links.between_nodes,
        activation_bytes=device.message_bytes,
    )


def _job_of_groups(found: ClusterFile, group: Group, problems: Problems) -> JobModel | None:
    """A job in which a group is a rank: alone in its replica, and on a node of its own."""
    if found.device is not None:
        problems.add(("device",), "what computes is said by `group`: leave one of the two out")
    for key in ("nodes", "gpus_per_node", "pipeline"):
        if getattr(found.cluster, key) is not None:
            problems.add(("cluster", key), "groups are units here: say how many there are by `data_parallel` alone")
    for key in ("sequence_length", "microbatch_size"):
        if getattr(found.training, key) is not None:
            problems.add(
                ("training", key), "is a device's: say what a group trains on in a step by `tokens` of `group`"
            )
    for index, policy in enumerate(found.strategies or ()):
        if policy.name not in OF_GROUPS:
            message = f"{policy.name} works inside of groups: name {', '.join(OF_GROUPS)}, or describe the ranks"
            problems.add(("strategies", index), message)
    num_groups = found.cluster.data_parallel
    if num_groups * group.gpus > MOST_RANKS:
        problems.add(("group", "gpus"), f"{num_groups * group.gpus} GPUs are more than there are: at most {MOST_RANKS}")
    if problems.errors:
        return None
    return job_of_groups(
        num_groups,
        found.training.microbatches_per_replica,
        group.compute,
        group.reduction,
        group.fetch,
        num_groups * group.tokens,
    )


def _about_redundancy(found: ClusterFile, num_groups: int, problems: Problems) -> None:
    for index, policy in enumerate(found.strategies or ()):
        if policy.name in MASKING and policy.redundancy is not None:
            most = most_redundancy(policy.name, num_groups)
            if policy.redundancy > most:
                message = f"{num_groups} groups hold a shard {most} times at most, not {policy.redundancy} times"
                problems.add(("strategies", index), message)


def _about_snapshots(found: ClusterFile, problems: Problems) -> None:
    snapshot = found.snapshot
    if snapshot is None:
        for index, policy in enumerate(found.strategies or ()):
            if goes_back_to(policy.name) == "snapshots":
                message = f"{policy.name} goes back to snapshots: say what they take under `snapshot`"
                problems.add(("strategies", index), message)
        return
    said_here = snapshot.model_fields_set
    if snapshot.protection is not None and "survives" in said_here:
        message = "what `protection` bears says it: leave one of the two out"
        problems.add(("snapshot", "survives"), message)
    for key in ("group", "nodes_per_rack", "complete", "rebuild"):
        if snapshot.protection is None and key in said_here:
            problems.add(("snapshot", key), "is of snapshots as the runtime takes them: add `protection`")


def _device(found: ClusterFile, folder: Path, problems: Problems) -> DeviceModel | None:
    name, training = found.device, found.training
    if name is None:
        problems.add((), "say what computes: a `device`, or a `group` as a unit")
        return None
    if name in NAMES:
        return named_device(name, sequence_length=training.sequence_length, microbatch_size=training.microbatch_size)
    path = folder / name
    if "/" not in name and not path.is_file():
        message = f"there is no device {shown(name)}: name {', '.join(NAMES)}, or a file of `chaos calibrate --out`"
        problems.add(("device",), message, nearest(name, NAMES))
        return None
    try:
        device = parse_device_model(read_input(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        problems.add(("device",), f"cannot read {path}: {reason}")
        return None
    except DeviceModelError as error:
        problems.add(("device",), f"{path} is no device model: {error}")
        return None
    for key in ("sequence_length", "microbatch_size"):
        wanted = getattr(training, key)
        if wanted is not None and wanted != getattr(device, key):
            message = f"{wanted} is not what {name} was measured with: {getattr(device, key)}"
            problems.add(("training", key), message)
    return device


def _cluster(found: ClusterFile, device: DeviceModel | None, problems: Problems) -> Cluster | None:
    shape = found.cluster
    if shape.nodes is None or shape.gpus_per_node is None or shape.pipeline is None:
        missing = [key for key in ("nodes", "gpus_per_node", "pipeline") if getattr(shape, key) is None]
        problems.add(("cluster",), f"say {', '.join(missing)}, too")
        return None
    num_ranks = shape.nodes * shape.gpus_per_node
    if num_ranks > MOST_RANKS:
        problems.add(("cluster",), f"{num_ranks} ranks are more than there are anywhere: at most {MOST_RANKS}")
        return None
    if device is None:
        return None
    try:
        return Cluster(
            nodes=shape.nodes,
            gpus_per_node=shape.gpus_per_node,
            data_parallel=shape.data_parallel,
            pipeline=shape.pipeline,
            num_layers=device.config.num_layers,
            num_microbatches=shape.data_parallel * found.training.microbatches_per_replica,
        )
    except LayoutError as error:
        problems.add(("cluster",), str(error))
        return None


def _failures(found: ClusterFile, cluster: Cluster | None, folder: Path, problems: Problems) -> Failures | None:
    said_failures, burst = found.failures, found.failures.burst
    if (said_failures.every is None) == (said_failures.trace is None):
        problems.add(("failures",), "say either how often: `every: 3h`, or what happened: `trace: failures.csv`")
        return None
    if burst is not None and burst.share >= 0.95:
        problems.add(("failures", "burst", "share"), f"a share of {burst.share:g} has no end: write less than 0.95")
        return None
    if said_failures.trace is not None:
        if cluster is None:
            return None
        try:
            trace = read_trace(folder / said_failures.trace, cluster, said_failures.repair)
        except UsageError as error:
            problems.errors.append(error)
            return None
        return Failures(repair_seconds=said_failures.repair, trace=trace)
    assert said_failures.every is not None
    return Failures(
        interval_seconds=said_failures.every,
        repair_seconds=said_failures.repair,
        shape=said_failures.shape,
        unit=said_failures.takes,
        per_unit=said_failures.of == "unit",
        burst_ratio=0.0 if burst is None else burst.share,
        burst_seconds=60.0 if burst is None else burst.within,
    )


EXAMPLE = """\
# A cluster file for `chaos forecast`. Times are written 30s, 15min or 2h.
name: high
# a100-7b, a100-1b, a100-350m, or a file that `chaos calibrate --out` wrote.
device: a100-7b
cluster: {nodes: 4, gpus_per_node: 8, data_parallel: 8, pipeline: 4}
training: {microbatches_per_replica: 16, steps: 60000}
failures:
  every: 30min          # on average, somewhere in the cluster (of: cluster), or of each unit by itself (of: unit)
  repair: 2h
  takes: rank           # or node
  shape: 1              # of the Weibull distribution; 1 is a Poisson process, less comes in clusters
  # burst: {share: 0.03, within: 60s}
  # trace: failures.csv # instead of `every`: columns time,node,repair, in seconds
recovery:
  detection: 2s
  regroup: 1s
  restart: 5min         # of strategies that start all ranks again
  replacement: 10min    # after which they have a spare; without it they wait for the repair
checkpoint: {save: 30s, restore: 60s, interval: best}
# In the nodes' memory, as the runtime takes them (for `reft`); or without `protection` by chance: survives: 0.95.
# snapshot: {save: 0.1s, interval: 30s, complete: 10s, restore: 10s, rebuild: 20s, protection: xor, group: 4}
# strategies: [mecefo, {name: mecefo, quality: 0.25}, {name: spare, redundancy: 4}, checkpoint, reft]
# degraded_sample_worth: 0.35
# projected_sample_worth: 0.9
"""
