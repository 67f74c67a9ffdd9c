"""Faults of numbers inside a rank: flipped bits, infinities, NaN, scaled or stale values.

Parameters, gradients, activations and the optimizer's state; which tensor and element is named or drawn from the seed.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from chaos.errors import UsageError, nearest, shown
from chaos.faults._inside import ParametersT
from chaos.faults.device._tensors import (
    BEFORE_REDUCTION,
    EFFECTS,
    LAYER_DESCRIPTION,
    PHASES_OF,
    ElementParameters,
    TensorFault,
    Where,
)

# Of the widest numbers that there are.
HIGHEST_BIT = 63
Part = Literal["drawn", "sign", "exponent", "mantissa"]


class FlipParameters(ElementParameters):
    """Which bit of each element, and whether it stays as it became."""

    bit: Annotated[int, Field(ge=0, le=HIGHEST_BIT)] | Part = Field(
        default="drawn", description="a number from 0, the mantissa's lowest, or one drawn from all bits or from a part"
    )
    sticky: bool = Field(default=False, description="whether the bit is set again in every step of the lifetime")

    @field_validator("bit", mode="before")
    @classmethod
    def _is_one(cls, bit: object) -> object:
        # Before the two of the union each say what is wrong with it.
        bit = int(bit) if isinstance(bit, str) and bit.isascii() and bit.isdigit() else bit
        if bit in get_args(Part) or (isinstance(bit, int) and not isinstance(bit, bool) and 0 <= bit <= HIGHEST_BIT):
            return bit
        message = f"must be a number from 0 to {HIGHEST_BIT}, or {', '.join(get_args(Part))}, not {shown(bit)}"
        raise UsageError(message, key="bit", suggestion=nearest(str(bit), get_args(Part)))


class ShareParameters(ElementParameters):
    """Which elements of the tensor, or which share of all."""

    share: float | None = Field(
        default=None, gt=0, le=1, description="instead of elements: this share of all elements, drawn by the seed"
    )

    @model_validator(mode="after")
    def _says_one(self) -> ShareParameters:
        if self.share is not None and self.elements is not None:
            raise UsageError("share and elements exclude each other: give one of them", key="share")
        return self


class ScaleParameters(ShareParameters):
    """By what is multiplied: all of the tensor's elements, where neither index nor elements nor share is said."""

    elements: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="number of elements; default: the whole tensor",
    )
    factor: float = Field(default=1000.0, allow_inf_nan=False, description="factor for each element, not 1")

    @field_validator("factor")
    @classmethod
    def _changes_something(cls, factor: float) -> float:
        if factor == 1:
            raise UsageError("1 changes nothing: choose another factor, such as 1000, 0.5, 0 or -1", key="factor")
        return factor


class StaleParameters(BaseModel):
    """Which of the rank's gradients are used again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensor: str | None = Field(
        default=None, min_length=1, max_length=200, description="a name or pattern, layer.3.*.weight; default: all"
    )
    layer: int | None = Field(default=None, ge=0, description=LAYER_DESCRIPTION)


class _ElementFault(TensorFault[ParametersT]):
    """Faults on elements of what `where` says."""

    how: ClassVar[str]

    def _effect(self) -> tuple[str, dict[str, Any]]:
        values = self.parameters.model_dump(mode="json", exclude_none=True)
        where: Where = values.pop("where")
        # What an experiment calls `count` is how often a fault fires.
        count = {"count": values.pop("elements")} if "elements" in values else {}
        return EFFECTS[where], {"how": self.how, **values, **count, **self._numbers()}

    def _numbers(self) -> dict[str, Any]:
        return {}

    @classmethod
    def phases_for(cls, parameters: BaseModel) -> tuple[str, ...]:
        """The phases before the affected tensor is used."""
        return PHASES_OF[getattr(parameters, "where", "parameters")]


class BitFlip(_ElementFault[FlipParameters]):
    """Flips bits of parameters, gradients, activations or optimizer state; one-off or stuck."""

    kind: ClassVar[str] = "bit-flip"
    brief: ClassVar[str] = "flip bits in tensors"
    how: ClassVar[str] = "flip"
    # Only when it is sticky: see `lasts`.
    has_lifetime: ClassVar[bool] = True
    undo_summary: ClassVar[str] = "a stuck bit is released; wrong values stay unless the job repairs them"
    Parameters: ClassVar[type[BaseModel]] = FlipParameters

    def lasts(self) -> bool:
        """A stuck bit stays so; one that flipped once is over at once."""
        return self.parameters.sticky


class SetNan(_ElementFault[ShareParameters]):
    """Writes not-a-numbers into parameters, gradients, activations or optimizer state."""

    kind: ClassVar[str] = "set-nan"
    brief: ClassVar[str] = "NaN in tensors"
    how: ClassVar[str] = "fill"
    Parameters: ClassVar[type[BaseModel]] = ShareParameters

    def _numbers(self) -> dict[str, Any]:
        return {"number": "nan"}


class SetInf(_ElementFault[ShareParameters]):
    """Writes infinities into parameters, gradients, activations or optimizer state."""

    kind: ClassVar[str] = "set-inf"
    brief: ClassVar[str] = "infinities in tensors"
    how: ClassVar[str] = "fill"
    Parameters: ClassVar[type[BaseModel]] = ShareParameters

    def _numbers(self) -> dict[str, Any]:
        return {"number": "inf"}


class Scale(_ElementFault[ScaleParameters]):
    """Multiplies parameters, gradients, activations or optimizer state by a factor."""

    kind: ClassVar[str] = "scale"
    brief: ClassVar[str] = "multiply tensors by a factor"
    how: ClassVar[str] = "scale"
    Parameters: ClassVar[type[BaseModel]] = ScaleParameters

    def _effect(self) -> tuple[str, dict[str, Any]]:
        effect, arguments = super()._effect()
        arguments["number"] = arguments.pop("factor")
        if not {"index", "count", "share"} & arguments.keys():
            arguments["share"] = 1.0
        return effect, arguments


class StaleGradient(TensorFault[StaleParameters]):
    """Has a rank use the gradients of this step again in the next one."""

    kind: ClassVar[str] = "stale-gradient"
    brief: ClassVar[str] = "reuse the previous gradients"
    Parameters: ClassVar[type[BaseModel]] = StaleParameters

    def _effect(self) -> tuple[str, dict[str, Any]]:
        return "chaos.in_process.gradients:KeepGradients", self.parameters.model_dump(mode="json", exclude_none=True)

    @classmethod
    def phases_for(cls, parameters: BaseModel) -> tuple[str, ...]:
        """The step's gradients must lie ahead."""
        return BEFORE_REDUCTION
