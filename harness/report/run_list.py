"""The stored runs as a table: a line for each, and on a narrow terminal a second one for job and reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo

from chaos.host.terminal import cells, pad
from harness.analysis.words import one_line
from harness.store.runs import RunEntry

_TIME_FORMAT = "%Y-%m-%d %H:%M"
_GAP = "  "
_INDENT = "    "
_LEAST_LAST_CELLS = 40
"""Job and reason stand in the row itself if the reason has this many columns, else on a line below it."""
_LEAST_FAULT_CELLS = 9
_CUT = "..."


def lines(entries: Sequence[RunEntry], width: int | None, zone: tzinfo | None = None) -> Iterator[str]:
    """The table, with a header. `width` is that of the terminal; None: nothing is shortened, one line for each run.

    Times are local, or those of `zone`; the header names it.
    """
    if not entries:
        return
    local = [None if entry.started is None else entry.started.astimezone(zone) for entry in entries]
    zones = "/".join(dict.fromkeys(time.strftime("%Z") for time in local if time is not None)) or "local"
    header = ("run", f"started ({zones})", "verdict", "steps", "fault", "job", "reason")
    rows = [
        (
            one_line(entry.reference),
            "-" if time is None else time.strftime(_TIME_FORMAT),
            one_line(entry.verdict),
            "-" if entry.steps is None else str(entry.steps),
            one_line(entry.fault) or "-",
            one_line(entry.job) or "-",
            one_line(entry.reason) or "-",
        )
        for entry, time in zip(entries, local, strict=True)
    ]
    sizes = [max(map(cells, column)) for column in zip(header, *rows, strict=True)]
    in_one_row = sum(sizes[:-1]) + len(_GAP) * len(sizes[:-1])
    if width is None or in_one_row + _LEAST_LAST_CELLS <= width:
        for row in (header, *rows):
            line = _GAP.join((_padded(row[:-1], sizes), row[-1]))
            yield line if width is None else _short(line, width)
        return
    yield from _narrow(header, rows, sizes, width)


def _narrow(header: Sequence[str], rows: Sequence[Sequence[str]], sizes: list[int], width: int) -> Iterator[str]:
    """Each run on two lines; a reference that leaves no room for the other cells has a line for itself."""
    others = sum(sizes[1:4]) + 4 * len(_GAP) + _LEAST_FAULT_CELLS
    fitting = [cells(row[0]) for row in rows if cells(row[0]) + others <= width]
    sizes[0] = max([cells(header[0]), *fitting])
    yield _short(_padded(header[:5], sizes).rstrip(), width)
    yield _short(f"{_INDENT}{header[5]}: {header[6]}", width)
    for row in rows:
        first = row[0]
        if cells(first) > sizes[0]:
            # Not shortened: it is there to be copied.
            yield first
            first = ""
        yield _short(_padded((first, *row[1:5]), sizes).rstrip(), width)
        yield f"{_INDENT}{_job_and_reason(row[5], row[6], width - len(_INDENT))}"


def _job_and_reason(job: str, reason: str, room: int) -> str:
    """Both on one line: a long command leaves two fifths of it to the reason."""
    job_cells = max(3 * room // 5, room - cells(reason) - 2)
    return _short(f"{_short(job, job_cells)}: {reason}", room)


def _padded(row: Sequence[str], sizes: Sequence[int]) -> str:
    # The number of steps to the right.
    return _GAP.join(pad(cell, sizes[index], right=index == 3) for index, cell in enumerate(row))


def _short(line: str, width: int) -> str:
    if cells(line) <= width:
        return line
    kept = line[: max(0, width - len(_CUT))]
    while cells(kept) > width - len(_CUT):
        kept = kept[:-1]
    return kept.rstrip() + _CUT
