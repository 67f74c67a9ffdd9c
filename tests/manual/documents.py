"""What the documents say that can be executed: their fenced blocks, shell commands and pieces of code in sentences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from manual import fault_pages

ROOT = Path(__file__).parents[2]
OVERVIEW = (ROOT / "docs/reference/faults.md").read_text()
_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_EXPERIMENT = re.compile(r"name:.*^(faults|profile):", re.MULTILINE | re.DOTALL)
_EXIT_CODE = re.compile(r"# exit code (\d)\b")


@dataclass(frozen=True)
class Document:
    """A page: of a file, or of the site where `name` begins with `site:`."""

    name: str
    text: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Block:
    """A fenced block; `reason` says why its commands are not run, where a comment before it does."""

    document: Document
    line: int
    language: str
    title: str | None
    text: str
    reason: str | None


@dataclass(frozen=True)
class ShellCommand:
    """One command of a shell block, as words, without redirection; `exit_code` is what the page promises."""

    block: Block
    words: tuple[str, ...]
    exit_code: int

    def __str__(self) -> str:
        return f"{self.block.document}:{self.block.line}: {shlex.join(self.words)}"


def documents() -> tuple[Document, ...]:
    """The documents of the repository, and the pages that the site makes of the faults."""
    paths = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    written = [Document(str(path.relative_to(ROOT)), path.read_text()) for path in paths]
    made = [
        Document(f"site:reference/faults/{kind}.md", fault_pages.page(kind, OVERVIEW)) for kind in fault_pages.kinds()
    ]
    return (*written, *made)


def blocks(document: Document) -> Iterator[Block]:
    """All fenced blocks."""
    for match in _FENCE.finditer(document.text):
        line = document.text.count("\n", 0, match.start("text"))
        yield Block(document, line, match["language"], match["title"], match["text"], match["reason"])


def commands(document: Document) -> Iterator[ShellCommand]:
    """The commands of all shell blocks, in order."""
    for block in blocks(document):
        if block.language != "sh":
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            promised = _EXIT_CODE.search(line)
            # A comment, or a redirection or pipe, ends what is ours.
            said = shlex.split(line, comments=True)
            command: list[str] = []
            for word in [*said, "&&"]:
                if word != "&&":
                    command.append(word)
                elif command:
                    end = next((i for i, word in enumerate(command) if word in (">", "|", ">>")), len(command))
                    yield ShellCommand(block, tuple(command[:end]), int(promised[1]) if promised else 0)
                    command = []


def code_in_sentences(document: Document) -> Iterator[str]:
    """What stands between backquotes, on one line; fenced blocks and what a program printed are left out."""
    for match in re.finditer(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)", _FENCE.sub("", document.text)):
        yield " ".join(match[1].split())


def experiment_files(document: Document) -> dict[str, str]:
    """Name -> text of the experiment files that the document shows; the first one without a title is any other's."""
    shown = [block for block in blocks(document) if block.language == "yaml" and _EXPERIMENT.match(block.text)]
    named = {block.title: block.text for block in shown if block.title}
    return named or ({"": shown[0].text} if shown else {})
