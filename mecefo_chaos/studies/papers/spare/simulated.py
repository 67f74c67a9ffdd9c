"""What was simulated: which rows, under which assumptions, with which seeds; in one file, of which one is shipped.

It is written after every job, whole or not at all: what is done stays done, whatever ends the work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import count, takewhile
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

from chaos.errors import EnvironmentFailure, UsageError, nearest, shown
from chaos.user_files import read_regular
from harness.live.working import Progress
from harness.store.files import write_whole
from mecefo_chaos.studies.papers.origin import Origin
from mecefo_chaos.studies.papers.spare.assumptions import Assumptions
from mecefo_chaos.studies.papers.spare.claims import CLAIMS, SIZES, Scheme
from mecefo_chaos.studies.papers.spare.schemes import masking
from mecefo_chaos.studies.papers.spare.simulation import Outcome, simulate
from mecefo_runtime.stacks.rulers import largest_redundancy
from mecefo_runtime.system.json_values import JsonTypeError, from_json, to_json

FORMAT = "chaos paper spare 1"
FILE = "simulated.json"
_SCHEMES: tuple[Scheme, ...] = ("spare", "replication")
# Of each row, to find the best redundancy. More copies than that fit only 1,000 groups, and pay nowhere.
_MOST_COPIES = {"spare": 20, "replication": 6}
# Of so many, the controller takes minutes for a job.
_MOST_GROUPS = 10_000
# What is assumed otherwise, one at a time, for the rows with the paper's best redundancy.
VARIANTS = (
    "recovery=absorb",
    "recovery=global_restart",
    "restarting=failed",
    "clocks=begin_anew",
    "weibull_shape=1",
    "jitter=layer",
    "barrier=layer",
    "jitter_ratio=0",
    "patch=layer",
    "offsets=consecutive",
    "period_factor=0.5",
    "period_factor=2",
)
DEFAULT_READING = ""


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A job to simulate; `assumed` is what differs from the defaults, as `name=value`."""

    scheme: Scheme
    num_groups: int
    redundancy: int
    assumed: str = DEFAULT_READING


@dataclass(frozen=True, slots=True)
class Simulated:
    """What was simulated of each row, by seed; the seeds are 1, 2, ..."""

    origin: Origin | None = None
    outcomes: tuple[tuple[Row, tuple[Outcome, ...]], ...] = ()

    def of(self, row: Row) -> tuple[Outcome, ...]:
        """Of one row, nothing if it was not simulated."""
        return dict(self.outcomes).get(row, ())


def wanted_rows() -> tuple[Row, ...]:
    """All that the check shows."""
    best = [Row(claim.scheme, claim.num_groups, claim.redundancy) for claim in CLAIMS if claim.availability_ratio]
    curves = [
        Row(scheme, num_groups, redundancy)
        for scheme in _SCHEMES
        for num_groups in SIZES
        for redundancy in range(2, min(_most(scheme, num_groups), _MOST_COPIES[scheme]) + 1)
    ]
    varied = [replace(row, assumed=assumed) for assumed in VARIANTS for row in best]
    claimed = [Row(claim.scheme, claim.num_groups, claim.redundancy) for claim in CLAIMS]
    return tuple(dict.fromkeys((*claimed, *curves, *varied)))


def _most(scheme: Scheme, num_groups: int) -> int:
    return largest_redundancy(num_groups) if scheme == "spare" else num_groups


def parse_row(text: str, assumed: tuple[str, ...] = ()) -> Row:
    """From `scheme,N,r`.

    Raises:
        UsageError: it makes no sense.
    """
    said, *numbers = text.split(",")
    scheme = next((one for one in _SCHEMES if one == said), None)
    if scheme is None or len(numbers) != 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        message = f"{shown(text)} is no row: SCHEME,N,R, with {' or '.join(_SCHEMES)} for SCHEME"
        raise UsageError(message, key="--row", suggestion=nearest(said, _SCHEMES))
    num_groups, redundancy = map(int, numbers)
    if num_groups > _MOST_GROUPS:
        raise UsageError(f"{num_groups:,} groups are more than {_MOST_GROUPS:,}", key="--row")
    parsed = Assumptions.parse(assumed)
    try:
        masking(scheme, num_groups, redundancy, parsed)
    except ValueError as error:
        raise UsageError(str(error), key="--row") from error
    return Row(scheme, num_groups, redundancy, " ".join(assumed))


def read_simulated(folder: Path) -> Simulated:
    """What was simulated last with that folder; else what came with this version.

    Raises:
        UsageError: the file in it is none of ours.
        EnvironmentFailure: it may not be read.
    """
    own = _own(folder)
    return own if own is not None else _parse(files(__package__).joinpath(FILE).read_text(encoding="utf-8"), FILE)


def simulate_rows(
    rows: Sequence[Row], num_seeds: int, num_processes: int, progress: Progress
) -> dict[Row, tuple[Outcome, ...]]:
    """So many seeds of each row."""
    return _simulate(rows, num_seeds, num_processes, progress, Simulated(), lambda found: None)


def simulate_all(num_seeds: int, folder: Path, num_processes: int, progress: Progress) -> None:
    """So many seeds of every row; what the folder has is not simulated again."""
    kept = _own(folder) or Simulated()
    origin = Origin.now(f"chaos paper spare --simulate {num_seeds}")
    rows = wanted_rows()

    def keep(found: dict[Row, tuple[Outcome, ...]]) -> None:
        _write(folder, Simulated(origin, tuple(found.items())))

    _simulate(rows, num_seeds, num_processes, progress, kept, keep)


def _simulate(
    rows: Sequence[Row],
    num_seeds: int,
    num_processes: int,
    progress: Progress,
    kept: Simulated,
    keep: Callable[[dict[Row, tuple[Outcome, ...]]], None],
) -> dict[Row, tuple[Outcome, ...]]:
    found = {row: dict(enumerate(kept.of(row)[:num_seeds], start=1)) for row in rows}
    missing = [(row, seed) for seed in range(1, num_seeds + 1) for row in rows if seed not in found[row]]
    # A job keeps one core busy; forks of a process with threads would be unsafe.
    with ProcessPoolExecutor(min(num_processes, len(missing)) or 1, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(_simulate_row, row, seed): (row, seed) for row, seed in missing}
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                row, seed = futures[future]
                found[row][seed], seconds = future.result()
                keep(_whole(found))
                progress(f"{row_words(row)}, seed {seed}, simulated in {seconds:.1f} s", number, len(missing))
        except BaseException:
            # Whoever stops it does not wait for all the others.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return _whole(found)


def _whole(found: dict[Row, dict[int, Outcome]]) -> dict[Row, tuple[Outcome, ...]]:
    """Those of each row up to the first seed that is missing."""
    return {
        row: tuple(by_seed[seed] for seed in takewhile(by_seed.__contains__, count(1)))
        for row, by_seed in found.items()
    }


def _simulate_row(row: Row, seed: int) -> tuple[Outcome, float]:
    """(One job, the seconds that it took)."""
    begun = perf_counter()
    assumptions = Assumptions.parse(tuple(row.assumed.split()))
    outcome = simulate(row.scheme, row.num_groups, row.redundancy, seed, assumptions)
    return outcome, perf_counter() - begun


def row_words(row: Row) -> str:
    """A row in words."""
    assumed = f", {row.assumed}" if row.assumed else ""
    return f"{row.scheme} N={row.num_groups} r={row.redundancy}{assumed}"


def _own(folder: Path) -> Simulated | None:
    if folder.exists() and not folder.is_dir():
        raise UsageError("is no folder", path=str(folder))
    path = folder / FILE
    try:
        return _parse(read_regular(path).decode(), str(path))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentFailure(f"cannot read {path}: {error}") from error


def _write(folder: Path, simulated: Simulated) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n  ".join(json.dumps(to_json(one)) for one in simulated.outcomes)
    head = f' "format": {json.dumps(FORMAT)},\n "origin": {json.dumps(to_json(simulated.origin))}'
    write_whole(folder / FILE, f'{{\n{head},\n "outcomes": [\n  {lines}\n ]\n}}\n')


def _parse(text: str, path: str) -> Simulated:
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise UsageError(f'is nothing that was simulated here: its format is not "{FORMAT}"', path=path)
        return from_json(Simulated, values)
    except (ValueError, RecursionError) as error:
        said = str(error) if isinstance(error, JsonTypeError) else "it is no JSON"
        raise UsageError(f"is nothing that was simulated here: {said}", path=path) from error
