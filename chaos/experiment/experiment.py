"""The experiment: which job, which faults, what must hold, as one frozen value. `reading` makes it of a user's text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    PlainValidator,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    Tag,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from chaos.experiment.backends import (
    BackendDescription,
    backend_name,
    backends,
    settings_from,
    settings_model,
    written_settings,
)
from chaos.experiment.command_job import CommandJob
from chaos.experiment.fault_spec import FaultSpec
from chaos.experiment.fields import ProfileText, Said, Text
from chaos.experiment.gate_spec import GateText
from chaos.experiment.job import Job
from chaos.experiment.limits import Limits
from chaos.language.identity import hash_of
from chaos.language.validation_errors import BACKEND_SETTINGS, said
from chaos.language.yaml_lines import Dumper
from chaos.plugins import DEFAULT_BACKEND
from mecefo_runtime.job.layout import Cluster


def runtime_of(job: object) -> str:
    """Which of the models of a job reads `job`."""
    runtime = job.get("runtime") if isinstance(job, Mapping) else getattr(job, "runtime", None)
    return "command" if runtime == "command" else "mecefo"


AnyJob = Annotated[Annotated[Job, Tag("mecefo")] | Annotated[CommandJob, Tag("command")], Discriminator(runtime_of)]


class Experiment(Said):
    """One experiment; `gates` and `halt` are expressions that the harness understands.

    `profile` adds faults as a real cluster has them, drawn from the seed; `limits` cap what is affected at once.
    `network` is what connects the ranks of the local backend: the machine's loopback, or a network namespace for each
    of them, whose links can be cut; `auto`: namespaces where a fault needs links. `backend_settings` are those of all
    backends; in a file each has a separate key.
    """

    name: Text = Field(description="name of the experiment and of the folder of its runs")
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="seed of everything random: weights, order of the data, drawn targets and times",
    )
    job: AnyJob = Field(
        default=Job(),
        description="the training job: the built-in one, or with `runtime: command` your own training script",
    )
    faults: list[FaultSpec] = Field(
        default_factory=list, max_length=1000, description="faults to inject: what, when, on which target"
    )
    profile: ProfileText | None = Field(
        default=None, description="more faults, drawn in the proportions of a real cluster; `failures` is their number"
    )
    limits: Limits = Field(default=Limits(), description="maximum number of nodes and ranks affected at once")
    gates: list[GateText] = Field(default_factory=list, description="pass criteria: the run fails if one of them fails")
    halt: list[Text] = Field(
        default_factory=list,
        description="conditions checked after every step; the first that becomes true ends the run",
    )
    twin: bool = Field(
        default=True, description="also run the same job without faults, to compare with: the fault-free baseline"
    )
    backend: Annotated[str, PlainValidator(said(backend_name)), WithJsonSchema({"type": "string"})] = Field(
        default=DEFAULT_BACKEND, description="the nodes"
    )
    network: Literal["auto", "namespaces", "loopback"] = Field(
        default="auto",
        description="network between ranks here: `loopback`, a network namespace each, or what the faults need",
    )
    backend_settings: Annotated[SerializeAsAny[BaseModel], PlainValidator(settings_from)] = Field(
        default_factory=settings_from, alias="\0settings"
    )

    @property
    def nodes_on(self) -> BackendDescription:
        """What its nodes are: its backend."""
        return backends()[self.backend]

    @property
    def node_settings(self) -> Any:
        """The settings of its backend, of the type `Settings` of that."""
        return self.nodes_on.settings_among(self.backend_settings)

    @model_validator(mode="before")
    @classmethod
    def _gather_backend_settings(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        settings = {key: values[key] for key in settings_model().model_fields if key in values}
        rest = {key: value for key, value in values.items() if key not in settings}
        return {**rest, BACKEND_SETTINGS: settings}

    @model_serializer(mode="wrap")
    def _to_mapping(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        settings = values.pop("backend_settings")
        return {**values, **written_settings(settings)}

    def cluster(self) -> Cluster:
        """The cluster that its job runs on."""
        return self.job.to_config(self.seed, 1.0).cluster()


def experiment_hash(experiment: Experiment) -> str:
    """The identity of an experiment: the same for all files that say the same. 16 hexadecimal digits."""
    return hash_of(experiment.model_dump(mode="json"))


def to_yaml(experiment: Experiment) -> str:
    """The experiment as a file that `load` reads again, all defaults written out."""
    values = experiment.model_dump(mode="json", exclude_none=True)
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True)
