"""Writes an experiment file as a person would: the options of the command line and no more, with comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from chaos.experiment.backends import about_backends, backends
from chaos.experiment.command_job import CommandJob
from chaos.experiment.experiment import Experiment
from chaos.experiment.fault_options import MORE_FAULTS, FaultOptions
from chaos.experiment.fault_spec import FAULT_KEYS, FaultSpec
from chaos.experiment.gate_spec import aborting
from chaos.experiment.job import Checkpoint, Job, Snapshots
from chaos.experiment.reading import installed_faults
from chaos.experiment.sources import NO_FAULT, read_pairs
from chaos.experiment.terms import is_of_a_fault, place_of
from chaos.language.validation_errors import Problems, Source
from chaos.language.yaml_lines import Dumper

_MAX_LINE = 118
_COMMENT_COLUMN = 30
_OWN_MODELS: Mapping[str, type[BaseModel]] = {"checkpoint": Checkpoint, "snapshots": Snapshots}
_KEYS_FIRST = ("name", "seed", "backend", "network", "job", "profile", "faults", "twin", "gates")


def experiment_text(subject: str | None, options: Mapping[str, Any], *, name: str, file: str) -> str:
    """The file that says what `options` say of `subject`, which `read_options` has accepted."""
    values = _values(subject, options, name)
    settings = {one.settings_key: one for one in backends().values() if one.settings_key}
    network = _KEYS_FIRST.index("network") + 1
    first = (*_KEYS_FIRST[:network], *settings, *_KEYS_FIRST[network:])
    ordered = sorted(values, key=lambda key: first.index(key) if key in first else len(first))
    words = {key: field.description for key, field in Experiment.model_fields.items()}
    words |= {key: f"{one.nodes} of the {one.name} backend" for key, one in settings.items()}
    words["backend"] = about_backends()
    lines = [f"# Check this experiment with `chaos validate {file}`, run it with `chaos run {file}`."]
    for key in ordered:
        value: Any = values[key]
        is_nested = isinstance(value, (Mapping, list)) and bool(value)
        if is_nested:
            lines += ["", *_commented(f"{key}:", words.get(key))]
            lines += _faults(value) if key == "faults" else _gates(value) if key == "gates" else _block(key, value)
        else:
            lines += _commented(f"{key}: {_scalar(value)}", None if key == "name" else words.get(key))
    if "gates" not in values:
        lines += [
            "",
            *_commented("# gates:", "pass criteria; `chaos gates` lists metrics"),
            "#   - recovery_seconds < 60",
        ]
    return "\n".join(lines) + "\n"


def _values(subject: str | None, options: Mapping[str, Any], name: str) -> dict[str, Any]:
    values: dict[str, Any] = {"name": name}
    if subject is not None:
        more: Sequence[FaultOptions] = options.get(MORE_FAULTS, ())
        own = {option: value for option, value in options.items() if is_of_a_fault(option)}
        faults = [] if subject == NO_FAULT else [FaultOptions(subject, own), *more]
        values["faults"] = [_fault(fault) for fault in faults]
    gates: list[Any] = [*options.get("gates", ()), *aborting(options.get("abort_unless", ()))]
    if gates:
        values["gates"] = aborting(gates) if options.get("abort_on_fail") else gates
    if "command" in options:
        values["job"] = {"runtime": "command", "command": list(options["command"])}
    for option, value in options.items():
        if option in ("gates", "abort_unless", "abort_on_fail", "command", MORE_FAULTS) or is_of_a_fault(option):
            continue
        place = values
        *outer, last = map(str, place_of(option))
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return values


def _fault(fault: FaultOptions) -> dict[str, Any]:
    values = {"kind": fault.kind, **fault.options}
    pairs = values.pop("parameters", ())
    return values | read_pairs(pairs, installed_faults().get(fault.kind), Problems(Source()))


def _block(name: str, values: Mapping[str, Any], indent: str = "  ") -> Iterator[str]:
    is_command = name == "job" and values.get("runtime") == "command"
    own = {**_OWN_MODELS, **{one.settings_key: one.Settings for one in backends().values() if one.settings_key}}
    model = CommandJob if is_command else own.get(name, Job)
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _commented(f"{indent}{key}:", _text(model, key))
            yield from _block(key, value, f"{indent}  ")
        else:
            yield from _commented(f"{indent}{key}: {_scalar(value)}", _text(model, key))


def _faults(faults: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for fault in faults:
        kind = installed_faults()[fault["kind"]]
        yield from _commented(f"  - kind: {fault['kind']}", (kind.__doc__ or "").strip().splitlines()[0].rstrip("."))
        for key in (*(key for key in FAULT_KEYS if key in fault and key != "kind"), *(fault.keys() - set(FAULT_KEYS))):
            own = kind.Parameters.model_fields.get(key)
            text = _text(FaultSpec, "lifetime" if key == "for" else key) if own is None else own.description
            yield from _commented(f"    {key}: {_scalar(fault[key])}", text)


def _text(model: type[BaseModel], key: str) -> str | None:
    field = model.model_fields.get(key)
    return None if field is None else field.description


def _gates(gates: Sequence[Any]) -> Iterator[str]:
    for gate in gates:
        yield f"  - {_scalar(gate)}"


def _commented(line: str, words: str | None) -> list[str]:
    """`line` with a comment behind it, or above it where both do not fit."""
    if not words:
        return [line]
    behind = f"{line:<{_COMMENT_COLUMN}}  # {words}"
    indent = " " * (len(line) - len(line.lstrip()))
    return [behind] if len(behind) <= _MAX_LINE else [f"{indent}# {words}", line]


def _scalar(value: Any) -> str:
    """On one line, read again as the same."""
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("...").rstrip("\n")
