"""The check as text, JSON and a page, and the command's manners."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from mecefo_chaos.cli.main import run_cli
from mecefo_chaos.studies.papers.mecefo.check import check
from mecefo_chaos.studies.papers.mecefo.forecasts import shipped_forecasts
from mecefo_chaos.studies.papers.mecefo.perplexity import shipped_convergence
from mecefo_chaos.studies.papers.mecefo.results import write_result
from mecefo_chaos.studies.papers.mecefo.setting import METHODS
from mecefo_chaos.studies.papers.page import render
from mecefo_chaos.studies.papers.text import check_text
from tests.mecefo_chaos.studies.papers.mecefo.made import FAULT_FREE, UNDILATED, cell_of, result_of, results_of, run_of
from tests.mecefo_chaos.studies.papers.mecefo.test_turning import HOLDING
from tests.mecefo_chaos.studies.papers.pages import WIDE, Links, one_line

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def found():
    runs = [run_of(cell_of(shape), seed, 0.0042) for shape in ("4x8", "8x4") for seed in range(1, 6)]
    return check(results_of(*runs), shipped_forecasts(), shipped_convergence(), UNDILATED, FAULT_FREE)


def test_what_was_measured_undilated_is_in_all_three(found):
    for text in (check_text(found), render(found)):
        assert "12.3%" in text and "10.0% to 14.0%" in text and "a machine" in text
    assert found.document()["undilated"]["rows"][0]["median_ratio"] == 0.123


def test_every_gate_and_verdict_and_open_question_is_in_all_three(found):
    text, page, document = one_line(check_text(found, WIDE)), render(found), json.dumps(found.document())
    for gate in found.gates:
        assert gate.name in text and gate.name in page and gate.name in document
    assert "0.42%" in text and "0.42%" in page
    for finding in found.findings:
        for words in (finding.claim, finding.ours, finding.verdict, finding.rule):
            assert words in text and words in html.unescape(page)
    assert [list(one["figures"]) for one in found.document()["findings"]] == [
        [asdict(figure) for figure in finding.figures] for finding in found.findings
    ]
    for verdict in ("better than the paper", "not reproduced", "cannot be decided here", "reproduced"):
        assert verdict in text and verdict in page and verdict in document
    assert text.count("what would decide it") == len(found.document()["open"]) == page.count("What would decide it")


def test_the_findings_are_those_whose_verdicts_are_turned_by_a_test(found):
    assert [one.claim for one in found.findings] == list(HOLDING)


def test_every_row_says_which_strategy_and_which_quality_it_is(found):
    text, page, document = check_text(found), render(found), found.document()
    for method in METHODS.values():
        assert f"\n  {method.label} " in text and f">{method.label}<" in page
    labels = {row["key"]: (row["strategy"], row["quality"]) for row in document["throughput"]}
    assert labels[cell_of(method="mecefo").key] == ("mecefo", "auto")
    assert labels[cell_of(method="mecefo-speed").key] == ("mecefo", "speed")
    for gate in document["gates"]:
        assert gate["name"].startswith(f"{gate['strategy']}, {gate['quality']}: ")


def test_the_figure_that_decides_a_row_is_in_all_three(found):
    text, page = one_line(check_text(found, WIDE, with_details=True)), render(found)
    for row, values in zip(found.evidence.rows, found.document()["throughput"], strict=True):
        figure = row.figure
        assert values["figure"] == asdict(figure) and values["basis"] == row.basis
        shown = (f"{figure.median:z.2%}", f"{figure.least:z.2%} to {figure.greatest:z.2%}")
        assert all(words in text and words in page for words in shown)


def test_the_page_needs_nothing_from_elsewhere(found):
    links = Links(render(found))
    assert links.targets == [] and "script" not in links.tags
    # One for each size and shape.
    assert links.tags.count("svg") == 2 * 6, "each for a screen and for a phone"


def test_own_results_are_shown_and_decide(tmp_path, capsys):
    for shape in ("4x8", "8x4"):
        for seed in range(1, 6):
            write_result(tmp_path, result_of(run_of(cell_of(shape), seed, settled_drop=0.2)))
    assert run_cli(["paper", "mecefo", "--results", str(tmp_path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    own = [gate for gate in document["gates"] if gate["cell"] in (cell_of("4x8").key, cell_of("8x4").key)]
    assert [gate["passed"] for gate in own] == [False] * 4
    assert {gate["num_seeds"] for gate in own} == {5}
    assert document["exit_code"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mecef"], "did you mean 'mecefo'?"),
        (["mecefo", "--only", "7b"], "give --emulate"),
        (["mecefo", "--time-scale", "2"], "give --emulate"),
        (["mecefo", "--emulate", "--only", "7b,exat"], "did you mean 'exact'?"),
        (["mecefo", "--convergence", "nowhere.txt"], "nowhere.txt: cannot be read"),
        (["mecefo", "--fault-free", "nowhere.json"], "nowhere.json: cannot be read"),
        (["mecefo", "--fault-free", "README.md"], "is not what `python -m benchmarks.fault_free --json` prints"),
        (["mecefo", "--results", "README.md"], "README.md"),
        (["mecefo", "--html", "no/where/page.html"], "no/where"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(arguments, said, capsys):
    assert run_cli(["paper", *arguments]) == 4
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told


def test_help_needs_no_torch():
    script = "from mecefo_chaos.cli.main import run_cli; run_cli(['paper', 'mecefo', '--help'])"
    script += "\nimport sys; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "False"
    assert "--emulate" in answer.stdout
