"""Gates, claims, text, JSON and page, and the command's manners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mecefo_chaos.cli.main import run_cli
from mecefo_chaos.studies.papers.page import render
from mecefo_chaos.studies.papers.spare.check import check
from mecefo_chaos.studies.papers.spare.claims import CLAIMS
from mecefo_chaos.studies.papers.spare.simulated import (
    FILE,
    Row,
    Simulated,
    parse_row,
    read_simulated,
    simulate_all,
    wanted_rows,
)
from mecefo_chaos.studies.papers.spare.simulation import simulate
from mecefo_chaos.studies.papers.text import check_text
from tests.mecefo_chaos.studies.papers.pages import WIDE, Links, one_line
from tests.mecefo_chaos.studies.papers.spare.made import outcome_of, simulated_of

pytestmark = pytest.mark.unit

# Of each pair of N and r: what chance draws is not what these are about.
FEW = 20


def checked(simulated):
    return check(simulated, 1, FEW, 1)


@pytest.fixture(scope="module")
def good():
    return checked(simulated_of())


def verdict(found, words: str) -> str:
    (finding,) = [one for one in found.findings if words in one.claim]
    return finding.verdict


def test_the_authors_own_figures_pass(good) -> None:
    assert [gate.passed for gate in good.gates[2:]] == [True, True]
    for words in ("floor(log2 N", "of replication is 3", "Tc*", "N=600 r=8", "restarts by itself", "holds in the sim"):
        assert verdict(good, words) == "reproduced"
    # Neither end under the third reading.
    assert verdict(good, "begins it again for all") == "cannot be decided here"


@pytest.mark.parametrize(("factor", "passed"), [(1.019, [True, True]), (0.97, [False, True]), (1.06, [False, False])])
def test_times_that_are_too_far_apart_fail(factor: float, passed: list[bool]) -> None:
    found = checked(simulated_of(factor=factor))
    assert [gate.passed for gate in found.gates[2:]] == passed
    assert verdict(found, "replication, N=200 r=3") == ("reproduced" if passed[1] else "not reproduced")


@pytest.mark.parametrize(("spread", "passed"), [(0.001, False), (0.02, None)])
def test_what_chance_may_have_put_beyond_the_limit_is_undecided(spread: float, passed: bool | None) -> None:
    outcomes = [(row, tuple(outcome_of(row, 1.025 + way * spread) for way in (-1, 0, 1))) for row in wanted_rows()]
    assert checked(Simulated(None, tuple(outcomes))).gates[2].passed is passed


def test_a_gain_that_is_too_small_is_not_reproduced() -> None:
    outcomes = [(row, (outcome_of(row, 0.9 if row.scheme == "replication" else 1.0),) * 3) for row in wanted_rows()]
    assert verdict(checked(Simulated(None, tuple(outcomes))), "restarts by itself") == "not reproduced"


@pytest.mark.parametrize("simulated", [simulated_of(2), Simulated()])
def test_what_was_not_simulated_is_undecided(simulated) -> None:
    found = checked(simulated)
    assert [gate.passed for gate in found.gates[2:]] == [None, None]
    assert "--simulate 3 makes them" in found.gates[2].reason
    assert check_text(found) and render(found)
    if not simulated.outcomes:
        assert {finding.verdict for finding in found.findings[2:-1]} == {"not checked"}


def test_every_gate_claim_table_and_open_question_is_in_all_three(good) -> None:
    text, page, document = one_line(check_text(good, WIDE)), render(good), good.document()
    told = json.dumps(document)
    for gate in good.gates:
        assert gate.name in text and gate.name.replace("'", "&#39;") in page and gate.name in told
    for finding in good.findings:
        for words in (finding.claim, finding.ours, finding.rule, finding.verdict):
            assert words in text and words.replace("'", "&#39;") in page and words in told
    for section in good.sections:
        assert section.title in text and section.title.replace("'", "&#39;") in page
        assert one_line(" ".join(section.table().lines(WIDE))) in text
        assert all(len(row) == len(section.head) for row in section.rows)
    assert text.count("what would decide it") == len(document["open"]) == page.count("What would decide it")
    assert "comes to no end" in page and "neither comes to an end" in text


def test_the_page_needs_nothing_from_elsewhere(good) -> None:
    links = Links(render(good))
    assert links.targets == [] and "script" not in links.tags
    assert links.tags.count("svg") == 2 * 4, "each for a screen and for a phone"


def test_what_came_with_this_version_has_every_row_and_passes(tmp_path: Path) -> None:
    shipped = read_simulated(tmp_path)
    assert shipped.origin is not None and shipped.origin.command == "chaos paper spare --simulate 3"
    assert {row for row, _ in shipped.outcomes} == set(wanted_rows())
    assert {len(outcomes) for _, outcomes in shipped.outcomes} == {3}
    found = checked(shipped)
    # Of these rows some seeds are within 2% and others are not.
    assert [gate.passed for gate in found.gates[2:]] == [None, True]
    assert "N=200 r=4" in found.gates[2].reason and "N=600 r=20" in found.gates[2].reason
    beyond = {(one.claim, one.cell) for one in found.evidence.beyond}
    assert {("time to train, spare", "N=600 r=20"), ("mean depth, simulated", "N=600 r=18")} <= beyond
    assert all(shipped.of(Row(claim.scheme, claim.num_groups, claim.redundancy)) for claim in CLAIMS)


@pytest.mark.parametrize("scheme", ["replication", pytest.param("spare", marks=pytest.mark.nightly)])
def test_what_came_with_this_version_comes_out_again(tmp_path: Path, scheme) -> None:
    shipped = read_simulated(tmp_path)
    rows = [Row(claim.scheme, claim.num_groups, claim.redundancy) for claim in CLAIMS if claim.scheme == scheme]
    for row in rows:
        again = simulate(row.scheme, row.num_groups, row.redundancy, 1)
        assert again.time_ratio == pytest.approx(shipped.of(row)[0].time_ratio)
        assert again.num_failures == shipped.of(row)[0].num_failures


def test_rows_of_ones_own_are_simulated(capsys) -> None:
    rows = ["--row", "spare,12,2", "--row", "replication,12,3"]
    assert run_cli(["paper", "spare", *rows, "--assume", "recovery=absorb", "--simulate", "1", "--json"]) == 0
    spare, replication = json.loads(capsys.readouterr().out)["rows"]
    assert (spare["scheme"], spare["num_groups"], spare["redundancy"]) == ("spare", 12, 2)
    assert spare["assumed"] == replication["assumed"] == "recovery=absorb"
    (outcome,) = replication["outcomes"]
    assert outcome["is_over"] and outcome["mean_depth"] == 3


def test_what_the_folder_has_is_not_simulated_again(tmp_path: Path, monkeypatch) -> None:
    rows = (Row("spare", 12, 2), Row("replication", 12, 2))
    monkeypatch.setattr("mecefo_chaos.studies.papers.spare.simulated.wanted_rows", lambda: rows)
    done: list[int] = []

    def progress(part: str, number: int = 0, of: int = 0) -> None:
        done.append(number)

    simulate_all(1, tmp_path, 1, progress)
    first = read_simulated(tmp_path)
    assert [row for row, _ in first.outcomes] == list(rows) and done == [1, 2]
    simulate_all(1, tmp_path, 1, progress)
    assert done == [1, 2] and read_simulated(tmp_path).outcomes == first.outcomes


def test_rows_are_parsed() -> None:
    assert parse_row("spare,200,9") == Row("spare", 200, 9)
    assert parse_row("replication,200,3", ("jitter=layer", "jitter_ratio=0")).assumed == "jitter=layer jitter_ratio=0"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--row", "spare"], "--row: 'spare' is no row: SCHEME,N,R"),
        (["--row", "spar,200,9"], "did you mean 'spare'?"),
        (["--row", "spare,200,13"], "the largest is 12"),
        (["--row", "spare,200,9", "--assume", "recover=absorb"], "did you mean 'recovery'?"),
        (["--row", "spare,200,x"], "is no row"),
        (["--row", "spare,2000000,9"], "are more than"),
        (["--assume", "recovery=absorb"], "--assume: it is about rows of your own"),
        (["--draws", "3"], "no such option '--draws'"),
        (["--results", "README.md"], "README.md"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(arguments, said, capsys) -> None:
    assert run_cli(["paper", "spare", *arguments]) == 4
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "chaos paper spare 1", "outcomes": 3}'])
def test_a_damaged_file_of_results_is_refused_before_anything_is_simulated(tmp_path: Path, text: str, capsys) -> None:
    (tmp_path / FILE).write_text(text)
    assert run_cli(["paper", "spare", "--results", str(tmp_path), "--simulate", "1"]) == 4
    assert "is nothing that was simulated here" in capsys.readouterr().err
