"""Real processes that are killed: a restore compared bit for bit, a refusal, and what must not count as either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mecefo_chaos.studies.papers.reft.real import nodes as nodes_module
from mecefo_chaos.studies.papers.reft.real.draws import Plan, run_draw
from mecefo_chaos.studies.papers.reft.real.nodes import ForkServer
from mecefo_chaos.studies.papers.reft.schemes import SMALL
from mecefo_runtime.job.state_source import Offer, ParitySource

pytestmark = pytest.mark.integration

NONE, COPY, XOR, PQ = SMALL


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("logs")) as started:
        yield started


@pytest.mark.parametrize(
    ("plan", "outcome"),
    [
        # Groups of four are the nodes of even and those of odd numbers; pairs are four apart.
        (Plan(0, "at once", NONE, ()), "restored"),
        (Plan(1, "at once", NONE, (3,)), "refused"),
        (Plan(2, "at once", COPY, (0, 1, 2, 3)), "restored"),
        (Plan(3, "at once", COPY, (1, 5)), "refused"),
        (Plan(4, "at once", XOR, (2, 7)), "restored"),
        (Plan(5, "at once", XOR, (2, 4)), "refused"),
        (Plan(6, "at once", PQ, (0, 1, 2, 3)), "restored"),
        (Plan(7, "lifetimes", PQ, (0, 2, 4)), "refused"),
        # At once these two would be too many.
        (Plan(8, "after re-encoding", XOR, (4,), (2,)), "restored"),
        (Plan(9, "at once", XOR, tuple(range(8))), "refused"),
    ],
    ids=lambda value: f"{value.scheme.name}-{value.number}" if isinstance(value, Plan) else value,
)
def test_what_the_code_bears_comes_back_bit_for_bit_and_the_rest_is_refused(server, plan: Plan, outcome: str) -> None:
    draw = run_draw(server, plan, 1)
    assert (draw.outcome, draw.is_right) == (outcome, True), draw.reason
    assert (draw.restore_seconds is not None) == (outcome == "restored") == (not draw.reason)


def test_a_bit_that_is_not_as_it_was_stored_is_wrong(server, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = nodes_module.fetch_pieces

    def fetch_badly(pieces, version, units, token):
        found = fetch(pieces, version, units, token)
        storage = units["head"].storage
        storage.view(dtype=nodes_module.torch.uint8)[5] ^= 1
        return found

    monkeypatch.setattr(nodes_module, "fetch_pieces", fetch_badly)
    draw = run_draw(server, Plan(10, "at once", XOR, (1,)), 1)
    assert (draw.outcome, draw.is_right, draw.reason) == ("wrong", False, "what came back is not what was stored")


def test_what_is_offered_and_cannot_be_had_is_wrong(server, monkeypatch: pytest.MonkeyPatch) -> None:
    known = nodes_module.offers_of

    def offer_too_much(kept):
        found = known(kept)
        source = ParitySource(0, kept[0].address, 2)
        version = found[0].version
        lost = [share for node in (2, 4) for share in [nodes_module.Share(node, 8)]]
        return (*found, Offer(version, source, dict.fromkeys(found[0].shares, frozenset(lost))))

    monkeypatch.setattr(nodes_module, "offers_of", offer_too_much)
    draw = run_draw(server, Plan(11, "at once", XOR, (2, 4)), 1)
    assert (draw.outcome, draw.is_right) == ("wrong", False)
    assert "more than there is parity for" in draw.reason
