"""Packages with plug-ins, installed into a folder as pip would do it, and the code of the pages about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.experiment import backends

PAGES = Path(__file__).resolve().parents[1] / "docs/how-to/extending"


def install(site: Path, name: str, source: str, entry_points: str) -> None:
    """A package with one module of that name."""
    site.mkdir(exist_ok=True)
    (site / f"{name}.py").write_text(source)
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


def documented(page: str, language: str) -> str:
    """The one block in that language on a page about extending."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    return str(block)


def install_backend_of_page(site: Path) -> None:
    """The backend of docs/how-to/extending/backend.md, called `pinned`."""
    (line,) = re.findall(r'^pinned = "(.*)"$', documented("backend.md", "toml"), re.MULTILINE)
    install(site, "pinned_nodes", documented("backend.md", "python"), f"[chaos.backends]\npinned = {line}\n")


@contextmanager
def known_backends(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backends of the packages in `site` are known in this process, too, as long as this is entered."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(site)
        _forget()
        try:
            yield
        finally:
            _forget()
    _forget()


def _forget() -> None:
    backends._load.cache_clear()
    backends.settings_model.cache_clear()
