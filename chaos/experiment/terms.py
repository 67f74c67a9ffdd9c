"""By which option the command line says what a file says by a key, and the other way round.

The settings of a job have their options in `mecefo_runtime.job`, those of a backend in its description; the rest is
listed here.
"""

from __future__ import annotations

from collections.abc import Mapping

from chaos.experiment.backends import backends
from chaos.experiment.experiment import Experiment
from chaos.experiment.fault_spec import FAULT_KEYS
from chaos.language.yaml_lines import KeyPath
from mecefo_runtime.job.command_settings import CommandSettings
from mecefo_runtime.job.config import JobSettings
from mecefo_runtime.job.setting import places

_SETTINGS: Mapping[str, KeyPath] = {
    place.setting.option.name: ("job", *place.path)
    for place in (*places(CommandSettings), *places(JobSettings))
    if place.setting.option is not None and place.setting.option.in_run
}
OPTIONS_OF_PARTS = tuple(name for name, path in _SETTINGS.items() if len(path) > 2)
"""The names of the options of settings that are within a part of the job, such as its checkpoints."""
_PLACES: Mapping[str, KeyPath] = {
    **_SETTINGS,
    **{key: (key,) for key in ("backend", "name", "network", "profile", "seed")},
}


def option_name(option: str) -> str:
    """The option of that name as it is written."""
    return "--param" if option == "parameters" else f"--{option.replace('_', '-')}"


def is_of_a_fault(option: str) -> bool:
    """Whether the option of that name says something of one fault, and not of the experiment."""
    return option in FAULT_KEYS or option == "parameters"


def place_of(option: str, fault: int = 0) -> KeyPath:
    """Where a file says what the option of that name says: one about a fault, of fault number `fault`."""
    if is_of_a_fault(option):
        return ("faults", fault, option)
    known = {**_PLACES, **_places_of_backends()}
    if option in known:
        return known[option]
    return (option,) if option in Experiment.model_fields else ("job", option)


def terms() -> Mapping[str, str]:
    """Key -> option; what stands beside every fault by its bare key."""
    known = {**_PLACES, **_places_of_backends()}
    return {
        **{".".join(map(str, path)): option_name(option) for option, path in known.items()},
        **{key: option_name(key) for key in FAULT_KEYS if key not in ("kind", "draw")},
    }


def _places_of_backends() -> dict[str, KeyPath]:
    return {option.name: (one.settings_key, key) for one in backends().values() for key, option in one.options.items()}
