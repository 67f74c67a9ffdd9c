"""The control messages on the wire: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.comm.messages import (
    Evicted,
    Form,
    FromCoordinator,
    FromRank,
    FromSupervisor,
    Hello,
    Parked,
    RankReport,
    ToSupervisor,
    from_coordinator,
    from_rank,
    from_supervisor,
    to_supervisor,
    to_wire,
)
from mecefo_runtime.job.background import Background, ShadowUnit
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.job.state_source import CheckpointSource, PeerSource, Piece, Share, Version
from mecefo_runtime.job.step_report import (
    HealthHistory,
    LateCommit,
    PartHealth,
    ReadyStep,
    StepStats,
    StepTotals,
    StepVerdict,
)
from mecefo_runtime.system.json_values import JsonTypeError, from_json, to_json
from mecefo_runtime.system.wire import WireError, decode, encode
from tests.planning import COSTS

pytestmark = pytest.mark.unit

LAYOUT = Layout(2, (Replica(0, (Span(0, 0, 2, degraded=frozenset({1})),), 4),))
TOTALS = StepTotals(2.5, StepStats(1.5, 8, 2, 99), StepVerdict.SKIP)
REPORT = RankReport(
    status="parked",
    epoch=3,
    committed_step=7,
    totals=TOTALS,
    ready=ReadyStep(8, {"head": 1.5}, TOTALS.stats, PartHealth(1.0, differs=True), odd_ranks=(2,)),
    history=HealthHistory(norms=(1.0, 2.0), num_verdicts=9),
    holdings=("embedding", "layer.0"),
    members=(0, 1),
    layout=LAYOUT,
)
FORM = Form(
    epoch=4,
    members=(0, 1),
    leader=0,
    addresses={0: "10.0.0.1:1", 11: "10.0.0.2:1"},
    layout=LAYOUT,
    resume_step=9,
    device_way="gloo",
    lineage="ab",
    reason="loss",
    pieces=(Piece("head", PeerSource(1), 0), Piece("layer.0", CheckpointSource("/run/step-9"), 1, Share(1, 2))),
    returns_to=Version(9, "old"),
    background=Background((ShadowUnit("head", 1, 9, 0),)),
    commit=LateCommit(8, TOTALS),
)


def over_the_wire(message: Any) -> dict[str, Any]:
    return decode(encode(to_wire(message)))


@pytest.mark.parametrize("message", [Hello(1, 2, "10.0.0.1:1", REPORT, costs=COSTS), Parked(4, REPORT)])
def test_what_a_rank_says_is_heard_as_it_was_said(message: FromRank) -> None:
    assert from_rank(over_the_wire(message)) == message


@pytest.mark.parametrize("message", [FORM, Evicted(3, is_cut_off=True, cut_off_from=(1, 2))])
def test_what_the_coordinator_says_is_heard_as_it_was_said(message: FromCoordinator) -> None:
    assert from_coordinator(over_the_wire(message)) == message


@pytest.mark.parametrize("union", [FromRank, FromSupervisor, ToSupervisor, FromCoordinator])
def test_every_kind_of_message_can_be_read(union: Any) -> None:
    readers = {FromRank: from_rank, FromSupervisor: from_supervisor, ToSupervisor: to_supervisor}
    read = readers.get(union, from_coordinator)
    for kind in get_args(union):
        with pytest.raises(WireError, match=f"{kind.__name__} has no .'no such key'"):
            read({"type": kind.__name__, "no such key": 1})


@pytest.mark.parametrize(
    "changed",
    [
        {"type": "Goodbye"},
        {"type": None},
        {"rank": "1"},
        {"rank": True},
        {"rank": 1.0},
        {"address": None},
        {"report": []},
        {"report": {"status": "asleep"}},
        {"report": {"members": [0, "1"]}},
        {"report": {"layout": {"num_layers": 2}}},
        {"report": {"ready": {"step": 1, "norms": {"head": "1"}, "stats": None, "part": {}}}},
        {"report": {"totals": {"squared_norm": 1.0, "stats": {}, "verdict": 9}}},
        {"costs": {**to_json(COSTS), "head_forward_seconds": -1.0}},
        {"unknown": 1},
    ],
)
def test_what_is_not_of_its_type_is_refused(changed: dict[str, Any]) -> None:
    plain = to_wire(Hello(1, 2, "10.0.0.1:1", RankReport()))
    assert from_rank(plain)
    with pytest.raises(WireError, match="not a message of ours"):
        from_rank({**plain, **changed})


def test_keys_that_are_left_out_take_their_defaults_and_others_must_be_there() -> None:
    assert from_json(RankReport, {"epoch": 2}) == RankReport(epoch=2)
    with pytest.raises(JsonTypeError, match=r"Hello lacks \['address', 'attempt', 'report'\]"):
        from_json(Hello, {"rank": 1})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["rank", "attempt", "address", "report", "epoch", "target", "unreachable", "error", "key"])


@given(
    raw=st.dictionaries(KEYS, JSON, max_size=6),
    name=st.sampled_from([kind.__name__ for kind in get_args(FromRank)]) | JSON,
)
def test_junk_is_a_message_or_refused_and_nothing_else(raw: dict[str, Any], name: object) -> None:
    try:
        message = from_rank(json.loads(json.dumps({**raw, "type": name})))
    except WireError:
        return
    assert isinstance(message, get_args(FromRank))
