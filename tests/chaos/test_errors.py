import pytest

from chaos.errors import (
    ChaosError,
    EffectNotSeen,
    EnvironmentFailure,
    HealError,
    InjectionError,
    NotOurs,
    TargetNotFound,
    UsageError,
    all_of,
    nearest,
    shown,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("error", "base", "exit_code"),
    [
        (UsageError, ChaosError, 4),
        (InjectionError, ChaosError, 5),
        (TargetNotFound, InjectionError, 5),
        (NotOurs, InjectionError, 5),
        (EffectNotSeen, InjectionError, 5),
        (HealError, ChaosError, 6),
        (EnvironmentFailure, ChaosError, 3),
    ],
)
def test_tree_and_exit_codes(error, base, exit_code):
    assert issubclass(error, base)
    assert error.exit_code == exit_code
    assert str(error("what was wrong")) == "what was wrong"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ({}, "wrong"),
        ({"path": "a.yaml"}, "a.yaml: wrong"),
        ({"path": "a.yaml", "line": 3}, "a.yaml:3: wrong"),
        ({"line": 3}, "line 3: wrong"),
        ({"key": "--at"}, "--at: wrong"),
        (
            {"path": "a.yaml", "line": 3, "key": "job.x", "suggestion": "y"},
            "a.yaml:3: job.x: wrong (did you mean 'y'?)",
        ),
    ],
)
def test_usage_error_says_where(place, text):
    error = UsageError("wrong", **place)
    assert str(error) == text
    assert error.problems == (error,)


def test_all_of_reports_every_problem_by_line():
    first, second = UsageError("b", path="a.yaml", line=9), UsageError("c", path="a.yaml", line=2)
    error = all_of([first, second])
    assert error.problems == (second, first)
    assert str(error) == "2 mistakes:\n  a.yaml:2: c\n  a.yaml:9: b"
    assert all_of([first]) is first


def test_all_of_shows_no_more_than_anyone_reads():
    error = all_of([UsageError(f"wrong {number}", line=number) for number in range(1, 5001)])
    assert len(error.problems) == 5000
    lines = str(error).splitlines()
    assert (lines[0], lines[20], lines[21]) == ("5000 mistakes:", "  line 20: wrong 20", "  and 4980 more")
    assert len(lines) == 22


@pytest.mark.parametrize(
    ("word", "found"), [("bakward", "backward"), ("BACKWARD", "backward"), ("xyz", None), ("", None)]
)
def test_nearest(word, found):
    assert nearest(word, ["forward", "backward"]) == found


@pytest.mark.parametrize(("value", "text"), [(None, "null"), (True, "true"), ("a\n\x1b", r"'a\n\x1b'"), (3, "3")])
def test_shown(value, text):
    assert shown(value) == text


def test_shown_cuts_what_is_long():
    assert len(shown("x" * 1000)) == 60
    assert shown("x" * 1000).endswith("...")
