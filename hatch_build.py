"""What the package says of itself that depends on where it is built: the description and the addresses.

hatchling calls it (`tool.hatch.metadata.hooks.custom`). Package indexes show README.md away from the repository, where
relative links lead nowhere. With MECEFO_CHAOS_SOURCE, the address of the files of this commit
(https://github.com/OWNER/NAME/blob/v1.2.3; the release workflow sets it), links become absolute. Without it nothing is
known to link to: the words stay, pictures go.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent
_TARGET = r"\((?P<target>(?![a-z]+:|#)[^)\s]+)\)"
_PICTURE = re.compile(rf"!\[(?P<words>[^\[\]]*)\]{_TARGET}")
# Its words may hold pictures, which are absolute by then.
_LINK = re.compile(rf"(?<!!)\[(?P<words>(?:!\[[^\[\]]*\]\([^)\s]*\)|[^\[\]])*)\]{_TARGET}")
# As HTML: for a size, or for dark pages.
_HTML_PICTURE = re.compile(r"<picture>.*?</picture>\s*|<img\b[^>]*>", re.DOTALL)
_HTML_TARGET = re.compile(r'\b(?P<name>src|srcset)="(?![a-z]+:)(?P<target>[^"]+)"')
_SOURCE = re.compile(r"(?P<repository>https://[^/]+/[^/]+/[^/]+)/blob/(?P<revision>.+)")


class Metadata(MetadataHookInterface):
    """The fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill them in."""
        source = os.environ.get("MECEFO_CHAOS_SOURCE", "")
        text = described((ROOT / "README.md").read_text(), source)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(source)


def described(readme: str, source: str) -> str:
    """README.md with its links as a page elsewhere needs them."""
    if not source:
        return _LINK.sub(lambda match: match["words"], _PICTURE.sub("", _HTML_PICTURE.sub("", readme)))
    raw = _raw(source)
    readme = _HTML_TARGET.sub(lambda match: f'{match["name"]}="{raw}/{match["target"]}"', readme)
    shown = _PICTURE.sub(lambda match: f"![{match['words']}]({raw}/{match['target']})", readme)
    return _LINK.sub(lambda match: f"[{match['words']}]({source}/{match['target']})", shown)


def urls(source: str) -> dict[str, str]:
    """The links beside the description."""
    if not source:
        return {}
    match = _parts(source)
    repository, revision = match["repository"], match["revision"]
    return {
        "Source": repository,
        "Documentation": f"{repository}/tree/{revision}/docs",
        "Changelog": f"{repository}/blob/{revision}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def _raw(source: str) -> str:
    """Where the files themselves are, instead of a page about each."""
    match = _parts(source)
    return f"{match['repository']}/raw/{match['revision']}"


def _parts(source: str) -> re.Match[str]:
    match = _SOURCE.fullmatch(source.rstrip("/"))
    if match is None:
        raise ValueError(f"MECEFO_CHAOS_SOURCE is {source!r}, not https://github.com/OWNER/NAME/blob/REVISION")
    return match
