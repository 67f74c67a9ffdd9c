"""Files that others may be reading while they are written."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from chaos.errors import EnvironmentFailure
from chaos.host.inherited import why
from chaos.user_files import write_output


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it.

    A link keeps pointing to the file, and what is no file, such as /dev/stdout, is written to as it is.

    Raises:
        EnvironmentFailure: it could not be written.
    """
    try:
        if path.exists() and not path.is_file():
            write_output(path, text)
            return
    except OSError as error:
        raise EnvironmentFailure(f"cannot write {path}: {why(error)}") from error
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # A link at that path is not followed.
        partial.unlink(missing_ok=True)
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise EnvironmentFailure(f"cannot write {path}: {why(error)}") from error
