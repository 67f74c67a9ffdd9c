"""What a user writes -> an `Experiment`: `load` reads a file, `from_options` a command line, `from_mapping` values.

Each judges the experiment as a whole and reports every mistake in it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chaos.errors import UsageError, all_of, nearest, setting, shown
from chaos.experiment.command_job import CommandJob, SavedIn
from chaos.experiment.contradictions import contradictions
from chaos.experiment.experiment import Experiment, runtime_of
from chaos.experiment.fault_options import AND, MORE_FAULTS, FaultOptions
from chaos.experiment.fault_spec import FAULT_KEYS, PARAMETERS
from chaos.experiment.faults_of_options import (
    NO_FAULT,
    beside_no_fault,
    distinction,
    first_fault,
    no_such_fault,
    put_fault_options,
    put_more_faults,
)
from chaos.experiment.gate_spec import aborting
from chaos.experiment.job import (
    Approximation,
    Checkpoint,
    Containers,
    Health,
    Job,
    Snapshots,
    with_device,
    with_strategy,
)
from chaos.experiment.limits import Limits
from chaos.experiment.parameter_pairs import named
from chaos.experiment.profile import ProfileSpec
from chaos.experiment.salvage import Salvage, salvaged
from chaos.experiment.terms import TERMS, is_of_a_fault, option_name, place_of
from chaos.language.validation_errors import Problems, Source, explain, key_path
from chaos.language.yaml_lines import KeyPath, Mistake, read

if TYPE_CHECKING:
    from chaos.faults.base import Fault

    Registry = Mapping[str, type[Fault[Any]]]


Violations = Callable[[Experiment, Callable[..., bool]], Sequence[UsageError]]
"""What else is wrong with an experiment, of whose keys a function says whether they are sound; by key, not by place."""

_KEYS: Mapping[tuple[str, ...], Collection[str]] = {
    (): tuple(Experiment.model_fields),
    ("job",): tuple(Job.model_fields),
    ("job", "approximation"): tuple(Approximation.model_fields),
    ("job", "health"): tuple(Health.model_fields),
    ("job", "checkpoint"): tuple(Checkpoint.model_fields),
    ("job", "snapshots"): tuple(Snapshots.model_fields),
    ("limits",): tuple(Limits.model_fields),
    ("containers",): tuple(Containers.model_fields),
}
_ONLY_OF_A_COMMAND = CommandJob.model_fields.keys() - Job.model_fields.keys()
_GATE_OPTIONS = {"gates": "--gate", "abort_unless": "--abort-unless"}


def load(path: Path, *, registry: Registry | None = None, strategies: Collection[str] | None = None) -> Experiment:
    """Read an experiment file.

    Raises:
        UsageError: it cannot be read or does not make sense; all mistakes at once, with their lines.
    """
    mistakes: list[Mistake] = []
    document = read(path, mistakes)
    problems = Problems(Source(document.path, document.lines), mistakes)
    return _judge(document.values, problems, registry, strategies)


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
    return _judge(raw, Problems(Source(path, lines or {})), registry, strategies)


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
    violations: Violations | None = None,
) -> tuple[Experiment, Source]:
    """An experiment from a command line: of one fault, or of a file, of which `options` replace what they name.

    Beside it, where each part of it was said.

    `options` are those that were given, by name (`gpus_per_node`, `at`); `gates` are added to the file's, and of
    `parameters`, each a text KEY=VALUE, the fault gets its own. `abort_unless` are gates as well, with abort_on_fail;
    `abort_on_fail` is of all gates. With a `profile` the subject may be None. `more_faults` are added to the fault, or
    to those of the file. `violations` is asked what else is wrong with an experiment that is going to be refused.

    Raises:
        UsageError: there is no such fault or file, or it does not make sense; all mistakes at once.
    """
    kinds = installed_faults() if registry is None else registry
    more: Sequence[FaultOptions] = options.get(MORE_FAULTS, ())
    line = [subject or "", *(fault.kind for fault in more)]
    labels: dict[KeyPath, str] = {}
    mistakes: list[Mistake] = []
    source = Source(options=labels, terms=TERMS)
    values: dict[str, Any]
    if subject is None:
        values = _of_profile(options, kinds, source, mistakes)
        subject = "the profile"
    elif subject.endswith(".py"):
        example = f"`chaos run kill-process --at step=30 -- torchrun {subject}`"
        raise UsageError(f"{shown(subject)} is a script, not an experiment: write a fault and --, as in {example}")
    elif subject not in kinds and _is_path(subject):
        document = read(Path(subject), mistakes)
        values, source = dict(document.values), Source(document.path, document.lines, labels, TERMS)
    elif subject == NO_FAULT:
        values = {"name": NO_FAULT, "faults": []}
        mistakes += beside_no_fault(options)
    else:
        values = first_fault(subject, line, kinds, labels)
        if subject not in kinds:
            error = no_such_fault(subject, kinds, ", or write the path of a .yaml file")
            mistakes.append((("faults", 0, "kind"), error))
    problems = Problems(source, mistakes)
    _put_options(subject, values, options, problems, labels, kinds, distinction(line, 0))
    if subject != NO_FAULT:
        put_more_faults(values, more, line, problems, labels, kinds)
    return _judge(values, problems, kinds, strategies, violations), source


def _is_path(subject: str) -> bool:
    with suppress(OSError):  # a name that is too long to be a file's
        return "/" in subject or subject.endswith((".yaml", ".yml")) or (subject != "" and Path(subject).exists())
    return False


def _of_profile(options: Mapping[str, Any], kinds: Registry, source: Source, mistakes: list[Mistake]) -> dict[str, Any]:
    """What is said of an experiment by naming no fault and no file, but a profile."""
    if "profile" not in options:
        raise UsageError(
            "which fault? Write one first, as in `chaos run kill-node --at step=30`, or the path of a .yaml file, or "
            "--profile; `chaos faults` lists all"
        )
    for option in (*FAULT_KEYS, "parameters"):
        if option in options:
            error = UsageError("it is of one fault, but none is named", key=option_name(option))
            mistakes.append((("faults", 0, option), error))
    for fault in options.get(MORE_FAULTS, ())[:1]:
        message = f"adds a fault to a first one, but none is named: write {fault.kind} without {AND}"
        mistakes.append((("faults",), UsageError(message, key=AND)))
    try:
        return {"name": f"profile-{ProfileSpec.parse(options['profile']).name}"}
    except UsageError:
        # Which is said when the profile itself is judged.
        return {"name": "profile"}


def _put_options(
    subject: str,
    values: dict[str, Any],
    options: Mapping[str, Any],
    problems: Problems,
    labels: dict[KeyPath, str],
    kinds: Registry,
    of_fault: str = "",
) -> None:
    """Put into `values` what `options` say instead, and into `labels`, which the source reads, the place of each.

    `of_fault` marks the options of the first fault in a message.
    """
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
        if option in ("abort_on_fail", MORE_FAULTS):
            continue
        label = option_name(option)
        if option == "command":
            label = "-- COMMAND"
            _put(values, ("job", "runtime"), "command")
        where = place_of(option)
        if where[:-1] == ("job", "checkpoint") and problems.source.path is None:
            labels[where[:-1]] = label
            labels["job", "checkpoint", "every_steps"] = "--checkpoint-every"
        if is_of_a_fault(option):
            faults = values.get("faults", [])
            if isinstance(faults, list) and len(faults) != 1 and problems.are_sound(where):
                message = f"it is of one fault, but {subject} has {len(faults)}: change it in the file"
                problems.errors.append(UsageError(message, key=label))
            else:
                put_fault_options(values, {option: value}, problems, labels, kinds, of_fault=of_fault)
            continue
        _put(values, where, value)
        labels[where] = label
    gates = values.get("gates")
    if options.get("abort_on_fail") and not gates:
        error = UsageError("there is no gate: write one with --gate, or in the file", key="--abort-on-fail")
        problems.errors.append(error)
    elif options.get("abort_on_fail") and isinstance(gates, list):
        values["gates"] = aborting(gates)


def _judge(
    raw: Mapping[str, Any],
    problems: Problems,
    registry: Registry | None,
    strategies: Collection[str] | None,
    violations: Violations | None = None,
) -> Experiment:
    source = problems.source
    if not isinstance(raw, Mapping):
        raise source.problem((), f"an experiment is a mapping, not {shown(raw)}")
    kinds = installed_faults() if registry is None else registry
    values = dict(raw)
    if isinstance(values.get("faults"), list):
        values["faults"] = [
            _gather_parameters(fault, ("faults", index), kinds, problems)
            for index, fault in enumerate(values["faults"])
        ]
    job = values.get("job")
    if isinstance(job, Mapping) and runtime_of(job) == "command":
        job = values["job"] = _without_ours(job, problems)
        # It takes as long again, and what it leaves behind is the user's.
        values.setdefault("twin", False)
    elif isinstance(job, Mapping):
        job = values["job"] = _without_commands(job, problems)
    strategy = job.get("strategy") if isinstance(job, Mapping) else None
    planners = installed_planners() if strategies is None else strategies
    if isinstance(strategy, str) and strategy not in planners:
        message = f"there is no strategy {shown(strategy)}: there are {', '.join(planners)}"
        where: KeyPath = ("job", "strategy")
        problems.note(where, source.problem(where, message, nearest(strategy, planners)))
    keys = {**_KEYS, ("job",): tuple(CommandJob.model_fields)} if runtime_of(job) == "command" else _KEYS
    try:
        Experiment.model_validate(values)
    except ValidationError as error:
        found = explain(error, source, keys)
        # Of what could not even be read it has been said.
        for place, mistake in [one for one in found if problems.are_sound(one[0])]:
            problems.note(place, mistake)
    rest = salvaged(values, problems.places)
    if rest is None:
        raise all_of(problems.errors)
    contradictions(rest.experiment, kinds, problems, rest.indices["faults"])
    if isinstance(rest.experiment.job, CommandJob) and rest.experiment.backend == "docker":
        local = setting("backend", "local")
        for key, is_asked in ((("twin",), rest.experiment.twin), (("job", "reset"), rest.experiment.job.reset)):
            if is_asked:
                problems.add(key, f"a command in containers is started once: leave it out, or choose {local}")
    if problems.errors:
        if violations is not None:
            told = violations(rest.experiment, lambda *keys: problems.are_sound(*map(key_path, keys)))
            problems.errors += [_told_where_said(error, rest, source) for error in told]
        raise all_of(problems.errors)
    return _filled(rest.experiment)


def _told_where_said(error: UsageError, rest: Salvage, source: Source) -> UsageError:
    key = None if error.key is None else rest.said_key(error.key)
    return source.located(UsageError(error.message, key=key, suggestion=error.suggestion))


def _filled(experiment: Experiment) -> Experiment:
    """With what is derived where nothing is said."""
    if isinstance(experiment.job, CommandJob):
        return experiment.model_copy(update={"job": experiment.job.filled()})
    data_parallel, pipeline = experiment.job.shape()
    job = with_device(with_strategy(experiment.job))
    shaped = job.model_copy(update={"data_parallel": data_parallel, "pipeline": pipeline})
    return experiment.model_copy(update={"job": shaped})


def _without_ours(job: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """The job of a command without what only a job of our runtime can have, each of which is a problem."""
    ours = [key for key in job if key in Job.model_fields and key not in CommandJob.model_fields]
    for key in ours:
        message = "the job is a command, and this is a setting of the built-in job: leave it out"
        problems.note(("job", key), problems.source.problem(("job", key), message))
    kept = {key: value for key, value in job.items() if key not in ours}
    if isinstance(saved := kept.get("checkpoint"), Mapping):
        for key in saved.keys() - SavedIn.model_fields.keys():
            where: KeyPath = ("job", "checkpoint", key)
            message = "the job is a command, which saves when it likes: only the folder can be said"
            problems.note(where, problems.source.problem(where, message))
        kept["checkpoint"] = {key: saved[key] for key in saved.keys() & SavedIn.model_fields.keys()} or None
    return kept


def _without_commands(job: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """The built-in job without what only the job of a command can have, each of which is a problem."""
    is_of_line = problems.source.path is None
    command = "-- COMMAND" if is_of_line else "runtime: command and command: [torchrun, train.py]"
    kept = dict(job)
    for key in job.keys() & _ONLY_OF_A_COMMAND:
        message = f"is a setting of a job that is your own command: add {command}, or leave it out"
        problems.note(("job", key), problems.source.problem(("job", key), message))
        del kept[key]
    return kept


def _gather_parameters(fault: object, where: KeyPath, kinds: Registry, problems: Problems) -> object:
    """A fault as FaultSpec takes it: whatever is not said of every fault is a parameter of this kind."""
    if not isinstance(fault, Mapping):
        return fault
    common = {key: fault[key] for key in FAULT_KEYS if key in fault}
    own = {key: value for key, value in fault.items() if key not in FAULT_KEYS}
    kind = common.get("kind")
    if not isinstance(kind, str):
        return common
    source = problems.source
    if kind not in kinds:
        if problems.are_sound((*where, "kind")):
            error = no_such_fault(kind, kinds)
            problems.note((*where, "kind"), source.problem((*where, "kind"), error.message, error.suggestion))
        return common
    parameters = kinds[kind].Parameters
    try:
        return {**common, "parameters": parameters.model_validate(own).model_dump(mode="json")}
    except ValidationError as error:
        words: Mapping[tuple[str, ...], Collection[str]] = {("faults",): (*FAULT_KEYS, *parameters.model_fields)}
        found = explain(error, source, words, where)
        for place, mistake in [one for one in found if problems.are_sound(one[0])]:
            problems.note(place, mistake)
    except UsageError as error:
        problems.errors.append(source.placed(error, where))
    problems.distrust((*where, PARAMETERS))
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
