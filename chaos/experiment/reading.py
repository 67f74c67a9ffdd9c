"""What a user writes -> an `Experiment`: `load` reads a file, `from_options` a command line, `from_mapping` values.

Each makes a draft of it (`sources`) and judges that as a whole: every mistake is reported at once, with its place and
the nearest valid word. What contradicts what in valid values is in `contradictions`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chaos.errors import UsageError, all_of, nearest, shown
from chaos.experiment.backends import BackendDescription, backends
from chaos.experiment.command_job import CommandJob, SavedIn, words_of_command
from chaos.experiment.contradictions import contradictions
from chaos.experiment.experiment import Experiment, runtime_of
from chaos.experiment.fault_spec import FAULT_KEYS, PARAMETERS, written
from chaos.experiment.job import (
    Approximation,
    Checkpoint,
    Health,
    Job,
    Snapshots,
)
from chaos.experiment.limits import Limits
from chaos.experiment.sources import Draft, no_such_fault, of_file, of_mapping, of_options
from chaos.language.launcher import ranks_of_command
from chaos.language.validation_errors import Problems, Source, explain, key_path, said_at
from chaos.language.yaml_lines import KeyPath
from chaos.plugins import DEFAULT_BACKEND

if TYPE_CHECKING:
    from chaos.experiment.sources import Registry

Violations = Callable[[Experiment, Callable[..., bool]], Sequence[UsageError]]
"""What else is wrong with an experiment, of whose keys a function says whether they are sound; by key, not by place."""

_KEYS: Mapping[tuple[str, ...], Collection[str]] = {
    ("job",): tuple(Job.model_fields),
    ("job", "approximation"): tuple(Approximation.model_fields),
    ("job", "health"): tuple(Health.model_fields),
    ("job", "checkpoint"): tuple(Checkpoint.model_fields),
    ("job", "snapshots"): tuple(Snapshots.model_fields),
    ("limits",): tuple(Limits.model_fields),
}
_LISTS = ("faults", "gates", "halt")
_INDEXED = re.compile(rf"({'|'.join(_LISTS)})\[([0-9]+)\]")
# A missing key removes the value that it belongs to, which may be required in turn.
_MAX_ROUNDS = 4
_ONLY_OF_A_COMMAND = CommandJob.model_fields.keys() - Job.model_fields.keys()


def load(path: Path, *, registry: Registry | None = None, strategies: Collection[str] | None = None) -> Experiment:
    """Read an experiment file.

    Raises:
        UsageError: it cannot be read or does not make sense; all mistakes at once, with their lines.
    """
    return _judged(of_file(path), registry, strategies)


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
    return _judged(of_mapping(raw, lines, path), registry, strategies)


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
    """An experiment from a command line, and the source that knows the place of each part of it.

    It is of one fault, or of a file, of which `options` replace what they name.

    `options` are those that were given, by name (`gpus_per_node`, `at`); `gates` are added to the file's, and of
    `parameters`, each a text KEY=VALUE, the fault gets its own. `abort_unless` are gates as well, with abort_on_fail;
    `abort_on_fail` is of all gates. With a `profile` the subject may be None. `more_faults` are added to the fault, or
    to those of the file. `violations` is asked what else is wrong with an experiment that is going to be refused.

    Raises:
        UsageError: there is no such fault or file, or it does not make sense; all mistakes at once.
    """
    kinds = installed_faults() if registry is None else registry
    draft = of_options(subject, options, kinds)
    return _judged(draft, kinds, strategies, violations), draft.source


def _judged(
    draft: Draft,
    registry: Registry | None,
    strategies: Collection[str] | None,
    violations: Violations | None = None,
) -> Experiment:
    kinds = installed_faults() if registry is None else registry
    return _judge(draft, kinds, installed_planners() if strategies is None else strategies, violations)


def installed_faults() -> Registry:
    """The faults there are, by kind."""
    from chaos.faults import registry

    return registry()


def installed_planners() -> Collection[str]:
    """The names of the strategies there are."""
    from mecefo_runtime.planners import names

    return names()


def _judge(draft: Draft, kinds: Registry, strategies: Collection[str], violations: Violations | None) -> Experiment:
    """The experiment that a draft describes; `kinds` are the faults there are, `strategies` the planners.

    Raises:
        UsageError: it does not make sense; all mistakes at once.
    """
    problems = draft.problems
    values = _prepared(draft, kinds)
    _require_strategy(values.get("job"), strategies, problems)
    is_command = runtime_of(values.get("job")) == "command"
    rest: _Salvage | None = None
    try:
        experiment = Experiment.model_validate(values)
        if not problems.places:
            rest = _Salvage(experiment, {name: range(len(getattr(experiment, name))) for name in _LISTS})
    except ValidationError as error:
        _note_all(error, problems, _keys(is_command=is_command))
    rest = rest or _salvaged(values, problems.places)
    if rest is None:
        raise all_of(problems.errors)
    contradictions(rest.experiment, kinds, problems, rest.indices["faults"])
    if not problems.errors:
        return _filled(rest.experiment)
    if violations is not None:
        more = violations(rest.experiment, lambda *keys: problems.are_sound(*map(key_path, keys)))
        for one in more:
            key = None if one.key is None else rest.key_in_draft(one.key)
            problems.errors.append(draft.source.located(UsageError(one.message, key=key, suggestion=one.suggestion)))
    raise all_of(problems.errors)


def _keys(*, is_command: bool) -> Mapping[tuple[str, ...], Collection[str]]:
    """The keys of each mapping of an experiment, by its place."""
    keys = dict(_KEYS)
    if is_command:
        keys["job",] = tuple(CommandJob.model_fields)
    own = [key for key in Experiment.model_fields if key != "backend_settings"]
    for backend in backends().values():
        if backend.settings_key:
            own.append(backend.settings_key)
            keys[backend.settings_key,] = tuple(backend.Settings.model_fields)
    keys[()] = own
    return keys


def _prepared(draft: Draft, kinds: Registry) -> dict[str, Any]:
    """The values as the models take them: parameters of faults by themselves, and a job of one kind."""
    values, problems = dict(draft.values), draft.problems
    if isinstance(values.get("faults"), list):
        values["faults"] = [
            _gather_parameters(fault, ("faults", index), kinds, problems)
            for index, fault in enumerate(values["faults"])
        ]
    job = values.get("job")
    if isinstance(job, Mapping) and runtime_of(job) == "command":
        values["job"] = _with_shape(_without_ours(job, problems), values)
        # It takes as long again, and what it leaves behind is the user's.
        values.setdefault("twin", False)
    elif isinstance(job, Mapping):
        values["job"] = _without_commands(job, problems)
    return values


def _with_shape(job: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The job of a command with the nodes of its backend, which is added to `values` where it is implied."""
    there = backends()

    def own(backend: BackendDescription) -> Mapping[str, Any]:
        settings = values.get(backend.settings_key) if backend.settings_key else None
        return settings if isinstance(settings, Mapping) else {}

    if "backend" not in values:
        # Settings that are written count more than what is found in the environment.
        by_settings = sorted(there.items(), key=lambda pair: not own(pair[1]))
        implied = next((name for name, one in by_settings if one.is_implied(own(one))), DEFAULT_BACKEND)
        values["backend"] = implied
    named = values["backend"]
    backend = there.get(named) if isinstance(named, str) else None
    if backend is None or not isinstance(command := job.get("command"), list | tuple | str):
        return job
    try:
        nodes, per_node = backend.shape(own(backend))
        words = [str(word) for word in words_of_command(command)]
        folder = job.get("folder")
        told = ranks_of_command(words, Path(folder) if isinstance(folder, str) else None, job.get("nodes") or nodes)
    except UsageError:
        # It is said of the command, or of the setting, itself.
        return job
    derived = {"nodes": told[0] or nodes, "gpus_per_node": told[1] or per_node}
    return {**{key: number for key, number in derived.items() if nodes is not None and number is not None}, **job}


def _require_strategy(job: object, strategies: Collection[str], problems: Problems) -> None:
    strategy = job.get("strategy") if isinstance(job, Mapping) else None
    if isinstance(strategy, str) and strategy not in strategies:
        message = f"there is no strategy {shown(strategy)}: there are {', '.join(strategies)}"
        where: KeyPath = ("job", "strategy")
        problems.note(where, problems.source.problem(where, message, nearest(strategy, strategies)))


def _note_all(
    error: ValidationError,
    problems: Problems,
    keys: Mapping[tuple[str, ...], Collection[str]],
    within: KeyPath = (),
) -> None:
    """Note what pydantic found, but for what could not even be read, which was reported before."""
    for place, mistake in [one for one in explain(error, problems.source, keys, within) if problems.are_sound(one[0])]:
        problems.note(place, mistake)


def _filled(experiment: Experiment) -> Experiment:
    """The experiment with the values that are derived where none is given."""
    return experiment.model_copy(update={"job": experiment.job.filled()})


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
    if kind not in kinds:
        if problems.are_sound((*where, "kind")):
            error = no_such_fault(kind, kinds)
            problems.note((*where, "kind"), problems.source.placed(error, (*where, "kind")))
        return common
    parameters = kinds[kind].Parameters
    try:
        return {**common, "parameters": written(parameters.model_validate(own))}
    except ValidationError as error:
        words: Mapping[tuple[str, ...], Collection[str]] = {("faults",): (*FAULT_KEYS, *parameters.model_fields)}
        _note_all(error, problems, words, where)
    except UsageError as error:
        problems.errors.append(problems.source.placed(error, where))
    problems.distrust((*where, PARAMETERS))
    return common


@dataclass(frozen=True, slots=True)
class _Salvage:
    """The valid part of an experiment, and the index in the draft of each entry that is left of its lists."""

    experiment: Experiment
    indices: Mapping[str, Sequence[int]]

    def key_in_draft(self, key: str) -> str:
        """The key in the draft for a `key` of the experiment that is left."""
        return _INDEXED.sub(lambda found: f"{found[1]}[{self.indices[found[1]][int(found[2])]}]", key, count=1)


def _salvaged(values: Mapping[str, Any], wrong: Collection[KeyPath]) -> _Salvage | None:
    """`values` without what stands at the places `wrong`; None when that leaves nothing that could be judged."""
    places = set(wrong)
    for _ in range(_MAX_ROUNDS):
        rest, indices = _without(values, places)
        try:
            return _Salvage(Experiment.model_validate(rest), indices)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                where = tuple(said_at(details["loc"]))
                if where[:1] and where[0] in _LISTS and len(where) > 1:
                    where = (where[0], indices[str(where[0])][int(where[1])])
                places |= {where, where[:-1] or where}
    return None


def _without(values: Mapping[str, Any], places: Collection[KeyPath]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    rest = copy.deepcopy(dict(values))
    indices: dict[str, list[int]] = {}
    for name in _LISTS:
        entries = rest.pop(name, None)
        is_list = isinstance(entries, list) and (name,) not in places
        wrong_keys: dict[int | str, set[int | str]] = {}
        for place in places:
            if len(place) > 1 and place[0] == name:
                # An entry that is wrong as a whole is wrong in what it is.
                wrong_keys.setdefault(place[1], set()).update(place[2:3] or ("kind",))
        left = [
            (index, _entry(entry, wrong_keys.get(index, ()))) for index, entry in enumerate(entries if is_list else ())
        ]
        indices[name] = [index for index, entry in left if entry is not None]
        rest[name] = [entry for _, entry in left if entry is not None]
    for place in places:
        inner: Any = rest
        for depth, part in enumerate(place):
            following = inner.get(part) if isinstance(inner, dict) else None
            if depth == len(place) - 1 or not isinstance(following, dict):
                if isinstance(inner, dict) and place[0] not in _LISTS:
                    inner.pop(part, None)
                break
            inner = following
    rest.setdefault("name", "unnamed")
    return rest, indices


def _entry(entry: Any, wrong: Collection[str | int]) -> Any:
    """An entry of a list without its keys that are `wrong`; None when nothing is left that could be judged."""
    if not wrong:
        return entry
    if "kind" in wrong or not isinstance(entry, dict) or "kind" not in entry:
        return None
    rest = {key: value for key, value in entry.items() if key not in wrong}
    return rest if "at" not in wrong else {**rest, "at": "step=1"}
