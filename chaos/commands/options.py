"""Options that several subcommands have."""

from __future__ import annotations

from pathlib import Path

import click

DEFAULT_OUT = "chaos-runs"
OUT_OPTION = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(DEFAULT_OUT),
    show_default=True,
    help="Where runs are kept.",
)
JSON_OPTION = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on standard output, all else on standard error."
)
