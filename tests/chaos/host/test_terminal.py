"""Text that fits the terminal: nothing is lost, no word is broken, and wide characters take two cells."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.host import terminal

pytestmark = pytest.mark.unit

LINES = st.text(st.sampled_from("abc 日本é .-/"), max_size=120)
WIDTHS = st.integers(terminal._MIN_COLUMNS, 120)


def cells(text):
    """As a terminal counts them (UAX 11, wcwidth)."""
    return sum(
        0 if unicodedata.category(char) in ("Mn", "Me") else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


@given(LINES, WIDTHS)
def test_wrapped_lines_fit_and_have_all_words(line, width):
    wrapped = terminal.wrap(line, width)
    assert " ".join(wrapped).split() == line.split()
    for part in wrapped:
        assert cells(part) <= width or len(part.split()) == 1


@given(LINES, WIDTHS)
def test_a_line_that_fits_stays_as_it_is(line, width):
    assert terminal.wrap(line[: width // 2], width) == [line[: width // 2]]


@given(st.integers(0, 8), WIDTHS)
def test_the_lines_after_the_first_are_indented_further(indent, width):
    first, *others = terminal.wrap(" " * indent + "word " * 60, width)
    assert first.startswith(" " * indent + "word") and others
    assert all(line.startswith(" " * (indent + 2) + "word") for line in others)


@given(LINES, st.integers(4, 60), WIDTHS)
def test_text_beside_a_label_fits_and_is_whole(text, label_cells, width):
    lines = list(terminal.beside("  name", text, label_cells, width))
    assert " ".join(lines).split() == ["name", *text.split()]
    for line in lines:
        assert cells(line) <= width or len(line.split()) <= 2


@pytest.mark.parametrize(("variable", "expected"), [("120", 120), ("60", 60), ("7", 40), ("", 80), ("many", 80)])
def test_the_width_is_that_of_columns_else_eighty_without_a_terminal(monkeypatch, variable, expected):
    monkeypatch.setenv("COLUMNS", variable)
    # What `shutil.get_terminal_size` asks; a test run may have a terminal there.
    monkeypatch.setattr("sys.__stdout__", None)
    assert terminal.columns() == expected
    assert terminal.text_columns() == min(expected, terminal.MAX_TEXT_COLUMNS)
