"""What a page of a paper refers to, and its text whatever the width of the terminal."""

from __future__ import annotations

from html.parser import HTMLParser

WIDE = 10_000
"""Cells in which every table has a line for each row."""


def one_line(text: str) -> str:
    """The words of `text`, however its lines are wrapped."""
    return " ".join(text.split())


class Links(HTMLParser):
    """The `targets` of the links in `page`, and all its `tags`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.targets += [value for name, value in attrs if name in ("href", "src")]
