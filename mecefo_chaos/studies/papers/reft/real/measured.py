"""What was measured: real draws and real runs, with date, machine and command, in one file, of which one is shipped.

It is written after every draw and every run, whole or not at all: what is done stays done, whatever ends the work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TextIO

from chaos.errors import EnvironmentFailure, UsageError
from chaos.user_files import read_regular
from harness.store.files import write_whole
from mecefo_chaos.studies.papers.origin import Origin
from mecefo_chaos.studies.papers.reft.real.draws import Draw, run_draws
from mecefo_chaos.studies.papers.reft.real.rungs import RungRun, all_asked, run_asked
from mecefo_runtime.system.json_values import JsonTypeError, from_json, to_json

FORMAT = "chaos paper reft 1"
FILE = "measured.json"


@dataclass(frozen=True, slots=True)
class Measured:
    """`draws` and `runs`, each with where it is from; None: there are none."""

    draws: tuple[Draw, ...] = ()
    of_draws: Origin | None = None
    runs: tuple[RungRun, ...] = ()
    of_runs: Origin | None = None


def read_measured(folder: Path) -> Measured:
    """What was measured last with that folder; of what was not, what came with this version.

    Raises:
        UsageError: the file in it is none of ours.
        EnvironmentFailure: it may not be read.
    """
    shipped = _parse(files(__package__).joinpath(FILE).read_text(encoding="utf-8"), FILE)
    path = folder / FILE
    if folder.exists() and not folder.is_dir():
        raise UsageError("is no folder", path=str(folder))
    try:
        text = read_regular(path).decode()
    except FileNotFoundError:
        return shipped
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentFailure(f"cannot read {path}: {error}") from error
    own = _parse(text, str(path))
    if own.of_draws is None:
        own = replace(own, draws=shipped.draws, of_draws=shipped.of_draws)
    return own if own.of_runs is not None else replace(own, runs=shipped.runs, of_runs=shipped.of_runs)


def measure_draws(num_draws: int, seed: int, folder: Path, stream: TextIO) -> None:
    """Make so many real draws; those that the folder has of the same seed are not made again."""
    kept = _own(folder)
    origin = Origin.now(f"chaos paper reft --draws {num_draws} --seed {seed}")
    is_same = kept.of_draws is not None and kept.of_draws.command.endswith(f"--seed {seed}")
    done = list(kept.draws[:num_draws]) if is_same else []

    def keep(draw: Draw) -> None:
        done.append(draw)
        _write(folder, replace(kept, draws=tuple(done), of_draws=origin))
        words = f"{draw.scheme}, {len(draw.lost)} lost: {draw.outcome}"
        print(f"draw {draw.number + 1} of {num_draws}: {words}", file=stream, flush=True)

    run_draws(range(len(done), num_draws), seed, folder / "logs", keep)


def measure_runs(num_runs: int, num_of_nodes: int, seed: int, folder: Path, stream: TextIO) -> None:
    """Run every rung so often, and eight nodes so often; runs that the folder has of these seeds are not made again."""
    kept = _own(folder)
    origin = Origin.now(f"chaos paper reft --runs {num_runs} --seed {seed}")
    wanted = all_asked(num_runs, num_of_nodes, seed)
    done = {(run.rung, run.seed): run for run in kept.runs}
    for number, asked in enumerate(wanted, start=1):
        if (asked.rung, asked.seed) in done:
            continue
        run = run_asked(asked, folder, stream)
        done[asked.rung, asked.seed] = run
        print(f"run {number} of {len(wanted)}: {run.rung}, served by {run.served}", file=stream, flush=True)
        _write(folder, replace(_own(folder), runs=tuple(done.values()), of_runs=origin))


def _own(folder: Path) -> Measured:
    try:
        return _parse(read_regular(folder / FILE).decode(), str(folder / FILE))
    except FileNotFoundError:
        return Measured()
    except OSError as error:
        raise EnvironmentFailure(f"cannot read {folder / FILE}: {error.strerror}") from error


def _write(folder: Path, measured: Measured) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # A line for each draw and each run: that is how they are read, and compared.
    parts = [f' "format": {json.dumps(FORMAT)}']
    for name in ("of_draws", "of_runs"):
        parts.append(f' "{name}": {json.dumps(to_json(getattr(measured, name)))}')
    parts += [f' "draws": {_lines(measured.draws)}', f' "runs": {_lines(measured.runs)}']
    write_whole(folder / FILE, "{\n" + ",\n".join(parts) + "\n}\n")


def _lines(values: Iterable[Draw | RungRun]) -> str:
    lines = ",\n  ".join(json.dumps(to_json(value)) for value in values)
    return f"[\n  {lines}\n ]" if lines else "[]"


def _parse(text: str, path: str) -> Measured:
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise UsageError(f'is nothing that was measured here: its format is not "{FORMAT}"', path=path)
        return from_json(Measured, values)
    except (ValueError, RecursionError) as error:
        said = str(error) if isinstance(error, JsonTypeError) else "it is no JSON"
        raise UsageError(f"is nothing that was measured here: {said}", path=path) from error
