"""Every value that is stored or sent: what is written is read again as the same value."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.faults import registry
from chaos.host.undo_record import UndoRecord
from harness.analysis.command.failure_cause import FailureCause
from harness.comparison.sample import RunSet
from harness.judging.summary import Summary
from harness.network.plan import Networks
from mecefo_runtime.checkpoint.manifest import Identity
from mecefo_runtime.job.assignment import Assignment
from mecefo_runtime.job.config import PRESETS, JobConfig, ModelConfig
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.system.json_values import JsonTypeError, from_json, to_json
from mecefo_runtime.system.reason import Reason
from tests.mecefo_runtime.planning import PLAIN

pytestmark = pytest.mark.unit

words = st.text(string.ascii_lowercase, min_size=1, max_size=4)
LEAVES = {
    int: st.integers(1, 99),
    float: st.floats(0.001, 99),
    str: words,
    bool: st.booleans(),
    NoneType: st.none(),
    Any: st.none() | st.integers(0, 9) | words | st.lists(st.integers(0, 9), max_size=2),
    Path: words.map(lambda name: Path("/", name)),
}
NOT_FINITE = st.sampled_from([math.nan, math.inf, -math.inf])
# Classes that check their values: some of those that pass.
CHECKED = {
    Reason: st.builds(Reason, words, step=st.none() | st.integers(0, 9)),
    ModelConfig: st.sampled_from(list(PRESETS.values())),
    Costs: st.builds(lambda ratio: PLAIN.scaled(ratio), st.floats(0.1, 9)),
    JobConfig: st.builds(
        JobConfig,
        steps=st.integers(1, 9),
        seed=st.integers(0, 9),
        learning_rate=st.floats(1e-6, 1),
        ratings=st.none() | st.just(PLAIN),
        dilation_ratio=st.just(1.0),
    ),
}


@cache
def values_of(kind: Any, is_finite: bool) -> st.SearchStrategy[Any]:
    """Values of a type, by its annotations."""
    if kind in LEAVES:
        return LEAVES[kind] if is_finite or kind is not float else LEAVES[kind] | NOT_FINITE
    if kind in CHECKED:
        return CHECKED[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(arguments)
    parts = [values_of(argument, is_finite) for argument in arguments if argument is not Ellipsis]
    if origin in (Union, UnionType):
        return st.one_of(*parts)
    if origin is Sequence or arguments[1:] == (Ellipsis,):
        return st.lists(parts[0], max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*parts)
    if origin is frozenset:
        return st.frozensets(parts[0], max_size=2)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(*parts, max_size=2)
    hints = get_type_hints(kind)
    return st.builds(kind, **{one.name: values_of(hints[one.name], is_finite) for one in fields(kind)})


RECORDS = sorted({fault.Record for fault in registry().values() if fault.Record is not UndoRecord}, key=str)
KINDS = [Summary, RunSet, FailureCause, Networks, Layout, Assignment, Costs, JobConfig, Identity, *RECORDS]


def text_of(value: object) -> str:
    return json.dumps(to_json(value), sort_keys=True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=5, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_is_written_is_read_again(kind, data):
    value = data.draw(values_of(kind, getattr(kind, "FINITE_ONLY", False)))
    written = json.loads(text_of(value))
    assert text_of(from_json(kind, written, lenient=True)) == text_of(value)
    if not getattr(kind, "FINITE_ONLY", False):
        assert text_of(from_json(kind, written)) == text_of(value)
    more = {**written, "of another version": 1}
    assert text_of(from_json(kind, more, lenient=True)) == text_of(value)
    if not getattr(kind, "MAY_HAVE_MORE", False):
        with pytest.raises(JsonTypeError):
            from_json(kind, more)


def test_there_are_records_of_faults():
    assert len(RECORDS) > 5
