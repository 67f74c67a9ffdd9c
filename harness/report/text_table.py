"""Tables of text that fit a width: narrower columns first, then several parts, then one record after the other.

Nothing is left out and no word is broken: a table that cannot be made narrow enough gets longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from chaos.host.terminal import MAX_TEXT_COLUMNS, cells, pad, wrap

_GAP = 2
# A column of words is not made narrower than this for the sake of the others.
_MIN_WORDS = 14
_MAX_KEY = 3


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below a head. The columns `left` hold words, aligned to the left and wrapped; the others hold figures.

    Columns that belong together stay together where they can: a part begins with one of `begins`, if any are given.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[int] = (0,)
    begins: Collection[int] = ()

    def lines(self, width: int, indent: int = 2) -> Iterator[str]:
        """The table within `width` cells."""
        return _lines(self, width - indent, " " * indent)

    def _of(self, columns: Sequence[int]) -> Table:
        left = tuple(place for place, column in enumerate(columns) if column in self.left)
        rows = [[row[column] for column in columns] for row in self.rows]
        return Table([self.head[column] for column in columns], rows, left)

    def _widest(self, column: int) -> int:
        return max(cells(row[column]) for row in (self.head, *self.rows))

    def _narrowest(self, column: int) -> int:
        """As wide as its longest word; figures are not wrapped, only what stands above them."""
        words = max(map(cells, self.head[column].split()), default=0)
        if column not in self.left:
            return max([words, *(cells(row[column]) for row in self.rows)])
        words = max([words, *(cells(word) for row in self.rows for word in row[column].split())])
        return max(words, min(_MIN_WORDS, self._widest(column)))

    @property
    def _key(self) -> tuple[int, ...]:
        """The columns that tell the rows apart, as few as it takes; every part has them.

        The first one with others of words, else the first ones.
        """
        words = sorted(set(self.left) - {0})
        by_words = ((0, *others) for number in range(_MAX_KEY) for others in combinations(words, number))
        by_order = (tuple(range(number)) for number in range(2, min(_MAX_KEY, len(self.head) - 1) + 1))
        for key in (*by_words, *by_order):
            if len({tuple(row[column] for column in key) for row in self.rows}) == len(self.rows):
                return key
        return (0,)


def _lines(table: Table, width: int, indent: str) -> Iterator[str]:
    every = range(len(table.head))
    widths = [table._widest(column) for column in every]
    if _total(widths) <= width:
        yield from _drawn(table, widths, indent)
        return
    if (fitted := _fitted(table, width)) is not None:
        yield from _drawn(table, fitted, indent)
        return
    parts = _parts(table, width)
    if parts is None:
        yield from _records(table, width, indent)
        return
    for number, columns in enumerate(parts):
        if number:
            yield ""
        yield from _lines(table._of(columns), width, indent)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _fitted(table: Table, width: int) -> list[int] | None:
    """The widths of the columns in a table of `width`, the widest ones made narrower; None: it cannot be so narrow."""
    least = [table._narrowest(column) for column in range(len(table.head))]
    if _total(least) > width:
        return None
    widths = [table._widest(column) for column in range(len(table.head))]
    while _total(widths) > width:
        # A heading that is wider than its figures costs a line, a cell that is wrapped costs one in its row.
        column = max(
            (column for column in range(len(widths)) if widths[column] > least[column]),
            key=lambda column: (column not in table.left, widths[column]),
        )
        widths[column] -= 1
    return widths


def _parts(table: Table, width: int) -> list[tuple[int, ...]] | None:
    """The columns of each part, every one of them with the key; None: some column does not even fit beside the key."""
    key = table._key
    groups: list[list[int]] = [[]]
    for column in range(len(table.head)):
        if column in table.begins and groups[-1]:
            groups.append([])
        if column not in key:
            groups[-1].append(column)
    parts: list[tuple[int, ...]] = []
    for group in groups:
        packed = _packed(table, key, group, width)
        if packed is None:
            return None
        if parts and len(packed) == 1 and _has_room(table, (*parts[-1], *group), width):
            parts[-1] = (*parts[-1], *group)
        else:
            parts += packed
    return parts


def _packed(table: Table, key: tuple[int, ...], columns: Sequence[int], width: int) -> list[tuple[int, ...]] | None:
    """As many of the columns in each part as fit; then, with as many parts, about equally wide ones."""
    found = _filled(table, key, columns, width)
    if found is None or len(found) == 1:
        return found
    for narrower in range(width - 1, 0, -1):
        tried = _filled(table, key, columns, narrower)
        if tried is None or len(tried) > len(found):
            break
        found = tried
    return found


def _filled(table: Table, key: tuple[int, ...], columns: Sequence[int], width: int) -> list[tuple[int, ...]] | None:
    parts: list[tuple[int, ...]] = []
    current = key
    for column in columns:
        if not _has_room(table, (*key, column), width):
            return None
        if not _has_room(table, (*current, column), width):
            parts.append(current)
            current = key
        current = (*current, column)
    return [*parts, current]


def _has_room(table: Table, columns: Sequence[int], width: int) -> bool:
    return _fitted(table._of(columns), width) is not None


def _drawn(table: Table, widths: Sequence[int], indent: str) -> Iterator[str]:
    for number, row in enumerate((table.head, *table.rows)):
        wrapped = [wrap(text, width, 0) for text, width in zip(row, widths, strict=True)]
        height = max(map(len, wrapped))
        for line in range(height):
            parts = []
            for column, (lines, width) in enumerate(zip(wrapped, widths, strict=True)):
                # A heading stands at the bottom, next to what it is about.
                place = line - (height - len(lines)) if number == 0 else line
                text = lines[place] if 0 <= place < len(lines) else ""
                parts.append(pad(text, width, right=column not in table.left))
            yield f"{indent}{(' ' * _GAP).join(parts)}".rstrip()


def _records(table: Table, width: int, indent: str) -> Iterator[str]:
    """Every row by itself: what it is about, and below it a line for each of its other cells."""
    key = table._key
    for row in table.rows:
        yield from (f"{indent}{line}" for line in wrap(", ".join(row[column] for column in key), width))
        for column, text in enumerate(row):
            if column not in key:
                yield from (f"{indent}{line}" for line in wrap(f"  {table.head[column]}: {text}", width))


def laid_out(parts: Iterable[str | Table], width: int) -> Iterator[str]:
    """The lines of a text of lines and tables; prose is wrapped at `MAX_TEXT_COLUMNS`, if not before."""
    for part in parts:
        if isinstance(part, Table):
            yield from part.lines(width)
        else:
            yield from wrap(part, min(width, MAX_TEXT_COLUMNS))
