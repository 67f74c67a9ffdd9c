"""Whether the program of a command can be started, and what to write where it is not on PATH."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from chaos.errors import UsageError, nearest, shown

_LAUNCHERS = ("torchrun", "python", "python3", "accelerate", "deepspeed", "mpirun", "srun")
_KEY = "job.command"


def require_program(program: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Check that `program` can be started in `folder`; `environment` is what the job sets besides this process's own.

    Raises:
        UsageError: it is not there. The message says where it is, if it belongs to the Python that runs this.
    """
    path = environment.get("PATH", os.environ.get("PATH"))
    if os.sep in program:
        # A path is looked up from the folder in which the command will run.
        if shutil.which(str(folder.absolute() / program)) is None:
            missing = f"no program {shown(program)} that could be started"
            raise UsageError(_of_script(program, folder, path, missing), key=_KEY)
        return
    if shutil.which(program, path=path) is not None:
        return
    missing = f"no program {shown(program)} on PATH"
    if (own := _beside_python(program)) is not None:
        raise UsageError(f"there is {missing}; there is one in {own.parent}: {_how(own, environment)}", key=_KEY)
    others = [name for name in _LAUNCHERS if name != program and _runnable(name, path) is not None]
    guess = nearest(program, others)
    suggestion = None if guess is None else _runnable(guess, path)
    raise UsageError(_of_script(program, folder, path, missing), key=_KEY, suggestion=suggestion)


def _of_script(program: str, folder: Path, path: str | None, missing: str) -> str:
    """`missing` as a sentence; with the way to start it where `program` is a Python script."""
    if not program.endswith(".py") or not (folder / program).is_file():
        return f"there is {missing}"
    ways = (f"{_runnable(name, path) or name} {program}" for name in ("torchrun", "python"))
    return f"there is {missing}: a script needs a program that runs it: {', or '.join(ways)}"


def _how(program: Path, environment: Mapping[str, str]) -> str:
    write = f"write {shlex.quote(str(program))}"
    activate = program.parent / "activate"
    # Where the job sets its own PATH, an active environment changes nothing.
    if "PATH" in environment or not activate.is_file():
        return write
    return f"activate that environment (`. {shlex.quote(str(activate))}`), or {write}"


def _runnable(name: str, path: str | None) -> str | None:
    """What to write to start `name`; None where it is neither on PATH nor beside this Python."""
    if shutil.which(name, path=path) is not None:
        return name
    own = _beside_python(name)
    return None if own is None else shlex.quote(str(own))


def _beside_python(name: str) -> Path | None:
    """The program of this name in the folder of the Python that runs this."""
    own = Path(sys.executable).absolute().parent / name
    return own if sys.executable and shutil.which(str(own)) is not None else None
