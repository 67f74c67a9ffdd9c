"""The templates of our pages: what they print is escaped, and no control character of it reaches a page."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from harness.analysis.words import one_line


def template(folder: Path, name: str) -> Template:
    """The template `name` in `folder`; a name that it does not know is an error."""
    return _environment(folder).get_template(name)


@cache
def _environment(folder: Path) -> Environment:
    """One for each folder: it compiles each template once."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else one_line(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
