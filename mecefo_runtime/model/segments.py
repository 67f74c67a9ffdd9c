"""The flat order of a unit's parameters, and which of them are treated alike."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from mecefo_runtime.model.block_adapters import adapter_of
from mecefo_runtime.model.model import Block


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring parameters of a unit that are treated alike.

    `is_attention`: they get no gradient while the unit is degraded. `is_decayed`: weight decay applies to them.
    """

    parameters: tuple[nn.Parameter, ...]
    is_attention: bool
    is_decayed: bool


def segments(module: nn.Module) -> tuple[Segment, ...]:
    """A unit's parameters in their fixed flat order: attention before the rest, decayed before undecayed.

    Segments without parameters are left out.
    """
    attention = set(adapter_of(module).attention_parameters()) if isinstance(module, Block) else set()
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {
        (is_attention, is_decayed): [] for is_attention in (True, False) for is_decayed in (True, False)
    }
    for parameter in module.parameters():
        groups[parameter in attention, parameter.ndim >= 2].append(parameter)
    return tuple(Segment(tuple(parameters), *key) for key, parameters in groups.items() if parameters)
