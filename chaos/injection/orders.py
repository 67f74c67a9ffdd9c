"""The orders of the injector to a fault executor, and the answers: values that go through JSON.

An order has a number, which no other order of the run has, so that it can be sent twice and is carried out once. The
order of the orders for one incident is a contract: look, prepare, record, apply, verify, lift, undo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from chaos.errors import (
    ChaosError,
    EffectNotSeen,
    EnvironmentFailure,
    HealError,
    InjectionError,
    NotOurs,
    ReasonedError,
    TargetNotFound,
    reason_of_error,
)
from chaos.faults.base import OwnedProcess
from chaos.language.target import ResolvedTarget
from chaos.refusals import refusal_text
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.wire import Message
from mecefo_runtime.system.wire_messages import Messages

# ---- orders ----


@dataclass(frozen=True, slots=True)
class Look:
    """Create the fault of `incident`, and learn of the run what `Prepare` needs and cannot wait for.

    `target` is the part of the incident's target that is on the executor's host. All that the fault draws, it draws
    from `seed`.
    """

    id: int
    incident: int
    fault: str
    target: ResolvedTarget
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Prepare:
    """Resolve the target on this host, and check that it belongs to the run. Nothing is changed."""

    id: int
    incident: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write the undo record to the ledger of this host, and sync it."""

    id: int
    incident: int


@dataclass(frozen=True, slots=True)
class Apply:
    """Inject the fault.

    After `lifetime_seconds` the executor ends the fault without an order, if the injector is silent.
    """

    id: int
    incident: int
    lifetime_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Verify:
    """Note in the ledger that the fault was applied, and wait until its effect is seen."""

    id: int
    incident: int


@dataclass(frozen=True, slots=True)
class Lift:
    """End the effect as far as only the living run can end it."""

    id: int
    incident: int


@dataclass(frozen=True, slots=True)
class Undo:
    """Undo from the record, check the undo, and close the entry of the ledger."""

    id: int
    incident: int


Order = Look | Prepare | Record | Apply | Verify | Lift | Undo


# ---- answers ----


@dataclass(frozen=True, slots=True)
class Looked:
    """The fault knows what it needs."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The processes and links of this host that the fault will affect."""

    processes: tuple[OwnedProcess, ...] = ()
    links: tuple[tuple[int, int], ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that it will affect, ascending."""
        ends = {rank for link in self.links for rank in link}
        return tuple(sorted(ends | {owned.rank for owned in self.processes if owned.rank is not None}))


@dataclass(frozen=True, slots=True)
class Recorded:
    """The undo record is on disk."""


RefusalKind = Literal[
    "refused", "target-not-found", "not-ours", "not-seen", "cannot-undo", "environment", "broken", "silent"
]
_CLASSES: Mapping[RefusalKind, type[ChaosError]] = {
    "target-not-found": TargetNotFound,
    "not-ours": NotOurs,
    "not-seen": EffectNotSeen,
    "refused": InjectionError,
    "silent": InjectionError,
    "cannot-undo": HealError,
    "environment": EnvironmentFailure,
}


@dataclass(frozen=True, slots=True)
class Refused:
    """The order was not carried out, or had no effect; `why` is the reason, as JSON.

    `broken`: the fault raised an exception that is not one of `chaos.errors`. `silent`: the executor does not answer,
    and whether it carried out the order is unknown.
    """

    kind: RefusalKind
    why: Mapping[str, Any]

    @classmethod
    def because(cls, why: Reason, kind: RefusalKind = "refused") -> Refused:
        """The refusal for this reason."""
        return cls(kind, why.to_dict())

    @classmethod
    def of(cls, error: ChaosError) -> Refused:
        """The refusal that stands for `error`."""
        kind: RefusalKind = next((kind for kind, known in _CLASSES.items() if isinstance(error, known)), "broken")
        return cls.because(reason_of_error(error), kind)

    @property
    def code(self) -> str:
        """Of the reason."""
        return Reason.from_dict(self.why).code

    def __str__(self) -> str:
        return refusal_text(Reason.from_dict(self.why))

    def error(self, host: str = "") -> ChaosError:
        """The error that it stands for; the sentence names `host`, if one is given."""
        why, kind = Reason.from_dict(self.why), _CLASSES.get(self.kind, InjectionError)
        if host and self.kind != "silent":
            why = why.with_fields(host=host, sentence=f"{host}: {self}")
        return kind(why) if issubclass(kind, ReasonedError) else kind(refusal_text(why))


@dataclass(frozen=True, slots=True)
class Applied:
    """The fault was applied, and took effect `at_seconds` (CLOCK_MONOTONIC of the host).

    `shows_when_released`: on this host its effect shows only when held ranks continue, also where that is not so of
    every fault of its kind.
    """

    at_seconds: float
    shows_when_released: bool = False


@dataclass(frozen=True, slots=True)
class Verified:
    """The effect was seen.

    `took_effect_seconds`: the fault was recognised by how it ended ranks, and took effect then (CLOCK_MONOTONIC of the
    host).
    """

    evidence: Mapping[str, Any]
    took_effect_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Lifted:
    """The effect has ended where only the run could end it; `ended_seconds` says when, where that is known."""

    ended_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Undone:
    """The undo was checked, and the entry of the ledger is closed."""

    evidence: Mapping[str, Any]


Answer = Looked | Prepared | Recorded | Applied | Verified | Lifted | Undone | Refused


# ---- as JSON ----

_ORDERS = Messages(
    {
        "look": Look,
        "prepare": Prepare,
        "record": Record,
        "apply": Apply,
        "verify": Verify,
        "lift": Lift,
        "undo": Undo,
    },
    "no order",
)
_ANSWERS = Messages(
    {
        "looked": Looked,
        "prepared": Prepared,
        "recorded": Recorded,
        "applied": Applied,
        "verified": Verified,
        "lifted": Lifted,
        "undone": Undone,
        "refused": Refused,
    },
    "no answer",
)


def word_of(order: Order) -> str:
    """The word for a kind of order."""
    return _ORDERS.word_of(order)


def message_to_json(message: Order | Answer) -> Message:
    """An order or an answer as a JSON object."""
    return (_ORDERS if isinstance(message, Order) else _ANSWERS).to_wire(message)


def order_from_json(raw: object) -> Order:
    """Read an order.

    Raises:
        WireError: it is none.
    """
    order: Order = _ORDERS.read(raw)
    return order


def answer_from_json(raw: object) -> Answer:
    """Read an answer.

    Raises:
        WireError: it is none.
    """
    answer: Answer = _ANSWERS.read(raw)
    return answer
