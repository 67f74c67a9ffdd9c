"""The faults that a command line describes: their kinds, their options, and by which option a message names each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chaos.errors import UsageError, nearest, shown
from chaos.experiment.fault_options import AND, MORE_FAULTS, FaultOptions
from chaos.experiment.fault_spec import FAULT_KEYS, OTHER_NAMES
from chaos.experiment.parameter_pairs import named, read_pairs
from chaos.experiment.terms import is_of_a_fault, option_name, place_of
from chaos.language.validation_errors import Problems
from chaos.language.yaml_lines import KeyPath, Mistake

if TYPE_CHECKING:
    from chaos.faults.base import Fault

    Registry = Mapping[str, type[Fault[Any]]]

NO_FAULT = "none"
"""In place of a kind of fault."""
_MAX_NAMED = 4
"""Faults that the name of an experiment names."""


def first_fault(kind: str, line: Sequence[str], kinds: Registry, labels: dict[KeyPath, str]) -> dict[str, Any]:
    """The experiment with a fault of that `kind`, the first of a command line with faults of the kinds `line`."""
    _label(line, 0, 0, kinds, labels)
    name = _name(line) if all(one in kinds for one in line) else "unnamed"
    return {"name": name, "faults": [{"kind": kind}]}


def beside_no_fault(options: Mapping[str, Any]) -> Iterator[Mistake]:
    """The mistakes in what `options` say of faults, in a run without a fault."""
    for option in options:
        if is_of_a_fault(option):
            yield ("faults",), UsageError(f"{NO_FAULT} is a run without a fault: leave it out", key=option_name(option))
    for fault in options.get(MORE_FAULTS, ()):
        message = f"{NO_FAULT} is a run without a fault: write {fault.kind} in its place"
        yield ("faults",), UsageError(message, key=AND)


def put_fault_options(
    values: dict[str, Any],
    options: Mapping[str, Any],
    problems: Problems,
    labels: dict[KeyPath, str],
    kinds: Registry,
    *,
    index: int = 0,
    of_fault: str = "",
) -> None:
    """Put what `options` say of fault `index` into `values`, and the place of each into `labels`.

    `of_fault` marks the options of this fault in a message, as of `distinction`.
    """
    faults = values.get("faults")
    fault = faults[index] if isinstance(faults, list) and index < len(faults) else None
    if not isinstance(fault, dict):
        return
    for option, value in options.items():
        where = place_of(option, index)
        if not problems.are_sound(where):
            continue
        if option == "parameters":
            kind = kinds.get(str(fault.get("kind")))
            for key, read in read_pairs(value, kind, problems, index=index, of_fault=of_fault).items():
                fault[key] = read
                labels["faults", index, key] = f"--param {named(key)}{of_fault}"
            continue
        fault[option] = value
        labels[where] = f"{option_name(option)}{of_fault}"


def put_more_faults(
    values: dict[str, Any],
    more: Sequence[FaultOptions],
    line: Sequence[str],
    problems: Problems,
    labels: dict[KeyPath, str],
    kinds: Registry,
) -> None:
    """Add the faults `more` to those of `values`; `line` are the kinds of all faults that the command line names.

    Where `values` are of a file, the first of `line` stands for all of the file's.
    """
    faults = values.setdefault("faults", [])
    if not isinstance(faults, list):
        return
    for place, fault in enumerate(more, 1):
        index = len(faults)
        faults.append({"kind": fault.kind})
        _label(line, place, index, kinds, labels)
        if fault.kind not in kinds:
            problems.note(("faults", index, "kind"), no_such_fault(fault.kind, kinds, key=AND))
        put_fault_options(
            values, fault.options, problems, labels, kinds, index=index, of_fault=distinction(line, place)
        )


def no_such_fault(kind: str, kinds: Registry, or_else: str = "", *, key: str | None = None) -> UsageError:
    """The error for an unknown `kind`, with the nearest one; `or_else` names an alternative, `key` is the option."""
    guess = OTHER_NAMES.get(kind.lower()) or nearest(kind, kinds)
    several = [name for name in kinds if name.startswith(f"{kind}-")]
    if len(several) > 1:
        return UsageError(f"there is no fault {shown(kind)}: write one of {', '.join(several)}", key=key)
    others = "; `chaos faults` lists all" if guess else f": `chaos faults` lists all{or_else}"
    return UsageError(f"there is no fault {shown(kind)}{others}", key=key, suggestion=guess)


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


def _label(line: Sequence[str], place: int, index: int, kinds: Registry, labels: dict[KeyPath, str]) -> None:
    """Put into `labels` by which options the fault at `place` of a command line is described, which is `index` now."""
    of_fault = distinction(line, place)
    where: KeyPath = ("faults", index)
    labels[where] = f"fault {index + 1}" if of_fault else ""
    labels.update({(*where, key): f"{option_name(key)}{of_fault}" for key in FAULT_KEYS if key not in ("kind", "draw")})
    if (kind := kinds.get(line[place])) is not None:
        labels.update({(*where, key): f"--param {key}{of_fault}" for key in kind.Parameters.model_fields})
