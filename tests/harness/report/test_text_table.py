"""Tables of text that fit a width: wrapped, in parts or as records, with every cell."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.host.terminal import cells
from harness.report.text_table import Table, laid_out

pytestmark = pytest.mark.unit

WORDS = st.lists(st.text("abcdefg日", min_size=1, max_size=12), min_size=1, max_size=8).map(" ".join)
FIGURES = st.integers(0, 10**9).map(lambda number: f"{number:,}")


@st.composite
def tables(draw):
    num_columns, num_rows = draw(st.integers(2, 9)), draw(st.integers(1, 4))
    left = (0, *draw(st.sets(st.integers(1, num_columns - 1))))
    head = [draw(WORDS) for _ in range(num_columns)]
    rows = [[draw(WORDS if column in left else FIGURES) for column in range(num_columns)] for _ in range(num_rows)]
    return Table(head, rows, left)


@given(tables(), st.integers(40, 160))
def test_a_table_fits_and_shows_every_cell(table, width):
    lines = list(table.lines(width))
    assert max(map(cells, lines)) <= width
    shown = Counter(word.rstrip(",:") for line in lines for word in line.split())
    own = Counter(word for row in table.rows for cell in row for word in cell.split())
    assert own <= shown


@given(tables())
def test_a_table_that_fits_has_a_line_for_each_row(table):
    assert len(list(table.lines(10_000))) == 1 + len(table.rows)


def table_of(num_columns):
    head = ["what it is", *(f"figure {number}" for number in range(1, num_columns))]
    return Table(head, [["a row", *(f"{number:,}" for number in range(1000, 1000 + num_columns - 1))]])


def test_headings_are_wrapped_before_the_table_is_parted():
    assert list(table_of(4).lines(36)) == [
        "              figure  figure  figure",
        "  what it is       1       2       3",
        "  a row        1,000   1,001   1,002",
    ]


def test_every_part_names_its_rows():
    lines = list(table_of(9).lines(50))
    rows = [line.split() for line in lines if "1,0" in line]
    assert len(rows) > 1 and all(row[:2] == ["a", "row"] for row in rows)
    assert "" in lines


def test_rows_that_fit_in_no_part_become_records():
    table = Table(["name", "figure"], [["a" * 30, "1" * 30]])
    assert list(table.lines(50)) == ["  " + "a" * 30, "    figure: " + "1" * 30]


def test_lines_and_tables_are_laid_out_together():
    lines = list(laid_out(["a long sentence " * 5, table_of(2), "  - " + "item " * 20], 60))
    assert lines[0].startswith("a long") and lines[1].startswith("  ")
    assert max(map(cells, lines)) <= 60
