"""`chaos` is killed at every point of every fault that has something to undo."""

import pytest

from benchmarks.undo_sweep import kinds_with_undo
from tests.crash.test_undo_sweep import CLEAN_WITHIN_SECONDS, sweep

pytestmark = pytest.mark.nightly


def test_every_kind_at_every_point(tmp_path):
    # A hundred times each takes hours: `python -m benchmarks.undo_sweep --times 100`.
    code, rows = sweep(tmp_path, "--times", "1")
    assert code == 0
    assert {kind for kind, _ in rows} == set(kinds_with_undo())
    assert not {key: row for key, row in rows.items() if row["clean"] != row["reached"]}
    assert max(row["seconds"]["max"] or 0.0 for row in rows.values()) <= CLEAN_WITHIN_SECONDS
