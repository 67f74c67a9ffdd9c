"""The list of stored runs: a table with a header, which no terminal breaks."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.host.terminal import cells
from harness.report.run_list import lines
from harness.store.runs import RunEntry

pytestmark = pytest.mark.unit

BERLIN = ZoneInfo("Europe/Berlin")
BUILT_IN = "llama-tiny on 4 nodes x 2 ranks, mecefo"
COMMAND = "torchrun --standalone --nproc-per-node 2 --max-restarts 1 train.py"
PASSED = "every fault was verified and the job recovered; all 3 gates passed"


def entry(name="kill-node", at=datetime(2026, 11, 26, 11, 2, 54, tzinfo=UTC), **changes):
    stamp = "20261126T110254Z" if at is None else at.strftime("%Y%m%dT%H%M%SZ")
    known = {"verdict": "pass", "steps": 50, "fault": "kill-node", "job": BUILT_IN, "reason": PASSED, **changes}
    return RunEntry(name=name, started=at, path=Path("runs") / name / stamp, **known)


RUNS = [
    entry(),
    entry("kill-process", verdict="fail", steps=1060, fault="kill-process x2", job=COMMAND, reason="gate 'x' failed"),
    entry("cut", at=None, verdict="cut off", steps=None, fault="", job="", reason=""),
]


def test_in_a_pipe_every_run_is_one_line_and_nothing_is_shortened():
    assert list(lines(RUNS, None, BERLIN)) == [
        "run                            started (CET)     verdict  steps  fault            job"
        "                                                                 reason",
        f"kill-node/20261126T110254Z     2026-11-26 12:02  pass        50  kill-node        {BUILT_IN:<66}  {PASSED}",
        f"kill-process/20261126T110254Z  2026-11-26 12:02  fail      1060  kill-process x2  {COMMAND}  gate 'x' failed",
        f"cut/20261126T110254Z           -                 cut off      -  -                {'-':<66}  -",
    ]


def test_on_a_terminal_of_80_columns_job_and_reason_stand_below():
    assert list(lines(RUNS, 80, BERLIN)) == [
        "run                            started (CET)     verdict  steps  fault",
        "    job: reason",
        "kill-node/20261126T110254Z     2026-11-26 12:02  pass        50  kill-node",
        "    llama-tiny on 4 nodes x 2 ranks, mecefo: every fault was verified and the...",
        "kill-process/20261126T110254Z  2026-11-26 12:02  fail      1060  kill-process x2",
        "    torchrun --standalone --nproc-per-node 2 --max-restarts...: gate 'x' failed",
        "cut/20261126T110254Z           -                 cut off      -  -",
        "    -: -",
    ]


def test_on_a_wide_terminal_the_reason_is_the_last_column():
    header, first, *_ = lines([entry(reason="x" * 90)], 180, UTC)
    assert header.split() == ["run", "started", "(UTC)", "verdict", "steps", "fault", "job", "reason"]
    assert len(first) == 180 and first.endswith("xxx...")
    assert header.index("reason") == first.index("xxx")


def test_a_name_that_leaves_no_room_has_a_line_for_itself_and_is_whole():
    long = entry("test_survival-test_a_node_is_lost_in_the_middle_of_a_step")
    _, _, ours, _, reference, cells, _ = lines([entry(), long], 80, UTC)
    assert reference == long.reference
    assert cells.index("2026-11-26") == ours.index("2026-11-26")


def test_the_zone_is_stated_once_also_where_it_changed():
    summer = entry(at=datetime(2026, 7, 1, 11, 0, tzinfo=UTC))
    text = list(lines([summer, entry()], None, BERLIN))
    assert "started (CEST/CET)" in text[0]
    assert "2026-07-01 13:00" in text[1] and "2026-11-26 12:02" in text[2]


def test_without_runs_there_is_no_header():
    assert list(lines([], 80)) == []


entries = st.builds(
    entry,
    name=st.text("abc-_.", min_size=1, max_size=100),
    verdict=st.sampled_from(["pass", "inconclusive", "not judged"]),
    steps=st.none() | st.integers(0, 10**9),
    fault=st.text(max_size=60),
    job=st.text(max_size=200),
    reason=st.text(max_size=300),
)


@given(st.lists(entries, min_size=1, max_size=5), st.integers(40, 250))
def test_it_fits_any_terminal_and_every_run_can_be_copied(runs, width):
    table = list(lines(runs, width, UTC))
    references = {run.reference for run in runs}
    assert [line for line in table if cells(line) > width and line not in references] == []
    assert all(any(line.startswith(reference) for line in table) for reference in references)
    # In a pipe, too, a run is one line, whatever its texts are.
    assert len(list(lines(runs, None, UTC))) == len(runs) + 1
