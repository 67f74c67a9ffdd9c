"""Backends as an experiment knows them: their names, their settings, and what their nodes can do.

A backend itself starts processes, which is the harness's: here are only values, which the entry points of the group
`chaos.backends` name, ours among them. So an experiment can be read where no backend could run.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, create_model

from chaos.errors import EnvironmentFailure, UsageError, nearest, shown
from chaos.experiment.fields import Said
from chaos.plugins import BACKENDS, DEFAULT_BACKEND, plugins

# The module of a backend's folder that describes it.
DESCRIPTION_MODULE = "kind"
# What else an experiment has (`Experiment`): no backend can have its settings there.
EXPERIMENT_KEYS = frozenset(
    ("name", "seed", "job", "faults", "profile", "limits", "gates", "halt", "twin", "backend", "network")
)


@dataclass(frozen=True, slots=True)
class SettingOption:
    """The option of `chaos run` for a setting of a backend."""

    flag: str
    metavar: str
    help: str
    type: Literal["text", "integer", "number"] = "text"

    @property
    def name(self) -> str:
        """The flag as an identifier."""
        return self.flag.removeprefix("--").replace("-", "_")


class BackendDescription:
    """What an experiment knows of a backend; the module of a derived class imports nothing that takes long.

    `node` is the noun for one of its nodes with its article, such as "a process group". An experiment has the settings
    under `settings_key`; "": there are none.
    """

    name: ClassVar[str]
    node: ClassVar[str]
    Settings: ClassVar[type[BaseModel]] = Said
    settings_key: ClassVar[str] = ""
    options: ClassVar[Mapping[str, SettingOption]] = MappingProxyType({})
    """Setting -> its option on the command line."""
    settings_are_always_written: ClassVar[bool] = False
    """Whether they are part of every experiment's identity, also of one on another backend."""

    has_own_networks: ClassVar[bool] = False
    """Each node has a separate network, and the links between them can be changed."""
    links_are_connections: ClassVar[bool] = False
    """The links between nodes are changed through the run's own TCP connections: no right is needed for that, and there
    is neither delay nor loss."""
    divides_network: ClassVar[bool] = False
    """Ranks can have network namespaces on this machine, where it allows them; `network` chooses."""
    has_own_files: ClassVar[bool] = False
    """A node has its own programs and files, and sees only some folders of this machine."""
    starts_command_on_each_node: ClassVar[bool] = True
    """A command is started on every node, and once: there is neither a baseline nor a reset. Else it is started on this
    machine, starts its nodes itself, and can be started again."""

    def settings_among(self, settings: BaseModel) -> Any:
        """The backend's own settings, of the type `Settings`, among those of all backends (see `settings_model`)."""
        return getattr(settings, self.settings_key) if self.settings_key else self.Settings()

    spans_hosts: ClassVar[bool] = False
    """Its nodes are hosts: what is known of this machine says nothing of theirs."""

    def is_implied(self, settings: Mapping[str, Any]) -> bool:
        """Whether a command is to run on it where no backend is named; `settings` are its own, as they are written."""
        return False

    def shape(self, settings: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """(nodes, ranks on each) of a command that does not tell them; None: one."""
        return None, None

    node_memory_key: ClassVar[str] = ""
    """The setting that limits the memory of a node, as in `containers.memory`; "": there is none."""

    def node_memory_bytes(self, settings: Any) -> int | None:
        """The limit by `node_memory_key`; None: as much as there is."""
        memory: int | None = (
            getattr(settings, self.node_memory_key.rpartition(".")[2]) if self.node_memory_key else None
        )
        return memory

    @property
    def one_node(self) -> str:
        """The noun for a node, without its article: "process group"."""
        return self.node.split(maxsplit=1)[1]

    @property
    def nodes(self) -> str:
        """What several nodes are: "process groups"."""
        return f"{self.one_node}s"


def backends() -> Mapping[str, BackendDescription]:
    """Name -> description, the default one first. Plug-ins that cannot be used are left out; see `broken_backends`.

    Raises:
        EnvironmentFailure: there is none, not even ours.
    """
    found = _load()[0]
    if DEFAULT_BACKEND not in found:
        why = "".join(f"; {where} {reason}" for where, reason in broken_backends().items())
        raise EnvironmentFailure(
            f"this installation names no backends: it is older than the sources, install them again (pip install){why}"
        )
    return found


def broken_backends() -> Mapping[str, str]:
    """Why the plug-ins that cannot be used cannot: entry point -> reason."""
    return _load()[1]


def backend_name(value: object) -> str:
    """The name of a backend.

    Raises:
        UsageError: there is none of that name, with the nearest one.
    """
    names = tuple(backends())
    if isinstance(value, str) and value in names:
        return value
    quoted = [repr(name) for name in names]
    words = " or ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))
    broken = {where.split()[0]: f"; the plug-in {where} {reason}" for where, reason in broken_backends().items()}
    message = f"must be {words}, not {shown(value)}{broken.get(str(value), '')}"
    raise UsageError(message, suggestion=nearest(str(value), names))


@functools.cache
def settings_model() -> type[BaseModel]:
    """The settings of all backends that have some, each by its key."""
    fields: dict[str, Any] = {
        backend.settings_key: (backend.Settings, backend.Settings())
        for backend in backends().values()
        if backend.settings_key
    }
    return create_model("BackendSettings", __base__=Said, **fields)


def about_backends() -> str:
    """What a node is, by backend."""
    *others, last = (f"{one.node} ({one.name})" for one in backends().values())
    return f"a node is {', '.join(others)}, or {last}"


def settings_from(values: object = MappingProxyType({})) -> BaseModel:
    """The settings of all backends from plain `values`, by their keys.

    Raises:
        pydantic.ValidationError: some are wrong.
    """
    return settings_model().model_validate(values)


def schema_of_settings() -> dict[str, Any]:
    """The JSON Schema of `settings_model`, with a description of each key."""
    schema = settings_model().model_json_schema()
    for one in backends().values():
        if one.settings_key:
            about = {"description": f"{one.nodes} of the {one.name} backend"}
            schema["properties"][one.settings_key] = {**about, **schema["properties"][one.settings_key]}
    return schema


def written_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of the `settings` as plain values those that an experiment is written with."""
    defaults = settings_model()().model_dump(mode="json")
    always = {one.settings_key for one in backends().values() if one.settings_are_always_written}

    def is_said(key: str) -> bool:
        # What has no value may be left out.
        return any(value != defaults[key].get(name) for name, value in settings[key].items())

    return {key: value for key, value in settings.items() if key in always or is_said(key)}


@functools.cache
def _load() -> tuple[Mapping[str, BackendDescription], Mapping[str, str]]:
    found: dict[str, BackendDescription] = {}
    broken: dict[str, str] = {}
    for where, offered in plugins(BACKENDS, BackendDescription, DESCRIPTION_MODULE):
        if isinstance(offered, str):
            broken[where] = offered
            continue
        kinds = [kind for kind in offered if "name" in vars(kind)]
        if not kinds:
            broken[where] = "is neither a backend with a name nor a module with one"
        for kind in kinds:
            keys = {other.settings_key: other for other in found.values() if other.settings_key}
            if kind.name in found:
                broken[where] = f"has the name {kind.name!r}, which {type(found[kind.name]).__module__} has already"
            elif kind.settings_key in EXPERIMENT_KEYS:
                broken[where] = f"has its settings under the key {kind.settings_key!r}, which every experiment has"
            elif kind.settings_key in keys:
                broken[where] = f"has the key {kind.settings_key!r}, which {keys[kind.settings_key].name} has already"
            else:
                found[kind.name] = kind()
    ordered = sorted(found, key=lambda name: (name != DEFAULT_BACKEND, name))
    return MappingProxyType({name: found[name] for name in ordered}), MappingProxyType(broken)
