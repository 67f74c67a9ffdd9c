"""Orders and answers go through JSON as they are, and nothing else is taken for one."""

import json
from dataclasses import fields

import pytest

from chaos.errors import (
    ChaosError,
    EffectNotSeen,
    EnvironmentFailure,
    HealError,
    InjectionError,
    NotOurs,
    TargetNotFound,
)
from chaos.faults.base import OwnedProcess
from chaos.injection.orders import (
    Applied,
    Apply,
    Lift,
    Lifted,
    Look,
    Looked,
    Prepare,
    Prepared,
    Record,
    Recorded,
    Refused,
    Undo,
    Undone,
    Verified,
    Verify,
    answer_from_json,
    message_to_json,
    order_from_json,
)
from chaos.language.target import ResolvedTarget
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.wire import WireError

pytestmark = pytest.mark.unit

LOOK = Look(
    1, 0, "pause-process", ResolvedTarget((1, 3), (0,), links=((1, 3),)), {"grace": "2s", "seed": None}, 1 << 63
)
ORDERS = (LOOK, Prepare(2, 0), Record(3, 0), Apply(4, 0), Apply(4, 0, 0.5), Verify(5, 0), Lift(6, 0), Undo(7, 0))
OWNED = OwnedProcess("rank", ProcessId(41, 7), rank=1, node=0)
ANSWERS = (
    Looked(),
    Prepared((OWNED,), ((1, 3),)),
    Recorded(),
    Applied(1.5),
    Verified({"summary": "seen", "pids": [41]}, 2.5),
    Verified({}),
    Lifted(),
    Lifted(3.5),
    Undone({"undone": "all"}),
    Refused.of(EffectNotSeen("still there")),
    Refused.because(Reason("limit_too_high", carried="1 bit/s", limit="2 bit/s")),
)


def sent(message):
    return json.loads(json.dumps(message_to_json(message)))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_goes_through_json(order):
    assert order_from_json(sent(order)) == order


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_goes_through_json(answer):
    assert answer_from_json(sent(answer)) == answer


def test_every_order_says_which_it_is_and_of_which_incident():
    for order in ORDERS:
        assert [field.name for field in fields(order)][:2] == ["id", "incident"]


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        {"type": "strike", "id": 1, "incident": 0},
        {"type": ["undo"], "id": 1, "incident": 0},
        {"type": "undo", "id": "1", "incident": 0},
        {"type": "undo", "id": 1},
        {"type": "undo", "id": 1, "incident": 0, "more": 1},
        {"type": "undone", "evidence": {}},
    ],
)
def test_what_is_no_order_is_refused(raw):
    with pytest.raises(WireError, match="no order"):
        order_from_json(raw)


@pytest.mark.parametrize(
    "error",
    [
        TargetNotFound("gone"),
        NotOurs("not ours"),
        EffectNotSeen("not seen"),
        InjectionError("refused", code="why"),
        InjectionError(Reason("chaos_itself")),
        EffectNotSeen(Reason("not_allowed", why=Reason("max_ranks", ranks=2, limit=1))),
        HealError("still there"),
        EnvironmentFailure("no space left"),
    ],
    ids=repr,
)
def test_a_refusal_stands_for_its_error(error):
    refusal = answer_from_json(sent(Refused.of(error)))
    again = refusal.error()
    assert (type(again), str(again)) == (type(error), str(error))
    assert getattr(again, "why", None) == getattr(error, "why", None)
    named = refusal.error("alpha")
    assert (type(named), str(named)) == (type(error), f"alpha: {error}")
    assert getattr(named, "code", None) == getattr(error, "code", None), "where it comes from is no other reason"


def test_another_error_of_the_tool_is_a_refusal_as_well():
    refusal = Refused.of(ChaosError("something else"))
    assert (refusal.kind, str(refusal), str(refusal.error())) == ("broken", "something else", "something else")
