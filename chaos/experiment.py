"""The experiment: which job, which faults, what must hold. What a user writes, checked, as frozen values.

`load` reads a file (`json_schema` says what belongs there), `from_options` a command line, `from_mapping` plain values.
Each judges the experiment as a whole and reports every mistake in it at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_serializer

from chaos.complaints import Source, explain
from chaos.errors import UsageError, all_of, nearest, shown
from chaos.fields import RepairText, Said, TargetText, Text, TriggerText
from chaos.job import Approximation, Checkpoint, Health, Job
from chaos.target import DEFAULT_TARGET, resolve
from chaos.yaml_lines import Dumper, KeyPath, read
from mecefo_runtime.config import PRESETS
from mecefo_runtime.layout import Cluster

if TYPE_CHECKING:
    from chaos.faults.base import Fault

    Registry = Mapping[str, type[Fault[Any]]]


class FaultSpec(Said):
    """One fault: `kind`, `on` whom (default: drawn from the seed), `at` which trigger, `repair` after how long.

    `repair` None is what is usual for the kind, see `chaos.schedule`. `parameters` are the fault's own; in a file they
    stand beside the other keys.
    """

    kind: str
    on: TargetText | None = None
    at: TriggerText
    repair: RepairText | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)

    @model_serializer
    def _to_mapping(self) -> dict[str, Any]:
        given = {"on": self.on, "at": self.at, "repair": self.repair}
        texts = {key: str(value) for key, value in given.items() if value is not None}
        return {"kind": self.kind, **texts, **self.parameters}


class Experiment(Said):
    """One experiment; `gates` and `halt` are expressions that the harness understands."""

    name: Text
    seed: int = Field(default=0, ge=0, lt=2**63)
    job: Job = Job()
    faults: list[FaultSpec] = Field(default_factory=list, max_length=1000)
    gates: list[Text] = Field(default_factory=list)
    halt: list[Text] = Field(default_factory=list)
    twin: bool = True
    backend: Literal["local"] = "local"

    def cluster(self) -> Cluster:
        """The cluster that its job runs on."""
        return self.job.to_config(self.seed, 1.0).cluster()


_FAULT_KEYS = ("kind", "on", "at", "repair")
_KEYS: Mapping[tuple[str, ...], Collection[str]] = {
    (): tuple(Experiment.model_fields),
    ("job",): tuple(Job.model_fields),
    ("job", "approximation"): tuple(Approximation.model_fields),
    ("job", "health"): tuple(Health.model_fields),
    ("job", "checkpoint"): tuple(Checkpoint.model_fields),
}


def load(path: Path, *, registry: Registry | None = None, strategies: Collection[str] | None = None) -> Experiment:
    """Read an experiment file.

    Raises:
        UsageError: it cannot be read or does not make sense; all mistakes at once, with their lines.
    """
    document = read(path)
    return _judge(document.values, Source(document.path, document.lines), registry, strategies)


def from_mapping(
    raw: Mapping[str, Any],
    lines: Mapping[KeyPath, int] | None = None,
    *,
    path: str | None = None,
    registry: Registry | None = None,
    strategies: Collection[str] | None = None,
) -> Experiment:
    """An experiment from plain values; `lines` are their places in the file called `path`.

    `registry` are the faults there are, by kind, and `strategies` the planners; by default, those that are installed.

    Raises:
        UsageError: it does not make sense; all mistakes at once.
    """
    return _judge(raw, Source(path, lines or {}), registry, strategies)


def from_options(
    subject: str,
    options: Mapping[str, Any],
    *,
    registry: Registry | None = None,
    strategies: Collection[str] | None = None,
) -> Experiment:
    """An experiment from a command line: of one fault, or of a file, of which `options` replace what they name.

    `options` are those that were given, by name (`gpus_per_node`, `at`); `gates` are added to the file's.

    Raises:
        UsageError: there is no such fault or file, or it does not make sense; all mistakes at once.
    """
    kinds = _installed_faults() if registry is None else registry
    is_file = subject not in kinds and (subject.endswith((".yaml", ".yml")) or Path(subject).is_file())
    labels: dict[KeyPath, str] = {}
    if is_file:
        document = read(Path(subject))
        values, source = dict(document.values), Source(document.path, document.lines, labels)
    elif subject in kinds:
        values, source = {"name": subject, "faults": [{"kind": subject}]}, Source(options=labels)
        labels[("faults", 0, "at")] = "--at"
    else:
        raise UsageError(
            f"there is no fault {shown(subject)}: there are {', '.join(kinds)}, or write the path of a .yaml file",
            suggestion=nearest(subject, kinds),
        )
    for option, value in options.items():
        if option == "gates":
            gates = values.setdefault("gates", [])
            if isinstance(gates, list):
                labels.update({("gates", len(gates) + index): "--gate" for index in range(len(value))})
                values["gates"] = [*gates, *value]
            continue
        label = f"--{option.replace('_', '-')}"
        where: KeyPath = (option,) if option in Experiment.model_fields else ("job", option)
        if option in _FAULT_KEYS:
            where = ("faults", 0, option)
            faults = values.get("faults")
            if isinstance(faults, list) and len(faults) != 1:
                raise UsageError(
                    f"it is of one fault, but {subject} has {len(faults)}: change it in the file", key=label
                )
        _put(values, where, value)
        labels[where] = label
    return _judge(values, source, registry, strategies)


def experiment_hash(experiment: Experiment) -> str:
    """The identity of an experiment: the same for all files that say the same. 16 hexadecimal digits."""
    canonical = json.dumps(experiment.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def to_yaml(experiment: Experiment) -> str:
    """The experiment as a file that `load` reads again, all defaults written out."""
    values = experiment.model_dump(mode="json", exclude_none=True)
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True)


def json_schema(*, registry: Registry | None = None, strategies: Collection[str] | None = None) -> dict[str, Any]:
    """The JSON Schema (2020-12) of experiment files."""
    schema = Experiment.model_json_schema()
    definitions = schema["$defs"]
    definitions["Job"]["properties"]["strategy"]["enum"] = list(
        _installed_planners() if strategies is None else strategies
    )
    common = definitions["FaultSpec"]["properties"]
    variants = []
    for kind, fault in (_installed_faults() if registry is None else registry).items():
        own = fault.Parameters.model_json_schema()
        definitions.update(own.get("$defs", {}))
        variants.append(
            {
                "type": "object",
                "title": kind,
                "description": (fault.__doc__ or kind).strip().splitlines()[0],
                "properties": {
                    "kind": {"const": kind},
                    **{key: common[key] for key in _FAULT_KEYS if key != "kind"},
                    **own.get("properties", {}),
                },
                "required": ["kind", "at", *own.get("required", [])],
                "additionalProperties": False,
            }
        )
    definitions["FaultSpec"] = {"oneOf": variants}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _judge(
    raw: Mapping[str, Any], source: Source, registry: Registry | None, strategies: Collection[str] | None
) -> Experiment:
    if not isinstance(raw, Mapping):
        raise source.problem((), f"an experiment is a mapping, not {shown(raw)}")
    kinds = _installed_faults() if registry is None else registry
    problems: list[UsageError] = []
    values = dict(raw)
    if isinstance(values.get("faults"), list):
        faults = enumerate(values["faults"])
        values["faults"] = [_gather_parameters(fault, ("faults", i), kinds, source, problems) for i, fault in faults]
    job = values.get("job")
    strategy = job.get("strategy") if isinstance(job, Mapping) else None
    planners = _installed_planners() if strategies is None else strategies
    if isinstance(strategy, str) and strategy not in planners:
        message = f"there is no strategy {shown(strategy)}: there are {', '.join(planners)}"
        problems.append(source.problem(("job", "strategy"), message, nearest(strategy, planners)))
    try:
        experiment = Experiment.model_validate(values)
    except ValidationError as error:
        raise all_of([*problems, *explain(error, source, _KEYS)]) from error
    problems = problems or _contradictions(experiment, kinds, source)
    if problems:
        raise all_of(problems)
    data_parallel, pipeline = experiment.job.shape()
    shaped = experiment.job.model_copy(update={"data_parallel": data_parallel, "pipeline": pipeline})
    return experiment.model_copy(update={"job": shaped})


def _gather_parameters(
    fault: object, where: KeyPath, kinds: Registry, source: Source, problems: list[UsageError]
) -> object:
    """A fault as FaultSpec takes it: whatever is not said of every fault is a parameter of this kind."""
    if not isinstance(fault, Mapping):
        return fault
    common = {key: fault[key] for key in _FAULT_KEYS if key in fault}
    own = {key: value for key, value in fault.items() if key not in _FAULT_KEYS}
    kind = common.get("kind")
    if not isinstance(kind, str):
        return common
    if kind not in kinds:
        message = f"there is no fault {shown(kind)}: there are {', '.join(kinds)}"
        problems.append(source.problem((*where, "kind"), message, nearest(kind, kinds)))
        return common
    parameters = kinds[kind].Parameters
    try:
        return {**common, "parameters": parameters.model_validate(own).model_dump(mode="json")}
    except ValidationError as error:
        problems += explain(error, source, {("faults",): (*_FAULT_KEYS, *parameters.model_fields)}, where)
    except UsageError as error:
        problems.append(source.placed(error, where))
    return common


def _contradictions(experiment: Experiment, kinds: Registry, source: Source) -> list[UsageError]:
    """What cannot be although every value by itself can."""
    job = experiment.job
    try:
        cluster = experiment.cluster()
    except UsageError as error:
        return [source.placed(error, ("job",))]
    problems: list[UsageError] = []
    hidden_size = PRESETS[job.model].hidden_size
    if job.approximation.rank > hidden_size:
        message = f"rank {job.approximation.rank} is more than the model's hidden size: choose 1 to {hidden_size}"
        problems.append(source.problem(("job", "approximation", "rank"), message))
    for index, fault in enumerate(experiment.faults):
        where: KeyPath = ("faults", index)
        step = fault.at.step
        if step is not None and step > job.steps:
            message = (
                f"step={step}, but the job has {job.steps} steps: choose a step from 1 to {job.steps}, or raise --steps"
            )
            problems.append(source.problem((*where, "at", "step"), message))
        if fault.at.phase == "checkpoint" and (complaint := job.complaint_about_checkpoint_of(step)):
            problems.append(source.problem((*where, "at", "phase"), complaint))
        try:
            target = resolve(fault.on or DEFAULT_TARGET, cluster, kinds[fault.kind].scope, Random(0))
        except UsageError as error:
            problems.append(source.placed(error, (*where, "on")))
            continue
        if target.role is not None and fault.repair is not None:
            message = f"the {target.role} is started again by itself, at once: leave repair out"
            problems.append(source.problem((*where, "repair"), message))
    return problems


def _put(values: dict[str, Any], where: KeyPath, value: object) -> None:
    """Set the value at `where`, making the mappings on the way; what is no mapping is left to be refused as such."""
    place: Any = values
    for part in where[:-1]:
        if isinstance(place, dict) and isinstance(part, str):
            place = place.setdefault(part, {})
        elif isinstance(place, list) and isinstance(part, int) and part < len(place):
            place = place[part]
    if isinstance(place, dict):
        place[str(where[-1])] = value


def _installed_faults() -> Registry:
    from chaos.faults import registry

    return registry()


def _installed_planners() -> Collection[str]:
    from mecefo_runtime.planners import names

    return names()
