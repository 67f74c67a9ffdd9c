"""The experiment: which job, which faults, what must hold, as one frozen value. `reading` makes it of a user's text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import yaml
from pydantic import Discriminator, Field, Tag

from chaos.experiment.command_job import CommandJob
from chaos.experiment.fault_spec import FaultSpec
from chaos.experiment.fields import ProfileText, Said, Text
from chaos.experiment.gate_spec import GateText
from chaos.experiment.job import Containers, Job
from chaos.experiment.limits import Limits
from chaos.language.identity import hash_of
from chaos.language.yaml_lines import Dumper
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
    of them, whose links can be cut; `auto`: namespaces where a fault needs links. `containers` is what the nodes of the
    docker backend are.
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
    backend: Literal["local", "docker"] = Field(
        default="local", description="what a node is: a process group on this machine (local), or a container (docker)"
    )
    network: Literal["auto", "namespaces", "loopback"] = Field(
        default="auto",
        description="network between ranks here: `loopback`, a network namespace each, or what the faults need",
    )
    containers: Containers = Field(default=Containers(), description="containers of the docker backend")

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
