"""The executor of a host: the order of its orders, one that comes twice, and what it ends without an order."""

import asyncio
from dataclasses import replace

import pytest

import chaos.injection.executor
from chaos.errors import EffectNotSeen, HealError
from chaos.faults.base import FaultContext
from chaos.faults.watch import Watch
from chaos.injection.executor import LocalExecutor
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
)
from chaos.language.target import ResolvedTarget
from chaos.undo.ledger import Ledger, read_ledger
from tests.chaos.injection.test_injector import PROCESS, RECORD, create_fault

pytestmark = pytest.mark.unit

LOOK = Look(1, 0, "note-acts", ResolvedTarget(ranks=(2,)))
ALL = (LOOK, Prepare(2, 0), Record(3, 0), Apply(4, 0), Verify(5, 0), Lift(6, 0), Undo(7, 0))
UP_TO_APPLY = ALL[:4]


class Place:
    """An executor on a ledger of its own; `trace` is what its fault was asked."""

    def __init__(self, folder, **fault):
        self.trace = []
        self.path = folder / "ledger.jsonl"
        self.ledger = Ledger(self.path)
        kind = create_fault(self.trace, **fault)
        context = FaultContext(processes=None, inside=None, watch=Watch(), run_folder=folder)
        self.executor = LocalExecutor({"note-acts": kind}, self.ledger, context, host="alpha")

    async def obey(self, *orders):
        return [await self.executor.obey(order) for order in orders]

    def pending(self):
        return [entry.state for entry in read_ledger(self.path).pending]


def play(folder, act, **fault):
    place = Place(folder, **fault)

    async def run():
        return await asyncio.wait_for(act(place), 30.0)

    with place.ledger:
        return place, asyncio.run(run())


def test_all_orders_in_their_order(tmp_path):
    place, answers = play(tmp_path, lambda place: place.obey(*ALL))
    assert [type(answer) for answer in answers] == [Looked, Prepared, Recorded, Applied, Verified, Lifted, Undone]
    assert answers[1].processes == (PROCESS,) and answers[1].ranks == (2,)
    assert answers[4].evidence == {"summary": "seen"}
    assert answers[6].evidence == {"undone": "all", "by": "chaos"}
    assert place.trace == ["prepare", "apply", "verify", "undo"]
    assert place.pending() == []
    assert read_ledger(place.path).of(0).record == RECORD


# What is recorded and was not applied has nothing to lift, and can be undone; what is applied need not be verified.
IN_TIME = {(Record, Lift), (Record, Undo), (Apply, Lift)}
TOO_EARLY = [
    (ALL[: index + 1], order)
    for index, last in enumerate(ALL)
    for order in ALL[index + 2 :]
    if (type(last), type(order)) not in IN_TIME
]


@pytest.mark.parametrize(("before", "order"), TOO_EARLY)
def test_an_order_is_refused_before_its_time(tmp_path, before, order):
    """Nothing is applied without its record on disk, whoever asks for it."""
    place, answers = play(tmp_path, lambda place: place.obey(*before, order))
    assert (answers[-1].kind, answers[-1].code) == ("refused", "out_of_order")
    assert "apply" not in place.trace or place.pending()


@pytest.mark.parametrize("order", [Apply(9, 7), replace(LOOK, id=9), replace(LOOK, id=9, incident=1, fault="none")])
def test_what_cannot_be_is_refused(tmp_path, order):
    _, answers = play(tmp_path, lambda place: place.obey(LOOK, order))
    assert isinstance(answers[-1], Refused)


def test_an_order_that_comes_again_is_not_carried_out_again(tmp_path):
    place, answers = play(tmp_path, lambda place: place.obey(*[order for order in ALL for _ in range(3)]))
    assert answers[0::3] == answers[1::3] == answers[2::3]
    assert place.trace == ["prepare", "apply", "verify", "undo"]
    assert len(place.path.read_text().splitlines()) == 3, "prepared, applied, struck"


def test_an_order_that_comes_again_while_it_is_carried_out_waits_for_the_same_answer(tmp_path):
    async def act(place):
        await place.obey(*UP_TO_APPLY)
        return await asyncio.gather(*(place.executor.obey(Verify(5, 0)) for _ in range(3)))

    place, answers = play(tmp_path, act, verify_seconds=0.01)
    assert answers == [Verified({"summary": "seen"})] * 3
    assert place.trace.count("verify") == 1


def test_a_refusal_is_the_answer_to_the_same_order_too(tmp_path):
    orders = (*UP_TO_APPLY, Verify(5, 0), Verify(5, 0))
    place, answers = play(tmp_path, lambda p: p.obey(*orders), failing="verify", error=EffectNotSeen("not there"))
    assert answers[-2:] == [Refused.of(EffectNotSeen("not there"))] * 2
    assert place.trace.count("verify") == 1


def test_a_number_stands_for_one_order_only(tmp_path):
    _, answers = play(tmp_path, lambda place: place.obey(LOOK, Prepare(1, 0)))
    assert answers[-1].code == "order_differs"


def test_an_order_too_old_to_be_known_is_not_carried_out_again(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos.injection.executor, "KEPT_ORDERS", 2)
    place, answers = play(tmp_path, lambda place: place.obey(*UP_TO_APPLY, LOOK))
    assert answers[-1].code == "order_too_old"
    assert place.trace == ["prepare", "apply"]


# ---- without an order ----


@pytest.mark.parametrize(
    ("num_orders", "acts"),
    [(1, []), (2, ["prepare"]), (3, ["prepare", "undo"]), (4, ["prepare", "apply", "undo"])],
)
def test_all_that_is_active_ends_when_nobody_sends_orders(tmp_path, num_orders, acts):
    async def act(place):
        await place.obey(*ALL[:num_orders])
        ended = await place.executor.end_all()
        later = await place.executor.obey(ALL[num_orders])
        return ended, later

    place, (ended, later) = play(tmp_path, act)
    assert place.trace == acts
    assert ended == ({0: None} if "undo" in acts else {})
    assert place.pending() == []
    assert later.code == "executor_closed", "what was ended does not begin again"


def test_a_verification_under_way_ends_with_the_rest(tmp_path):
    async def act(place):
        await place.obey(*UP_TO_APPLY)
        verification = asyncio.create_task(place.executor.obey(Verify(5, 0)))
        await asyncio.sleep(0)
        await place.executor.end_all()
        return await verification

    place, answer = play(tmp_path, act, verify_seconds=60.0)
    assert (answer.kind, answer.code) == ("not-seen", "ended_before_verified")
    assert "undo" in place.trace


@pytest.mark.parametrize("failing", ["lift", "undo"])
def test_what_cannot_be_ended_stays_pending(tmp_path, failing):
    async def act(place):
        await place.obey(*UP_TO_APPLY)
        return await place.executor.end_all()

    place, ended = play(tmp_path, act, failing=failing, error=HealError("still there"))
    assert ended == {0: "still there"}
    assert len(place.pending()) == 1 and place.trace[-1] == "undo"


def test_an_apply_that_does_not_return_keeps_nothing_from_being_undone(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos.injection.executor, "ORDER_PATIENCE_SECONDS", 0.01)

    async def act(place):
        async def hang(self, act, context):
            await asyncio.sleep(60.0)

        monkeypatch.setattr(place.executor._faults["note-acts"], "apply", hang)
        await place.obey(*ALL[:3])
        hanging = asyncio.create_task(place.executor.obey(Apply(4, 0)))
        await asyncio.sleep(0)
        ended = await place.executor.end_all()
        hanging.cancel()
        return ended

    place, ended = play(tmp_path, act)
    assert ended == {0: "an order for note-acts has not returned"}
    assert place.trace == ["prepare", "undo"]
    assert place.pending() == ["prepared"], "it may still change something, and is undone once more"


def test_what_is_past_its_lifetime_ends_and_later_orders_get_the_same_answers(tmp_path):
    async def act(place):
        await place.obey(*ALL[:3], Apply(4, 0, 0.0), Verify(5, 0), replace(LOOK, id=11, incident=1))
        ended = await place.executor.end_overdue()
        return ended, await place.obey(Lift(6, 0), Undo(7, 0), Prepare(12, 1))

    place, (ended, answers) = play(tmp_path, act, lasting=True)
    assert ended == {0: None}
    assert answers[1] == Undone({"undone": "all", "by": "chaos"})
    assert isinstance(answers[2], Prepared), "the others go on"
    assert place.trace.count("undo") == 1 and place.pending() == []


def test_what_has_time_left_stays(tmp_path):
    async def act(place):
        await place.obey(*ALL[:3], Apply(4, 0, 3600.0))
        return await place.executor.end_overdue()

    place, ended = play(tmp_path, act, lasting=True)
    assert ended == {} and len(place.pending()) == 1
