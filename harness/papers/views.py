"""What the texts and the pages of all papers have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from harness.papers.verdicts import Finding, Open

_REPORT = Path(__file__).parents[1] / "report"
_STYLES = (_REPORT / "palette.css", _REPORT / "figures.css", Path(__file__).with_name("page.css"))
NOT_KNOWN = "-"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] | None = None) -> Iterator[str]:
    """Columns as wide as their widest cell; those that are `left`, by default the first and the last, to the left."""
    at_left = (0, len(head) - 1) if left is None else left
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = [
            text.ljust(width) if column in at_left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """What the paper claims beside what is found here."""
    rows = [(one.claim, one.paper, one.ours, one.verdict) for one in findings]
    return table(("claim", "paper", "here", "verdict"), rows, left=range(4))


def open_lines(questions: Iterable[Open]) -> Iterator[str]:
    """What cannot be decided, and what would decide it."""
    yield "cannot be decided here"
    for one in questions:
        yield f"  {one.question}"
        yield f"    what would decide it: {one.what_decides}"


def styles() -> Markup:
    """The styles of a page, for its `<style>`."""
    return Markup("".join(path.read_text() for path in _STYLES))
