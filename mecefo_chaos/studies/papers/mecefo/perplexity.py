"""What failures do to the perplexity, by `python -m benchmarks.convergence`: figures of ours, or what it printed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from chaos.errors import UsageError
from chaos.user_files import read_input
from mecefo_chaos.studies.papers.mecefo.claims import PROCESSES, perplexity_increase
from mecefo_chaos.studies.papers.mecefo.setting import DEFAULT, SPEED
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_runtime.system.json_values import from_json

SHIPPED_FILE = "perplexity.json"
# Increases are printed with their sign, shares without.
_INCREASE = r"([+-][\d.]+)%"
_ROW = re.compile(
    r"^(?P<policy>[a-z][\w %.,=-]*?), (?P<process>low|mid|high)(?P<more>, [\w %.,=-]*?)?  +"
    rf"[\d.]+(?: +[\d.]+%){{1,2}} +{_INCREASE} +{_INCREASE} +{_INCREASE} +(\d+) "
    r"(?: *(?:-|[+-][\d.]+% to [+-][\d.]+%) +(?P<error>[\d.]+|-) +(?P<worst>[\d.]+|-) +(?P<num_errors>\d+)$)?"
)
# By method, the policy of the benchmark that computes its approximation. Both qualities average what projections drop.
POLICIES: Mapping[str, str] = {
    DEFAULT: "mecefo, budget 0.0%, projected 50%, rest averaged",
    SPEED: "mecefo, rest averaged",
    "ndb": "ndb",
}


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Increase of the validation perplexity over the failure-free run, at the same number of steps.

    `median_error_ratio` and `greatest_error_ratio` are of the gradients of `num_errors` steps, relative to the exact.
    """

    policy: str
    process: str
    median_ratio: float
    least_ratio: float
    greatest_ratio: float
    num_seeds: int
    median_error_ratio: float | None = None
    greatest_error_ratio: float | None = None
    num_errors: int = 0

    @property
    def measured(self) -> Measured:
        """The increase as a figure for a rule."""
        return Measured(self.median_ratio, self.least_ratio, self.greatest_ratio, self.num_seeds)

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
        *ratios, num = match.groups()[3:7]
        policy = match["policy"] + (match["more"] or "")
        middle, least, greatest = (round(float(text) / 100, 6) for text in ratios)
        error, worst = (None if text in (None, "-") else float(text) for text in match.group("error", "worst"))
        num_errors = int(match["num_errors"] or 0)
        row = Perplexity(policy, match["process"], middle, least, greatest, int(num), error, worst, num_errors)
        found.setdefault((policy, row.process), row)
    return list(found.values())
