"""The messages of agents and the injector: what goes over the wire, and what is refused."""

import json

import pytest

from chaos.in_process.protocol import (
    At,
    Began,
    Begin,
    Call,
    Holds,
    Lift,
    Lifted,
    Refused,
    Release,
    Report,
    Start,
    from_agent,
    from_injector,
    read_holds,
    to_wire,
)
from mecefo_runtime.system.wire import WireError

pytestmark = pytest.mark.unit

# As they have always been: an image of an earlier version may be at the other end.
WIRE = {
    Holds(((5, "backward"), (None, "regroup"))): {"holds": [[5, "backward"], [None, "regroup"]]},
    Call(): {"type": "call"},
    Lift(3): {"type": "lift", "handle": 3},
    Release(((7, "forward"),)): {"type": "release", "holds": [[7, "forward"]]},
    At(5, "backward"): {"type": "at", "step": 5, "phase": "backward"},
    Refused(3, "no such tensor"): {"type": "refused", "handle": 3, "reason": "no such tensor"},
}
WITH_VALUES = [
    # Only to who asks for it.
    (Holds((), Start(True, {"a": (10, 20)})), {"holds": [], "start": {"is_later": True, "states": {"a": [10, 20]}}}),
    (Begin(3, "m:X", {"a": [1]}), {"type": "begin", "handle": 3, "effect": "m:X", "arguments": {"a": [1]}}),
    (Began(3, {"n": 1}), {"type": "began", "handle": 3, "told": {"n": 1}}),
    (Report(3, {"n": None}), {"type": "report", "handle": 3, "told": {"n": None}}),
    (Lifted(3, {"gone": True}), {"type": "lifted", "handle": 3, "told": {"gone": True}}),
]


@pytest.mark.parametrize(("message", "wire"), [*WIRE.items(), *WITH_VALUES], ids=lambda value: type(value).__name__)
def test_a_message_is_read_as_it_was_written(message, wire):
    assert to_wire(message) == wire
    read = {Holds: read_holds, Call: from_injector, Begin: from_injector, Lift: from_injector, Release: from_injector}
    assert read.get(type(message), from_agent)(json.loads(json.dumps(wire))) == message


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"type": "hold"},
        {"type": "release", "holds": []},
        {"type": "at", "step": "5", "phase": "backward"},
        {"type": "at", "step": 5},
        {"type": "began", "handle": 3, "told": 7},
    ],
)
def test_an_agent_that_says_something_else_is_refused(raw):
    with pytest.raises(WireError, match="no message of an agent or the injector"):
        from_agent(raw)


@pytest.mark.parametrize("raw", [{"type": "at", "step": 5, "phase": "data"}, {"type": "begin", "handle": 1}])
def test_who_poses_as_the_injector_is_refused(raw):
    with pytest.raises(WireError):
        from_injector(raw)
