"""What `mkdocs build` calls: it adds the pages that are made from the code, and leads links to files outside of docs/.

mkdocs loads this file by its path; it needs the project itself to be installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from chaos.experiment.schema import json_schema
from manual import events, fault_pages, metrics, reasons, reference

ROOT = Path(__file__).parents[1]
SCHEMA = "schema/experiment.json"
# Documents of the repository that are pages, too.
_FROM_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_PICTURE = re.compile(r"^!\[[^\]\n]*\]\((?:\.\./)*(?P<path>pictures/[\w-]+\.svg)\)$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the navigation that are empty in mkdocs.yml: each fault, by family, and the decisions."""
    pages = [
        {family: [{kind: f"reference/faults/{kind}.md"} for kind in kinds]}
        for family, kinds in fault_pages.families().items()
        if kinds
    ]
    decisions = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    filled: dict[str, list[Any]] = {
        "Each fault": ["reference/faults/index.md", *pages],
        "Decisions": [f"decisions/{name}" for name in ("README.md", *decisions)],
    }
    config.nav = _filled(config.nav, filled)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    overview = (ROOT / "docs/reference/faults.md").read_text()
    pages = {f"reference/faults/{kind}.md": fault_pages.page(kind, overview) for kind in fault_pages.kinds()}
    pages["reference/faults/index.md"] = fault_pages.index()
    pages["reference/command-line.md"] = reference.command_line()
    pages["reference/experiment.md"] = reference.experiment()
    pages["reference/reasons.md"] = reasons.page()
    pages |= {page: (ROOT / source).read_text() for source, page in _FROM_ROOT.items()}
    # For editors, at an address that stays.
    pages[SCHEMA] = json.dumps(json_schema(), indent=2) + "\n"
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ to the pages made of their files; of others, such as sources, the words are left."""
    source = page.file.src_uri
    here = ROOT / "docs" / source
    if source in _FROM_ROOT.values():
        here = ROOT / source
    whole = metrics.with_tables(events.with_kinds(markdown))
    return _PICTURE.sub(_inlined, rewritten(whole, here, page_depth=source.count("/")))


def _inlined(match: re.Match[str]) -> str:
    """A picture of a run within the page, where it takes the colours of the page's scheme."""
    svg = (ROOT / "docs" / match["path"]).read_text().strip()
    return f'<figure class="run">{svg}</figure>'


def rewritten(markdown: str, here: Path, *, page_depth: int) -> str:
    """The Markdown of the document `here` with its links as the page at `page_depth` folders below docs/ needs them."""

    def lead(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        path = (here.parent / target).resolve()
        if path.is_relative_to(ROOT / "docs"):
            inside = path.relative_to(ROOT / "docs").as_posix()
        elif path.is_relative_to(ROOT) and path.relative_to(ROOT).as_posix() in _FROM_ROOT:
            inside = _FROM_ROOT[path.relative_to(ROOT).as_posix()]
        elif path == ROOT / "README.md":
            inside = "index.md"
        else:
            return words
        # A file's name is a page's title here.
        words = _title(path) if words.endswith(".md") else words
        return f"[{words}]({'../' * page_depth}{inside}{anchor})"

    return re.sub(r"(?<!!)\[([^\]\n]+(?:\n[^\]\n]+)*)\]\(([^)#\s:]+)(#[^)\s]*)?\)", lead, markdown)


def _title(document: Path) -> str:
    first, _, _ = document.read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("# ")


def _filled(nav: Any, parts: Mapping[str, list[Any]]) -> Any:
    if isinstance(nav, list):
        return [_filled(item, parts) for item in nav]
    if isinstance(nav, dict):
        return {title: parts.get(title, item) if item == [] else _filled(item, parts) for title, item in nav.items()}
    return nav
