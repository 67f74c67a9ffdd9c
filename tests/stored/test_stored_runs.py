"""Runs that an earlier version has stored are read by this one, and judged as they were then, figure by figure."""

import json

import pytest

from mecefo_chaos.cli.main import run_cli
from tests import stored

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", stored.stored(stored.RUNS))
def test_a_stored_run_is_judged_as_it_was(name, tmp_path, capsys):
    stored.unpack_run(name, tmp_path / name)
    then = json.loads((stored.RUNS / name / stored.SUMMARY).read_text())
    code = run_cli(["report", str(tmp_path / name), "--json"])
    now = json.loads(capsys.readouterr().out)
    assert (now["verdict"], code) == (then["verdict"], then["exit_code"])
    assert not list(stored.differences(then, now))


def test_the_stored_runs_are_of_many_kinds():
    summaries = [json.loads(path.read_text()) for path in stored.RUNS.glob(f"*/{stored.SUMMARY}")]
    assert {one["verdict"] for one in summaries} == {"pass", "fail", "halted", "inconclusive"}
    assert {one["runtime"] for one in summaries} == {"mecefo", "command"}
    assert any(one["attempts"] and one["attempts"] > 1 for one in summaries)
    assert any(one["twin_loss"] is not None for one in summaries)
    assert any(one["first_non_finite_loss_step"] is not None for one in summaries)


@pytest.mark.parametrize(
    ("then", "now", "path"),
    [
        ({"a": 1}, {}, "the key a is gone"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "a[0].b: 1 then, 2 now"),
        ({"a": 1}, {"a": 1.0}, "a: 1 then, 1.0 now"),
        ({"a": 1}, {"a": True}, "a: 1 then, True now"),
        ({"a": 0.1}, {"a": 0.1001}, "a: 0.1 then, 0.1001 now"),
        ({"a": None}, {"a": 0}, "a: None then, 0 now"),
        ({"a": "rank=1"}, {"a": "rank=2"}, "a: 'rank=1' then, 'rank=2' now"),
        ({"a": "a sentence"}, {"a": None}, "a: 'a sentence' then, None now"),
        ({"a": "a sentence"}, {"a": ""}, "a: 'a sentence' then, '' now"),
        ({"a": ["one of them"]}, {"a": []}, "a: 1 entries then, 0 now"),
        ({"expression": "a < 1"}, {"expression": "a < 2"}, "expression: 'a < 1' then, 'a < 2' now"),
        ({"a": {"b": 1}}, {"a": 1}, "a: {'b': 1} then, 1 now"),
    ],
)
def test_a_difference_is_named_with_its_place(then, now, path):
    (difference,) = stored.differences(then, now)
    assert path in difference


def test_another_wording_and_a_new_key_are_no_difference():
    then = {"reasons": ["the job ended"], "value": 0.3, "rows": [{"a": 1}]}
    now = {"reasons": ["the job is over"], "value": 0.1 + 0.2, "rows": [{"a": 1, "code": "ended"}], "codes": []}
    assert not list(stored.differences(then, now))
