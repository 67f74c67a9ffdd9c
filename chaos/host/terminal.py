"""The width of the terminal, and text that fits it.

One rule for everything on standard output: the width is COLUMNS where that is set, else the terminal's, else 80. Prose
takes at most `MAX_TEXT_COLUMNS` of it. Neither a word nor a command in backquotes is broken, so that both
can be copied; a line that is a command is not wrapped, see `print_text` in `mecefo_chaos.cli.shared.output`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

MAX_TEXT_COLUMNS = 100
"""Longer lines of prose are hard to read, however wide the terminal is."""
_DEFAULT_COLUMNS = 80
_MIN_COLUMNS = 40
# What stands in backquotes is to be copied: a command is never parted.
_WORD = re.compile(r"( *)((?:`[^`]*`|[^ ])+)")
# A second column that would be narrower stands below the first.
_MIN_BESIDE_COLUMNS = 24


def columns() -> int:
    """The width in which standard output is laid out, in cells."""
    return max(_MIN_COLUMNS, shutil.get_terminal_size((_DEFAULT_COLUMNS, 24)).columns)


def text_columns() -> int:
    """The width of prose."""
    return min(columns(), MAX_TEXT_COLUMNS)


def cells(text: str) -> int:
    """The cells that `text` takes: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """`text` filled with spaces to `width` cells; `right`: aligned to the right."""
    space = " " * max(0, width - cells(text))
    return space + text if right else text + space


def wrap(line: str, width: int, hanging: int | None = None) -> list[str]:
    """`line` on as many lines as it takes; it keeps its indentation.

    The lines after the first are indented by `hanging` cells, by default by two more than the first. A line that fits
    stays as it is.
    """
    if cells(line) <= width:
        return [line]
    text = line.lstrip(" ")
    indent = len(line) - len(text)
    hanging = indent + 2 if hanging is None else hanging
    lines, current, used = [], " " * indent, indent
    is_empty = True
    for gap, word in _WORD.findall(text):
        # The spaces within a line stay: they may align something.
        needed = cells(gap + word)
        if not is_empty and used + needed > width:
            lines.append(current)
            current, used, is_empty = " " * hanging, hanging, True
        current += word if is_empty else gap + word
        used += cells(word) if is_empty else needed
        is_empty = False
    return [*lines, current]


def wrap_text(text: str, width: int) -> str:
    """Every line of `text` that is too long, wrapped."""
    return "\n".join(part for line in text.split("\n") for part in wrap(line, width))


def beside(label: str, text: str, label_cells: int, width: int) -> Iterator[str]:
    """`text` beside a label of `label_cells`, wrapped in its own column; below the label where that would be narrow."""
    indent = len(label) - len(label.lstrip(" "))
    if width - label_cells < _MIN_BESIDE_COLUMNS:
        yield label.rstrip()
        yield from wrap(" " * (indent + 4) + text, width, indent + 4)
    elif cells(label) >= label_cells:
        yield label.rstrip()
        yield from wrap(" " * label_cells + text, width, label_cells)
    else:
        first, *others = wrap(" " * label_cells + text, width, label_cells)
        yield (pad(label, label_cells) + first[label_cells:]).rstrip()
        yield from others
