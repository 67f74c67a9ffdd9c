"""What the check of every paper takes and prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chaos.host.terminal import columns
from mecefo_chaos.cli.shared.options import DEFAULT_OUT, JSON_OPTION, FileToWrite
from mecefo_chaos.cli.shared.output import print_as_is, print_json

if TYPE_CHECKING:
    from mecefo_chaos.studies.papers.check import Check

F = TypeVar("F", bound=Callable[..., Any])


def results_option(name: str) -> Callable[[F], F]:
    """The folder of the results of one's own, which default to one that is named after the paper."""
    return click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(DEFAULT_OUT) / f"paper-{name}",
        show_default=True,
        metavar="DIRECTORY",
        help="Folder of your own results.",
    )


def output_options(command: F) -> F:
    """How the check is shown."""
    for option in (
        JSON_OPTION,
        click.option("--html", "page", type=FileToWrite(), help="Also write the page to FILE."),
    ):
        command = option(command)
    return command


def show(check: Check[Any], page: Path | None, as_json: bool, *, with_details: bool = False) -> int:
    """Print the check and write its page; returns the exit code."""
    if page is not None:
        from harness.store.files import write_whole
        from mecefo_chaos.studies.papers.page import render

        write_whole(page, render(check))
    if as_json:
        print_json(check.document())
    else:
        from mecefo_chaos.studies.papers.text import check_text

        print_as_is(check_text(check, columns(), with_details=with_details))
    return check.exit_code
