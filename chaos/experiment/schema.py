"""The JSON Schema of experiment files, for editors."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from chaos.experiment.backends import about_backends, backends, schema_of_settings
from chaos.experiment.experiment import Experiment
from chaos.experiment.fault_spec import FAULT_KEYS
from chaos.experiment.reading import installed_faults, installed_planners
from chaos.language.target import WITHOUT_TARGET
from chaos.language.validation_errors import BACKEND_SETTINGS

if TYPE_CHECKING:
    from chaos.experiment.sources import Registry
    from chaos.faults.base import Fault


def json_schema(*, registry: Registry | None = None, strategies: Collection[str] | None = None) -> dict[str, Any]:
    """The JSON Schema (2020-12) of experiment files."""
    schema = Experiment.model_json_schema()
    definitions = schema["$defs"]
    schema["properties"]["backend"] |= {"enum": list(backends()), "description": about_backends()}
    del schema["properties"][BACKEND_SETTINGS]
    settings = schema_of_settings()
    schema["properties"].update(settings["properties"])
    definitions.update(settings.get("$defs", {}))
    definitions["Job"]["properties"]["strategy"]["enum"] = list(
        installed_planners() if strategies is None else strategies
    )
    common = definitions["FaultSpec"]["properties"]
    variants = []
    for kind, fault in (installed_faults() if registry is None else registry).items():
        # With defaults as a user would write them: 512MiB, not bytes.
        own = fault.Parameters.model_json_schema(mode="serialization")
        definitions.update(own.get("$defs", {}))
        variants.append(
            {
                "type": "object",
                "title": kind,
                "description": (fault.__doc__ or kind).strip().splitlines()[0],
                "properties": {
                    "kind": {"const": kind},
                    **{key: common[key] for key in FAULT_KEYS if key not in _without(fault)},
                    **own.get("properties", {}),
                },
                "required": ["kind", *own.get("required", [])],
                "anyOf": [{"required": [key]} for key in ("at", "every", "rate")],
                "additionalProperties": False,
            }
        )
    definitions["FaultSpec"] = {"oneOf": variants}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _without(fault: type[Fault[Any]]) -> Collection[str]:
    """Keys of which a fault of this kind has none, or, `kind`, of which the schema says more."""
    no_lifetime = () if fault.has_lifetime else ("for",)
    return ("kind", *no_lifetime, *(("on",) if fault.scope in WITHOUT_TARGET else ()))
