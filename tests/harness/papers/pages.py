"""What a page of a paper refers to."""

from __future__ import annotations

from html.parser import HTMLParser


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
