"""The settings of containers in an experiment: image and limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from chaos.errors import UsageError
from chaos.experiment.fields import Said, Text
from chaos.language.quantities import BytesText
from chaos.language.sizes import bytes_text
from chaos.language.validation_errors import said

# Less than any process takes that has torch in it.
_MIN_NODE_BYTES = 64 * 2**20


def _enough(memory_bytes: object) -> object:
    if isinstance(memory_bytes, int) and memory_bytes < _MIN_NODE_BYTES:
        least = bytes_text(_MIN_NODE_BYTES)
        raise UsageError(f"must be at least {least}: a rank with torch in it takes more than that")
    return memory_bytes


class Containers(Said):
    """What a node of the docker backend is: its image, and its share of this machine.

    `cpus` of a core's time and `memory` are of each node; None: as much as there is.
    """

    image: Text = Field(default="mecefo-chaos", description="image of all containers")
    cpus: float | None = Field(
        default=None,
        ge=0.1,
        le=4096,
        allow_inf_nan=False,
        description="CPU limit of each node, in cores; default: no limit",
    )
    memory: Annotated[BytesText | None, AfterValidator(said(_enough))] = Field(
        default=None, description="memory limit of each node; default: no limit"
    )
