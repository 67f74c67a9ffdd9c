"""An effect: what a fault does inside a rank, until it is lifted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

TensorKind = Literal["parameters", "gradients", "optimizer"]


class Subject(Protocol):
    """The training that goes on in the rank, as effects see it. Names are `unit.parameter`, as in state dicts."""

    def modules(self) -> Mapping[str, nn.Module]:
        """The modules that it trains, by name; those of which parameters are held here."""
        ...

    def tensors(self, kind: TensorKind) -> Mapping[str, Tensor]:
        """Its tensors by name, the very ones that it computes with; optimizer state is `name.state`."""
        ...

    def updater(self, name: str) -> tuple[Optimizer, Tensor, int]:
        """Who updates a parameter: its optimizer, the tensor as that one knows it, the parameter's first element there.

        Raises:
            LookupError: no optimizer is known to update it.
        """
        ...


class InProcessFaultRefused(Exception):
    """The effect cannot be had in this rank; the message says why."""


class InProcessFault(ABC):
    """One effect in one rank. All methods are called on the training thread.

    It is lifted when the injector says so, and also when the connection to the injector ends.
    """

    def __init__(
        self, arguments: Mapping[str, Any], subject: Subject | None, report: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self.arguments = arguments
        self.subject = subject
        # Tells the injector what was seen: plain JSON values.
        self.report = report

    def exposed(self, subject: Subject) -> None:
        """From now on the rank trains with `subject`: what is active is active there."""
        self.subject = subject

    @abstractmethod
    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Begin, while the rank is held before `phase` of `step`; returns what was done as plain JSON values.

        Raises:
            InProcessFaultRefused: it cannot be done here.
        """

    def released(self) -> None:
        """The hold is over: what ends or blocks the rank is done here, so that the injector was told before."""
        return

    def announced(self, step: int, phase: str) -> None:
        """The rank is about to enter `phase` of `step`; called as long as the effect is active."""
        return

    def lift(self) -> dict[str, Any]:
        """End it; returns what was changed back as plain JSON values. Called once."""
        return {}
