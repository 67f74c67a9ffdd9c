"""The sweep's figures: what is counted, and what is not said to be known."""

import json
import math

import pytest

from benchmarks._undo_stage import POINTS, Trial
from benchmarks.undo_sweep import kinds_with_undo, summarize, to_text
from chaos.faults import registry

pytestmark = pytest.mark.unit

TRIALS = [
    Trial("pause", "applied", True, 0.2),
    Trial("pause", "applied", True, 0.4),
    Trial("pause", "undone", True, math.inf),
    Trial("other", "applied", False, math.inf),
]


def test_what_was_not_reached_counts_neither_way():
    by_key = {(row["kind"], row["point"]): row for row in summarize(TRIALS)}
    assert [(row["reached"], row["clean"]) for row in by_key.values()] == [(2, 2), (1, 0), (0, 0)]
    assert by_key["pause", "applied"]["seconds"]["median"] == 0.3
    assert by_key["pause", "undone"]["seconds"]["max"] is None
    json.dumps(summarize(TRIALS), allow_nan=False)


def test_the_table_says_what_never_came():
    header, applied, undone, other = to_text(TRIALS).splitlines()
    assert header.split() == ["killed", "at", "median", "min", "max", "n", "nothing", "left"]
    assert applied.split()[:4] == ["pause,", "applied", "300", "ms"]
    assert "never" in undone and undone.endswith("0 of 1")
    assert other.endswith("0 of 0")


def test_all_kinds_with_an_undo_are_swept():
    assert set(kinds_with_undo()) == {kind for kind, fault in registry().items() if fault.has_undo}
    assert not {"kill-node", "kill-process"} & set(kinds_with_undo())
    assert len(set(POINTS)) == len(POINTS)
