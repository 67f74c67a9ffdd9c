"""The values that a user wrote, each with its place: in a file, among plain values, or on a command line.

Nothing is judged here but what cannot be put into values: see `reading`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chaos.errors import UsageError, nearest, shown
from chaos.experiment.fault_options import AND, MORE_FAULTS, FaultOptions
from chaos.experiment.fault_spec import FAULT_KEYS, OTHER_NAMES
from chaos.experiment.gate_spec import aborting
from chaos.experiment.profile import ProfileSpec
from chaos.experiment.terms import is_of_a_fault, option_name, place_of, terms
from chaos.language.validation_errors import Problems, Source
from chaos.language.yaml_lines import KeyPath, Mistake, plain, read

if TYPE_CHECKING:
    from chaos.faults.base import Fault

    Registry = Mapping[str, type[Fault[Any]]]

NO_FAULT = "none"
"""In place of a kind of fault."""
_GATE_OPTIONS = {"gates": "--gate", "abort_unless": "--abort-unless"}
# Faults that the name of an experiment names.
_MAX_NAMED = 4


class Draft:
    """The values of an experiment, and the mistakes found in them so far.

    `labels` are the options of a command line by the places of what they say.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        mistakes: Sequence[Mistake] = (),
        *,
        path: str | None = None,
        lines: Mapping[KeyPath, int] | None = None,
        terms: Mapping[str, str] | None = None,
    ) -> None:
        self.values = dict(values)
        self.labels: dict[KeyPath, str] = {}
        self.source = Source(path, lines or {}, self.labels, terms or {})
        self.problems = Problems(self.source, mistakes)

    def put(self, where: KeyPath, value: object, label: str | None = None) -> None:
        """Set the value at `where`, making the mappings on the way; what is not a mapping is left to be refused."""
        place: Any = self.values
        for part in where[:-1]:
            if isinstance(place, dict) and isinstance(part, str):
                if place.get(part) is None:
                    place[part] = {}
                place = place[part]
            elif isinstance(place, list) and isinstance(part, int) and part < len(place):
                place = place[part]
        if isinstance(place, dict):
            place[str(where[-1])] = value
        if label is not None:
            self.labels[where] = label


def of_mapping(raw: object, lines: Mapping[KeyPath, int] | None = None, path: str | None = None) -> Draft:
    """Plain values; `lines` are their places in the file called `path`.

    Raises:
        UsageError: they are not a mapping.
    """
    if not isinstance(raw, Mapping):
        raise Source(path, lines or {}).problem((), f"an experiment is a mapping, not {shown(raw)}")
    return Draft(raw, path=path, lines=lines)


def of_file(path: Path) -> Draft:
    """The content of a file.

    Raises:
        UsageError: it cannot be read, or is not a YAML mapping.
    """
    mistakes: list[Mistake] = []
    document = read(path, mistakes)
    return Draft(document.values, mistakes, path=document.path, lines=document.lines)


def of_options(subject: str | None, options: Mapping[str, Any], kinds: Registry) -> Draft:
    """A command line: of a fault, of a file of which `options` replace what they name, or of a profile.

    `options` are described at `chaos.experiment.reading.read_options`; `kinds` are the faults there are.

    Raises:
        UsageError: there is no such file, or none is named.
    """
    more: Sequence[FaultOptions] = options.get(MORE_FAULTS, ())
    line = [subject or "", *(fault.kind for fault in more)]
    if subject is None:
        draft = _of_profile(options)
    elif subject.endswith(".py"):
        example = f"`chaos run kill-process --at step=30 -- torchrun {subject}`"
        raise UsageError(f"{shown(subject)} is a script, not an experiment: write a fault and --, as in {example}")
    elif subject not in kinds and _is_path(subject):
        draft = of_file(Path(subject))
    elif subject == NO_FAULT:
        draft = Draft({"name": NO_FAULT, "faults": []}, [*_beside_no_fault(options)], terms=terms())
    else:
        draft = _of_first_fault(subject, line, kinds)
    faults = _FaultsOfLine(draft, line, kinds)
    _put_options(subject or "the profile", options, draft, faults)
    if subject != NO_FAULT:
        faults.add(more)
    return draft


def _is_path(subject: str) -> bool:
    with suppress(OSError):  # a name that is too long to be a file's
        return "/" in subject or subject.endswith((".yaml", ".yml")) or (subject != "" and Path(subject).exists())
    return False


def _of_first_fault(subject: str, line: Sequence[str], kinds: Registry) -> Draft:
    mistakes: list[Mistake] = []
    if subject not in kinds:
        error = no_such_fault(subject, kinds, ", or write the path of a .yaml file")
        mistakes.append((("faults", 0, "kind"), error))
    name = _name(line) if all(kind in kinds for kind in line) else "unnamed"
    draft = Draft({"name": name, "faults": [{"kind": subject}]}, mistakes, terms=terms())
    _FaultsOfLine(draft, line, kinds).label(0, 0)
    return draft


def _of_profile(options: Mapping[str, Any]) -> Draft:
    """A command line that names no fault and no file, but a profile."""
    if "profile" not in options:
        raise UsageError(
            "which fault? Write one first, as in `chaos run kill-node --at step=30`, or the path of a .yaml file, or "
            "--profile; `chaos faults` lists all"
        )
    mistakes: list[Mistake] = []
    for option in (*FAULT_KEYS, "parameters"):
        if option in options:
            error = UsageError("it is of one fault, but none is named", key=option_name(option))
            mistakes.append((("faults", 0, option), error))
    for fault in options.get(MORE_FAULTS, ())[:1]:
        message = f"adds a fault to a first one, but none is named: write {fault.kind} without {AND}"
        mistakes.append((("faults",), UsageError(message, key=AND)))
    name = "profile"
    # What is wrong with the profile is reported when it is judged.
    with suppress(UsageError):
        name = f"profile-{ProfileSpec.parse(options['profile']).name}"
    return Draft({"name": name}, mistakes, terms=terms())


def _beside_no_fault(options: Mapping[str, Any]) -> Iterator[Mistake]:
    """The mistakes in what `options` say of faults, in a run without a fault."""
    for option in options:
        if is_of_a_fault(option):
            yield ("faults",), UsageError(f"{NO_FAULT} is a run without a fault: leave it out", key=option_name(option))
    for fault in options.get(MORE_FAULTS, ()):
        message = f"{NO_FAULT} is a run without a fault: write {fault.kind} in its place"
        yield ("faults",), UsageError(message, key=AND)


def _put_options(subject: str, options: Mapping[str, Any], draft: Draft, faults: _FaultsOfLine) -> None:
    """Put what `options` say into a draft, in place of what it has, but for faults after the first one."""
    for option, value in options.items():
        where = place_of(option)
        if option in _GATE_OPTIONS:
            _add_gates(option, value, draft)
        elif option in ("abort_on_fail", MORE_FAULTS):
            continue
        elif is_of_a_fault(option):
            faults.put_for_only_one(subject, option, value)
        elif option == "command":
            draft.put(("job", "runtime"), "command")
            draft.put(where, value, "-- COMMAND")
        else:
            if where[:-1] == ("job", "checkpoint") and draft.source.path is None:
                draft.labels[where[:-1]] = option_name(option)
                draft.labels["job", "checkpoint", "every_steps"] = terms()["job.checkpoint.every_steps"]
            draft.put(where, value, option_name(option))
    gates = draft.values.get("gates")
    if options.get("abort_on_fail") and not gates:
        error = UsageError("there is no gate: write one with --gate, or in the file", key="--abort-on-fail")
        draft.problems.errors.append(error)
    elif options.get("abort_on_fail") and isinstance(gates, list):
        draft.values["gates"] = aborting(gates)


def _add_gates(option: str, added: Sequence[Any], draft: Draft) -> None:
    gates = draft.values.setdefault("gates", [])
    if not isinstance(gates, list):
        return
    label = _GATE_OPTIONS[option]
    for index, gate in enumerate(added, len(gates)):
        draft.labels["gates", index] = label
        # A gate in a test's marker may be a mapping.
        parts = map(str, gate) if isinstance(gate, Mapping) else ()
        draft.labels.update({("gates", index, key): f"{label} {named(key)}" for key in parts})
    draft.values["gates"] = [*gates, *(aborting(added) if option == "abort_unless" else added)]


class _FaultsOfLine:
    """The faults that a command line describes, in a draft; `line` are their kinds.

    Where the draft is of a file, the first of `line` stands for all of the file's faults.
    """

    def __init__(self, draft: Draft, line: Sequence[str], kinds: Registry) -> None:
        self._draft = draft
        self._line = line
        self._kinds = kinds

    def put_for_only_one(self, subject: str, option: str, value: Any) -> None:
        """Put an option of the first fault, which must be the only one in the draft."""
        faults = self._draft.values.get("faults", [])
        if isinstance(faults, list) and len(faults) != 1 and self._draft.problems.are_sound(place_of(option)):
            message = f"it is of one fault, but {subject} has {len(faults)}: change it in the file"
            self._draft.problems.errors.append(UsageError(message, key=option_name(option)))
        else:
            self._put({option: value}, 0, distinction(self._line, 0))

    def add(self, more: Sequence[FaultOptions]) -> None:
        """Add the faults after the first one."""
        faults = self._draft.values.setdefault("faults", [])
        if not isinstance(faults, list):
            return
        for place, fault in enumerate(more, 1):
            index = len(faults)
            faults.append({"kind": fault.kind})
            self.label(place, index)
            if fault.kind not in self._kinds:
                error = no_such_fault(fault.kind, self._kinds, key=AND)
                self._draft.problems.note(("faults", index, "kind"), error)
            self._put(fault.options, index, distinction(self._line, place))

    def label(self, place: int, index: int) -> None:
        """Label fault `index` of the draft with the options of the fault at `place` of the command line."""
        of_fault = distinction(self._line, place)
        where: KeyPath = ("faults", index)
        keys = [key for key in FAULT_KEYS if key not in ("kind", "draw")]
        labels = {(*where, key): f"{option_name(key)}{of_fault}" for key in keys}
        if (kind := self._kinds.get(self._line[place])) is not None:
            labels |= {(*where, key): f"--param {key}{of_fault}" for key in kind.Parameters.model_fields}
        self._draft.labels.update({where: f"fault {index + 1}" if of_fault else "", **labels})

    def _put(self, options: Mapping[str, Any], index: int, of_fault: str) -> None:
        draft = self._draft
        faults = draft.values.get("faults")
        fault = faults[index] if isinstance(faults, list) and index < len(faults) else None
        if not isinstance(fault, dict):
            return
        for option, value in options.items():
            where = place_of(option, index)
            if not draft.problems.are_sound(where):
                continue
            if option == "parameters":
                kind = self._kinds.get(str(fault.get("kind")))
                for key, read_value in read_pairs(value, kind, draft.problems, index=index, of_fault=of_fault).items():
                    draft.put(("faults", index, key), read_value, f"--param {named(key)}{of_fault}")
            else:
                draft.put(where, value, f"{option_name(option)}{of_fault}")


def no_such_fault(kind: str, kinds: Registry, or_else: str = "", *, key: str | None = None) -> UsageError:
    """The error for an unknown `kind`, with the nearest one; `or_else` names an alternative, `key` is the option."""
    guess = OTHER_NAMES.get(kind.lower()) or nearest(kind, kinds)
    several = [name for name in kinds if name.startswith(f"{kind}-")]
    if len(several) > 1:
        return UsageError(f"there is no fault {shown(kind)}: write one of {', '.join(several)}", key=key)
    others = "; `chaos faults` lists all" if guess else f": `chaos faults` lists all{or_else}"
    return UsageError(f"there is no fault {shown(kind)}{others}{of_broken_plugins()}", key=key, suggestion=guess)


def of_broken_plugins() -> str:
    """Why the faults of plug-ins that cannot be used are missing, to be appended to a message; "" if all can."""
    from chaos.faults import broken_plugins

    return "".join(f"; the plug-in {where} {reason}" for where, reason in broken_plugins().items())


def distinction(line: Sequence[str], place: int) -> str:
    """The words after an option that say which fault of a command line it is of; none where there is one fault."""
    if len(line) <= 1:
        return ""
    kind = line[place]
    return f" of {kind}" if line.count(kind) == 1 else f" of fault {place + 1} ({kind})"


def _name(line: Sequence[str]) -> str:
    """The name of an experiment to which the user gives none."""
    first = "-and-".join(line[:_MAX_NAMED])
    num_others = len(line) - _MAX_NAMED
    return first if num_others <= 0 else f"{first}-and-{num_others}-more"


def named(key: str) -> str:
    """A key as messages show it."""
    return key if key.isidentifier() else shown(key)


def _about_option(key: str, text: str, kind: type[Fault[Any]] | None) -> str:
    """What to write in place of a parameter that has the name of something that is of every fault."""
    if key in ("kind", "draw"):
        return f"{key} is no parameter: leave it out"
    if kind is not None and ((key == "for" and not kind.has_lifetime) or (key == "repair" and not kind.is_loss)):
        return f"{kind.kind} has no {'duration' if key == 'for' else 'repair'}: leave it out"
    if key == "repair":
        return f"with the built-in job write --repair {text}, else leave it out"
    return f"{key} is an option of every fault: write --{key} {text}"


def read_pairs(
    pairs: Collection[str],
    kind: type[Fault[Any]] | None,
    problems: Problems,
    *,
    index: int = 0,
    of_fault: str = "",
) -> dict[str, Any]:
    """The parameters that `pairs` give, each as a file would have it; as text where a fault of `kind` takes only that.

    They are of fault `index`, and `of_fault` marks its options in a message.

    A pair that is not KEY=VALUE, is given twice, or names a key of every fault is one of the `problems`. All else is
    judged with the experiment.
    """
    found: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        wrong: str | None = None
        if not key or not equals:
            wrong = "write KEY=VALUE, such as delay=50ms"
        elif key in FAULT_KEYS:
            wrong = _about_option(key, text, kind)
            if kind is not None and kind.Parameters.model_fields:
                wrong += f"; {kind.kind} itself takes {', '.join(kind.Parameters.model_fields)}"
        elif key in texts:
            wrong = f"{key} is given twice"
        else:
            try:
                found[key], texts[key] = plain(text), text
            except UsageError as error:
                wrong = error.message
        if wrong is not None:
            problems.note(("faults", index, key), UsageError(wrong, key=f"--param {shown(pair)}{of_fault}"))
    try:
        if kind is not None:
            kind.Parameters.model_validate(found)
    except ValidationError as error:
        wants_text = {details["loc"][0] for details in error.errors() if details["type"] == "string_type"}
        found.update({key: texts[key] for key in texts if key in wants_text})
    except UsageError:
        pass
    for key, text in texts.items():
        if not text and found[key] is None:
            message = "has no value: write KEY=VALUE, such as delay=50ms"
            problems.note(("faults", index, key), UsageError(message, key=f"--param {named(key)}{of_fault}"))
            del found[key]
    return found
