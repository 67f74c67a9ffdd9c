"""`chaos report --html` and `--pictures`: the report of a run as a page, and its charts as files of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.errors import EnvironmentFailure
from mecefo_chaos.cli.shared.output import echo

if TYPE_CHECKING:
    from harness.judging.summary import Summary
    from mecefo_runtime.system.events import Event


def write_page(path: Path, folder: Path, summary: Summary, events: Sequence[Event]) -> None:
    """Write the report of the run in `folder` to `path`.

    Raises:
        EnvironmentFailure: it could not be written.
    """
    from harness.live.working import Working
    from harness.report.html import page
    from harness.store.files import write_whole

    with Working(f"writing {path}"):
        text = page(summary, events, folder=folder, page_folder=path.absolute().parent, environment=os.environ)
        write_whole(path, text)


def write_pictures(into: Path, summary: Summary, events: Sequence[Event]) -> None:
    """Write the charts of a run into the folder `into`, as SVG and, where there is a browser to draw them, as PNG.

    Raises:
        EnvironmentFailure: they could not be written.
    """
    from harness.live.working import Working
    from harness.report.pictures import PictureError, draw, write, write_png

    pictures = draw(summary, events)
    try:
        files = write(into, pictures)
    except PictureError as error:
        raise EnvironmentFailure(str(error)) from error
    if not files:
        echo("no pictures: the run committed no step")
        return
    try:
        with Working("drawing pictures") as progress:
            for number, file in enumerate(files):
                progress(file.name, number, len(files))
                write_png(file)
    except PictureError as error:
        echo(f"{len(files)} pictures in {into}, as SVG only: {error}")
    else:
        echo(f"{len(files)} pictures in {into}, as SVG and PNG")
