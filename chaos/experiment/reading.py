"""What a user writes -> an `Experiment`: `load` reads a file, `from_options` a command line, `from_mapping` values.

Each judges the experiment as a whole and reports every mistake in it at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chaos.errors import UsageError, all_of, nearest, shown
from chaos.experiment.command_job import CommandJob, refusal
from chaos.experiment.contradictions import contradictions
from chaos.experiment.experiment import Experiment, runtime_of
from chaos.experiment.fault_spec import FAULT_KEYS
from chaos.experiment.gate_spec import aborting
from chaos.experiment.job import Approximation, Checkpoint, Containers, Health, Job, with_checkpoints
from chaos.experiment.limits import Limits
from chaos.experiment.parameter_pairs import named, read_pairs
from chaos.experiment.profile import ProfileSpec
from chaos.spec.validation_errors import Source, explain
from chaos.spec.yaml_lines import KeyPath, read

if TYPE_CHECKING:
    from chaos.faults.base import Fault

    Registry = Mapping[str, type[Fault[Any]]]


_KEYS: Mapping[tuple[str, ...], Collection[str]] = {
    (): tuple(Experiment.model_fields),
    ("job",): tuple(Job.model_fields),
    ("job", "approximation"): tuple(Approximation.model_fields),
    ("job", "health"): tuple(Health.model_fields),
    ("job", "checkpoint"): tuple(Checkpoint.model_fields),
    ("limits",): tuple(Limits.model_fields),
    ("containers",): tuple(Containers.model_fields),
}
_CHECKPOINT_OPTIONS = {"checkpoint_every": "every_steps", "checkpoint_folder": "folder"}
_GATE_OPTIONS = {"gates": "--gate", "abort_unless": "--abort-unless"}
_CONTAINER_OPTIONS = {"image": "image", "node_cpus": "cpus", "node_memory": "memory"}


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
    subject: str | None,
    options: Mapping[str, Any],
    *,
    registry: Registry | None = None,
    strategies: Collection[str] | None = None,
) -> Experiment:
    """The experiment that `read_options` reads."""
    return read_options(subject, options, registry=registry, strategies=strategies)[0]


def read_options(
    subject: str | None,
    options: Mapping[str, Any],
    *,
    registry: Registry | None = None,
    strategies: Collection[str] | None = None,
) -> tuple[Experiment, Source]:
    """An experiment from a command line: of one fault, or of a file, of which `options` replace what they name.

    Beside it, where each part of it was said.

    `options` are those that were given, by name (`gpus_per_node`, `at`); `gates` are added to the file's, and of
    `parameters`, each a text KEY=VALUE, the fault gets its own. `abort_unless` are gates as well, with abort_on_fail;
    `abort_on_fail` is of all gates. With a `profile` the subject may be None.

    Raises:
        UsageError: there is no such fault or file, or it does not make sense; all mistakes at once.
    """
    kinds = installed_faults() if registry is None else registry
    if subject is None:
        return _of_profile(options, kinds, strategies)
    labels: dict[KeyPath, str] = {}
    if subject not in kinds and _is_path(subject):
        document = read(Path(subject))
        values, source = dict(document.values), Source(document.path, document.lines, labels)
    elif subject in kinds:
        values, source = {"name": subject, "faults": [{"kind": subject}]}, Source(options=labels)
        labels[("faults", 0)] = ""
        labels.update({("faults", 0, key): _label(key) for key in FAULT_KEYS if key not in ("kind", "draw")})
        labels.update({("faults", 0, key): f"--param {key}" for key in kinds[subject].Parameters.model_fields})
    else:
        raise _no_fault(subject, kinds, ", or write the path of a .yaml file")
    return _with_options(subject, values, options, source, labels, kinds, strategies)


def _no_fault(kind: str, kinds: Registry, or_else: str = "") -> UsageError:
    guess = nearest(kind, kinds)
    others = "; `chaos faults` lists all" if guess else f": there are {', '.join(kinds)}{or_else}"
    return UsageError(f"there is no fault {shown(kind)}{others}", suggestion=guess)


def _is_path(subject: str) -> bool:
    with suppress(OSError):  # a name that is too long to be a file's
        return "/" in subject or subject.endswith((".yaml", ".yml")) or (subject != "" and Path(subject).exists())
    return False


def _of_profile(
    options: Mapping[str, Any], kinds: Registry, strategies: Collection[str] | None
) -> tuple[Experiment, Source]:
    if "profile" not in options:
        raise UsageError(f"which fault? there are {', '.join(kinds)}; or write the path of a .yaml file, or --profile")
    of_a_fault = [option for option in (*FAULT_KEYS, "parameters") if option in options]
    if of_a_fault:
        raise UsageError("it is of one fault, but none is named", key=_label(of_a_fault[0]))
    labels: dict[KeyPath, str] = {}
    try:
        profile = ProfileSpec.parse(options["profile"])
    except UsageError as error:
        raise UsageError(error.message, key="--profile", suggestion=error.suggestion) from error
    values = {"name": f"profile-{profile.name}"}
    return _with_options("the profile", values, options, Source(options=labels), labels, kinds, strategies)


def _with_options(
    subject: str,
    values: dict[str, Any],
    options: Mapping[str, Any],
    source: Source,
    labels: dict[KeyPath, str],
    kinds: Registry,
    strategies: Collection[str] | None,
) -> tuple[Experiment, Source]:
    """`values` with what `options` say instead, judged; `labels`, which `source` reads, gets the place of each."""
    for option, value in options.items():
        if option in _GATE_OPTIONS:
            gates = values.setdefault("gates", [])
            if isinstance(gates, list):
                label = _GATE_OPTIONS[option]
                for index, gate in enumerate(value, len(gates)):
                    labels["gates", index] = label
                    # Of a test's marker, where a gate may be a mapping.
                    parts = map(str, gate) if isinstance(gate, Mapping) else ()
                    labels.update({("gates", index, key): f"{label} {named(key)}" for key in parts})
                values["gates"] = [*gates, *(aborting(value) if option == "abort_unless" else value)]
            continue
        if option == "abort_on_fail":
            continue
        label = _label(option)
        if option == "command":
            label, value = "-- COMMAND", list(value)
            _put(values, ("job", "runtime"), "command")
        where: KeyPath = (option,) if option in Experiment.model_fields else ("job", option)
        if option in _CHECKPOINT_OPTIONS:
            where = ("job", "checkpoint", _CHECKPOINT_OPTIONS[option])
            if source.path is None:
                labels[where[:-1]] = label
                labels["job", "checkpoint", "every_steps"] = "--checkpoint-every"
        if option in _CONTAINER_OPTIONS:
            where = ("containers", _CONTAINER_OPTIONS[option])
        if option in FAULT_KEYS or option == "parameters":
            where = ("faults", 0, option)
            faults = values.get("faults")
            if isinstance(faults, list) and len(faults) != 1:
                raise UsageError(
                    f"it is of one fault, but {subject} has {len(faults)}: change it in the file", key=label
                )
        if option == "parameters":
            faults = values.get("faults")
            fault = faults[0] if isinstance(faults, list) and faults else None
            kind = kinds.get(str(fault.get("kind"))) if isinstance(fault, Mapping) else None
            for key, said in read_pairs(value, kind).items():
                _put(values, ("faults", 0, key), said)
                labels["faults", 0, key] = f"--param {named(key)}"
            continue
        _put(values, where, value)
        labels[where] = label
    gates = values.get("gates")
    if options.get("abort_on_fail") and not gates:
        raise UsageError("there is no gate: write one with --gate, or in the file", key="--abort-on-fail")
    if options.get("abort_on_fail") and isinstance(gates, list):
        values["gates"] = aborting(gates)
    return _judge(values, source, kinds, strategies), source


def _label(option: str) -> str:
    return "--param" if option == "parameters" else f"--{option.replace('_', '-')}"


def _judge(
    raw: Mapping[str, Any], source: Source, registry: Registry | None, strategies: Collection[str] | None
) -> Experiment:
    if not isinstance(raw, Mapping):
        raise source.problem((), f"an experiment is a mapping, not {shown(raw)}")
    kinds = installed_faults() if registry is None else registry
    problems: list[UsageError] = []
    values = dict(raw)
    if isinstance(values.get("faults"), list):
        faults = enumerate(values["faults"])
        values["faults"] = [_gather_parameters(fault, ("faults", i), kinds, source, problems) for i, fault in faults]
    job = values.get("job")
    if isinstance(job, Mapping) and runtime_of(job) == "command":
        job = values["job"] = _without_ours(job, source, problems)
    strategy = job.get("strategy") if isinstance(job, Mapping) else None
    planners = installed_planners() if strategies is None else strategies
    if isinstance(strategy, str) and strategy not in planners:
        message = f"there is no strategy {shown(strategy)}: there are {', '.join(planners)}"
        problems.append(source.problem(("job", "strategy"), message, nearest(strategy, planners)))
    try:
        experiment = Experiment.model_validate(values)
    except ValidationError as error:
        keys = {**_KEYS, ("job",): tuple(CommandJob.model_fields)} if runtime_of(job) == "command" else _KEYS
        raise all_of([*problems, *explain(error, source, keys)]) from error
    problems = problems or contradictions(experiment, kinds, source)
    if isinstance(experiment.job, CommandJob) and values.get("twin"):
        problems.append(source.problem(("twin",), refusal("twin")))
    if problems:
        raise all_of(problems)
    if isinstance(experiment.job, CommandJob):
        return experiment.model_copy(update={"job": experiment.job.filled(), "twin": False})
    data_parallel, pipeline = experiment.job.shape()
    job_of_ours = with_checkpoints(experiment.job)
    shaped = job_of_ours.model_copy(update={"data_parallel": data_parallel, "pipeline": pipeline})
    return experiment.model_copy(update={"job": shaped})


def _without_ours(job: Mapping[str, Any], source: Source, problems: list[UsageError]) -> dict[str, Any]:
    """The job of a command without what only a job of our runtime can have, each of which is a problem."""
    ours = [key for key in job if key in Job.model_fields and key not in CommandJob.model_fields]
    for key in ours:
        problems.append(source.problem(("job", key), f"the job is a command, whose {key.replace('_', ' ')} is its own"))
    return {key: value for key, value in job.items() if key not in ours}


def _gather_parameters(
    fault: object, where: KeyPath, kinds: Registry, source: Source, problems: list[UsageError]
) -> object:
    """A fault as FaultSpec takes it: whatever is not said of every fault is a parameter of this kind."""
    if not isinstance(fault, Mapping):
        return fault
    common = {key: fault[key] for key in FAULT_KEYS if key in fault}
    own = {key: value for key, value in fault.items() if key not in FAULT_KEYS}
    kind = common.get("kind")
    if not isinstance(kind, str):
        return common
    if kind not in kinds:
        error = _no_fault(kind, kinds)
        problems.append(source.problem((*where, "kind"), error.message, error.suggestion))
        return common
    parameters = kinds[kind].Parameters
    try:
        return {**common, "parameters": parameters.model_validate(own).model_dump(mode="json")}
    except ValidationError as error:
        problems += explain(error, source, {("faults",): (*FAULT_KEYS, *parameters.model_fields)}, where)
    except UsageError as error:
        problems.append(source.placed(error, where))
    return common


def _put(values: dict[str, Any], where: KeyPath, value: object) -> None:
    """Set the value at `where`, making the mappings on the way; what is no mapping is left to be refused as such."""
    place: Any = values
    for part in where[:-1]:
        if isinstance(place, dict) and isinstance(part, str):
            if place.get(part) is None:
                place[part] = {}
            place = place[part]
        elif isinstance(place, list) and isinstance(part, int) and part < len(place):
            place = place[part]
    if isinstance(place, dict):
        place[str(where[-1])] = value


def installed_faults() -> Registry:
    """The faults there are, by kind."""
    from chaos.faults import registry

    return registry()


def installed_planners() -> Collection[str]:
    """The names of the strategies there are."""
    from mecefo_runtime.planners import names

    return names()
