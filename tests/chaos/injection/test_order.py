"""What lies on top of something else is undone before it, and what does not keeps nobody waiting."""

import asyncio

import pytest

from chaos.faults import registry
from chaos.injection.active import UndoOrder

pytestmark = pytest.mark.unit


def fault(kind):
    chosen = registry()[kind]
    return chosen(chosen.Parameters())


def undo_all(applied, undone):
    """Faults applied in the order of `applied` and due to be undone in that of `undone`: in which order they are.

    Of each, too, how often the ranks were let go of before.
    """

    async def play():
        order, came, released = UndoOrder(), [], dict.fromkeys(applied, 0)
        faults = {kind: fault(kind) for kind in applied}
        for one in faults.values():
            order.begin(one)

        async def undo(kind):
            def release():
                released[kind] += 1

            await order.uncovered(faults[kind], release)
            came.append(kind)
            order.end(faults[kind])

        ends = []
        for kind in undone:
            ends.append(asyncio.create_task(undo(kind)))
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*ends), 10)
        return came, released

    return asyncio.run(play())


def test_what_is_under_the_small_disk_waits_for_it_and_holds_nobody():
    came, released = undo_all(["hide-checkpoint", "fill-disk"], ["hide-checkpoint", "fill-disk"])
    assert came == ["fill-disk", "hide-checkpoint"]
    assert released == {"hide-checkpoint": 1, "fill-disk": 0}


@pytest.mark.parametrize(
    "applied",
    [
        ["fill-disk", "hide-checkpoint"],
        ["pause-node", "fill-disk"],
        ["hide-checkpoint", "truncate-checkpoint"],
    ],
)
def test_all_others_are_undone_when_they_are_due(applied):
    for due in (applied, applied[::-1]):
        assert undo_all(applied, due) == (due, dict.fromkeys(applied, 0))


def test_who_is_over_keeps_nobody_waiting():
    async def play():
        order, hidden, full = UndoOrder(), fault("hide-checkpoint"), fault("fill-disk")
        for one in (hidden, full):
            order.begin(one)
        order.end(full)
        order.end(full)
        await asyncio.wait_for(order.uncovered(hidden, lambda: pytest.fail("it need not wait")), 10)

    asyncio.run(play())
