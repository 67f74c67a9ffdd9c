"""What failures do to the perplexity, by `python -m benchmarks.convergence`: figures of ours, or what it printed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from chaos.errors import UsageError
from chaos.user_files import read_input
from harness.papers.mecefo.claims import PROCESSES, perplexity_increase
from mecefo_runtime.system.json_values import from_json

SHIPPED_FILE = "perplexity.json"
_PERCENT = r"([+-]?[\d.]+)%"
_ROW = re.compile(
    rf"^(?P<policy>[a-z][\w %.,-]*?), (?P<process>low|mid|high)(?P<more>, [\w %.,-]*?)?  +[\d.]+ +[\d.]+% +"
    rf"{_PERCENT} +{_PERCENT} +{_PERCENT} +(\d+) "
)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Increase of the validation perplexity over the failure-free run, at the same number of steps."""

    policy: str
    process: str
    median_ratio: float
    least_ratio: float
    greatest_ratio: float
    num_seeds: int

    @property
    def paper(self) -> tuple[float, float]:
        """The paper's, least and greatest of its three sizes."""
        return perplexity_increase(self.process)


@dataclass(frozen=True, slots=True)
class Convergence:
    """What the benchmark said, when, by which command; `model` is what it trained."""

    date: str
    command: str
    model: str
    rows: tuple[Perplexity, ...]

    def of(self, policy: str, process: str) -> Perplexity | None:
        """One row, if there is such."""
        return next((row for row in self.rows if (row.policy, row.process) == (policy, process)), None)


def shipped_convergence() -> Convergence:
    """The figures that stand in docs/explanation/convergence.md."""
    return from_json(Convergence, json.loads(files(__package__).joinpath(SHIPPED_FILE).read_text(encoding="utf-8")))


def read_convergence(path: Path) -> Convergence:
    """What the benchmark printed into a file.

    Raises:
        UsageError: the file cannot be read, or holds no such table.
    """
    try:
        text = read_input(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"cannot be read: {reason}", path=str(path)) from error
    rows = parse_rows(text.splitlines())
    if not rows:
        message = "no table of perplexities in it: give it what `python -m benchmarks.convergence` prints"
        raise UsageError(message, path=str(path))
    return Convergence("", f"python -m benchmarks.convergence > {path.name}", "as printed there", tuple(rows))


def parse_rows(lines: Sequence[str]) -> list[Perplexity]:
    """The rows of the benchmark's tables of perplexities; of a policy that is told twice, the first."""
    found: dict[tuple[str, str], Perplexity] = {}
    for line in lines:
        match = _ROW.match(line)
        if match is None or match["process"] not in PROCESSES:
            continue
        *ratios, num = match.groups()[3:]
        policy = match["policy"] + (match["more"] or "")
        middle, least, greatest = (round(float(text) / 100, 6) for text in ratios)
        row = Perplexity(policy, match["process"], middle, least, greatest, int(num))
        found.setdefault((policy, row.process), row)
    return list(found.values())
