"""The codec: strict and lenient reading, and what a class can declare about its JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from mecefo_runtime.system.json_values import (
    AS_LIST,
    FLAT,
    LEFT_OUT,
    NOT_WRITTEN,
    FormatError,
    JsonTypeError,
    called,
    from_json,
    from_list,
    to_json,
    to_list,
)

pytestmark = pytest.mark.unit


@dataclass(frozen=True, slots=True)
class Pid:
    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Plain:
    number: int
    ratio: float = 0.5
    word: Literal["a", "b"] = "a"
    steps: tuple[int, ...] = ()
    by_name: Mapping[str, float | None] = field(default_factory=dict)
    either: int | str | None = None
    sequence: Sequence[int] = ()
    anything: Any = None


@dataclass(frozen=True, slots=True)
class Special:
    ALSO_WRITTEN: ClassVar[Mapping[str, str]] = {"clean": "is_clean"}
    STORED_FORMAT: ClassVar[str] = "special-2"

    role: str
    process: Pid = field(metadata=FLAT)
    parent: Pid | None = field(default=None, metadata=AS_LIST)
    least: int = field(default=0, metadata=called("min"))
    folders: tuple[Path, ...] | None = field(default=None, metadata=LEFT_OUT)
    hidden: int = field(default=7, metadata=NOT_WRITTEN)
    started: datetime | None = None

    @property
    def is_clean(self) -> bool:
        return self.least == 0

    @classmethod
    def from_older(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**raw, "role": raw["job"]} if "job" in raw else raw


@dataclass(frozen=True, slots=True)
class FiniteOnly:
    FINITE_ONLY: ClassVar[bool] = True

    inside: Plain
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Sparse:
    LEAVES_OUT_DEFAULTS: ClassVar[bool] = True

    code: str
    rank: int | None = None
    message: str = ""


SPECIAL = Special("rank", Pid(7, 8), Pid(1, 2), 3, (Path("/a"),), started=datetime(2026, 1, 2, tzinfo=UTC))


def test_what_a_class_declares_holds_for_both_directions():
    written = to_json(SPECIAL)
    assert written == {
        "format": "special-2",
        "role": "rank",
        "pid": 7,
        "start": 8,
        "parent": [1, 2],
        "min": 3,
        "folders": ["/a"],
        "started": "2026-01-02T00:00:00+00:00",
        "clean": False,
    }
    assert from_json(Special, json.loads(json.dumps(written))) == SPECIAL
    assert from_list(Pid, to_list(SPECIAL.process)) == SPECIAL.process
    assert to_json(Special("x", Pid(1, 2))).keys().isdisjoint({"folders", "hidden"})
    assert to_json(Sparse("c", message="m")) == {"code": "c", "message": "m"}


def test_an_older_form_is_read_and_another_format_is_not():
    older = {"format": "special-2", "job": "main", "pid": 1, "start": 2}
    assert from_json(Special, older, lenient=True) == Special("main", Pid(1, 2))
    assert "job" in older and "role" not in older, "the argument is as it was"
    with pytest.raises(FormatError, match="its format is 'None', not \"special-2\""):
        from_json(Special, {"role": "x", "pid": 1, "start": 2})


def test_nan_and_infinities_are_values_unless_the_class_says_otherwise():
    odd = Plain(1, math.nan, by_name={"x": math.inf})
    again = from_json(Plain, json.loads(json.dumps(to_json(odd))))
    assert math.isnan(again.ratio) and again.by_name == {"x": math.inf}
    assert to_json(FiniteOnly(odd, (-math.inf, 1.0))) == {
        "inside": {**to_json(odd), "ratio": None, "by_name": {"x": None}},
        "values": [None, 1.0],
    }


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"number": 2.0}, Plain(2)),
        ({"number": True}, Plain(1)),
        ({"unknown": 1}, Plain(1)),
        ({"ratio": None}, Plain(1)),
        ({"steps": None}, Plain(1)),
        ({"steps": (1, 2)}, Plain(1, steps=(1, 2))),
        ({"word": "newer"}, Plain(1, word="newer")),
    ],
)
def test_strict_refuses_what_lenient_accepts(change, value):
    raw = {"number": 1, **change}
    with pytest.raises(JsonTypeError):
        from_json(Plain, raw)
    assert from_json(Plain, raw, lenient=True) == value


@pytest.mark.parametrize("is_lenient", [False, True])
@pytest.mark.parametrize(
    "raw",
    [
        [],
        None,
        {},
        {"number": "1"},
        {"number": None},
        {"number": math.nan},
        {"number": 1, "ratio": "x"},
        {"number": 1, "word": 3},
        {"number": 1, "steps": 3},
        {"number": 1, "steps": ["x"]},
        {"number": 1, "by_name": []},
        {"number": 1, "either": []},
    ],
)
def test_both_refuse_what_is_of_another_type(raw, is_lenient):
    with pytest.raises(JsonTypeError):
        from_json(Plain, raw, lenient=is_lenient)


def test_a_union_keeps_the_type_of_the_value():
    for is_lenient in (False, True):
        assert [
            from_json(Plain, {"number": 1, "either": either}, lenient=is_lenient).either for either in (3, "3", None)
        ] == [3, "3", None]


def test_an_error_names_the_place():
    with pytest.raises(JsonTypeError, match=r"FiniteOnly\.inside: Plain\.number: int is expected, not 'x'"):
        from_json(FiniteOnly, {"inside": {"number": "x"}, "values": []})
