"""Expected texts that lie in files beside the tests, and are written anew with `pytest --update-snapshots`."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

OPTION = "--update-snapshots"
_MAX_LINES = 60


class Snapshot:
    """The expected texts of one test module: files in the folder `snapshots` beside it."""

    def __init__(self, folder: Path, *, is_updated: bool) -> None:
        self._folder = folder
        self._is_updated = is_updated

    def check(self, name: str, text: str) -> None:
        """Fail with the difference where `text` is not that of the file `name`."""
        path = self._folder / name
        if self._is_updated:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text != expected:
            lines = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), "expected", "found", n=1, lineterm=""
            )
            shown = "\n".join(list(lines)[:_MAX_LINES])
            pytest.fail(f"{path.name} differs; `pytest {OPTION}` writes it anew:\n{shown}", pytrace=False)
