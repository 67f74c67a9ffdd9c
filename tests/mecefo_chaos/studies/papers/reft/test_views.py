"""The check as text, JSON and a page, and the command's manners."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mecefo_chaos.cli.main import run_cli
from mecefo_chaos.studies.papers.page import render
from mecefo_chaos.studies.papers.reft.check import check
from mecefo_chaos.studies.papers.reft.real.measured import FILE, FORMAT, read_measured
from mecefo_chaos.studies.papers.text import check_text
from mecefo_runtime.system.json_values import to_json
from tests.mecefo_chaos.studies.papers.pages import WIDE, Links, one_line
from tests.mecefo_chaos.studies.papers.reft.made import measured_of, saving_of

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def found():
    return check(measured_of(), saving_of(0.01, 0.2), 1, 10)


def test_every_gate_claim_table_and_open_question_is_in_all_three(found) -> None:
    text, page, document = one_line(check_text(found, WIDE)), render(found), found.document()
    told = json.dumps(document)
    for gate in found.gates:
        assert gate.name in text and gate.name.replace("'", "&#39;") in page and gate.name in told
    for finding in found.findings:
        for words in (finding.claim, finding.ours, finding.rule, finding.verdict):
            assert words in text and words.replace("'", "&#39;") in page and words in told
    for section in found.sections:
        assert section.title in text and section.title.replace("'", "&#39;") in page
        assert one_line(" ".join(section.table().lines(WIDE))) in text
        assert all(len(row) == len(section.head) for row in section.rows)
    assert text.count("what would decide it") == len(document["open"]) == page.count("What would decide it")
    assert "0.50" in text and "a machine" in text


def test_the_page_needs_nothing_from_elsewhere(found) -> None:
    links = Links(render(found))
    assert links.targets == [] and "script" not in links.tags
    assert links.tags.count("svg") == 2 * 2, "each for a screen and for a phone"


def test_what_came_with_this_version_was_measured_enough_and_decides_every_gate(tmp_path: Path) -> None:
    shipped = check(read_measured(tmp_path), None, 1, 10)
    # So few draws do not decide whether chance agrees.
    assert [gate.passed for gate in shipped.gates] == [True, None, *[True] * 6]
    assert len(shipped.evidence.measured.draws) >= 200
    for origin in (shipped.evidence.measured.of_draws, shipped.evidence.measured.of_runs):
        assert origin is not None and origin.date and origin.machine and origin.command.startswith("chaos paper reft")


@pytest.mark.parametrize("num_runs", [0, 3])
def test_own_results_take_the_place_of_those_that_came(tmp_path: Path, num_runs: int) -> None:
    own = measured_of(4, num_runs)
    document = {"format": FORMAT, **to_json(own)}
    if not num_runs:
        document |= {"runs": [], "of_runs": None}
    (tmp_path / FILE).write_text(json.dumps(document))
    read = read_measured(tmp_path)
    assert read.draws == own.draws and read.of_draws == own.of_draws
    assert read.runs == (own.runs if num_runs else read_measured(tmp_path / "none").runs)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ref"], "did you mean 'reft'?"),
        (["reft", "--only", "7b"], "no such option '--only'"),
        (["reft", "--emulate"], "no such option '--emulate'"),
        (["mecefo", "--draws", "3"], "no such option '--draws'"),
        (["reft", "--saving", "nowhere.json"], "nowhere.json: cannot be read"),
        (["reft", "--saving", "README.md"], "is not what `python -m benchmarks.snapshots"),
        (["reft", "--results", "README.md"], "README.md"),
        (["reft", "--html", "no/where/page.html"], "no/where"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(arguments, said, capsys) -> None:
    assert run_cli(["paper", *arguments]) == 4
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"format": "chaos paper reft 1", "draws": 3}'])
def test_a_damaged_file_of_results_is_refused_before_anything_is_measured(tmp_path: Path, text: str, capsys) -> None:
    (tmp_path / FILE).write_text(text)
    assert run_cli(["paper", "reft", "--results", str(tmp_path), "--draws", "1"]) == 4
    assert "is nothing that was measured here" in capsys.readouterr().err
