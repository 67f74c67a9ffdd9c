"""Options that several subcommands have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from chaos.errors import UsageError
from mecefo_chaos.cli.shared.grouped import option


class FileToWrite(click.Path):
    """A file that is written when the work is done. That it could not be is said before the work begins."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, in a folder that is there and takes files."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.name:
            raise UsageError("name a file", key=_option(param))
        # Written to as it is: to a terminal, say.
        is_device = path.exists() and not path.is_file()
        if not is_device:
            _check_folder(path.absolute().parent, path.parent, param)
        return path


class Folder(click.Path):
    """A folder; an empty text, as of a variable that is not set, is not the current one."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        if not os.fspath(value):
            raise UsageError("name a folder", key=_option(param))
        return super().convert(value, param, ctx)


class FolderToWrite(Folder):
    """A folder, made if need be, that is written to when the work is done; see `FileToWrite`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, which is or can be made a folder that takes files."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        _check_folder(there, there, param)
        return path


def _check_folder(folder: Path, shown: Path, param: click.Parameter | None) -> None:
    if not folder.is_dir():
        what = f"{shown} is not a folder" if folder.exists() else f"the folder {shown} does not exist"
        raise UsageError(what, key=_option(param))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"the folder {shown} cannot be written to", key=_option(param))


def _option(param: click.Parameter | None) -> str | None:
    return None if param is None else param.opts[0]


DEFAULT_OUT = "chaos-runs"
OUTPUT = "Output"
OUT_OPTION = option(
    OUTPUT,
    "--out",
    type=Folder(),
    default=Path(DEFAULT_OUT),
    show_default=True,
    help="Folder of all runs.",
)
JSON_OPTION = option(
    OUTPUT,
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON document on standard output, everything else on standard error.",
)
