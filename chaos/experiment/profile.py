"""How real clusters fail: kinds of faults by published counts, and how much more often faults occur in a run.

The counts of `llama3` are those of 54 days of Llama 3 405B's pre-training on 16,384 GPUs: 419 unexpected interruptions
(Llama Team, "The Llama 3 Herd of Models", 2024, section 3.3.4 and table 5). They are classed here by what a job sees.
Those of `failslow` are second-hand and were not checked against the papers that they come from; plans say so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chaos.errors import UsageError, nearest, shown
from chaos.language.target import Target
from chaos.language.trigger import Duration, whole_number

if TYPE_CHECKING:
    from chaos.faults.base import Fault

_SECONDS_PER_DAY = 86_400.0
# Where nothing is said of how many: far enough apart for most to be repaired before the next one.
STEPS_PER_FAILURE = 60
MAX_FAILURES = 1000
# For a fault that would last to the job's end: as long as what is killed stays down unless something else is said.
DEFAULT_LIFETIME = Duration(steps=40)


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One class of failures: how many were counted, and the fault that stands for it."""

    name: str
    count: int
    kind: str
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """What failed in a real cluster; `num_failures` in `days` on `num_gpus`, where that was published."""

    name: str
    classes: tuple[FailureClass, ...]
    source: str
    num_failures: int | None = None
    num_gpus: int | None = None
    days: float | None = None


_PROFILES = (
    Profile(
        "llama3",
        (
            FailureClass("rank or GPU fail-stop", 239, "kill-process"),
            FailureClass("process crash", 54, "segfault"),
            FailureClass("node loss", 46, "kill-node"),
            FailureClass("network", 42, "drop-link"),
            FailureClass("hang", 24, "hang-gil"),
            FailureClass("silent corruption", 6, "bit-flip"),
            FailureClass("straggler", 6, "slow-rank"),
            FailureClass("dependency", 2, "kill-process", Target(role="coordinator")),
        ),
        "Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 GPUs",
        num_failures=419,
        num_gpus=16_384,
        days=54.0,
    ),
    # Shares of jobs (percent), not counts of failures.
    Profile(
        "failslow",
        (FailureClass("slow communication", 40, "slow-link"), FailureClass("slow compute", 2, "slow-rank")),
        "second-hand figures of Falcon and Greyhound, not checked against the papers: the percentage of jobs that "
        "were slowed, for 10 to 72 min and 1.1 to 2 times; no rate of failures",
    ),
)
PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in _PROFILES})


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """A profile as the user names it; `failures` None: one for every STEPS_PER_FAILURE steps of the job."""

    name: str
    failures: int | None = None

    def __post_init__(self) -> None:
        if self.name not in PROFILES:
            message = f"there is no profile {shown(self.name)}: there are {', '.join(PROFILES)}"
            raise UsageError(message, suggestion=nearest(self.name, PROFILES))
        if self.failures is not None and not 1 <= self.failures <= MAX_FAILURES:
            raise UsageError(f"{self.failures} failures: a run has 1 to {MAX_FAILURES}")

    def __str__(self) -> str:
        return self.name if self.failures is None else f"{self.name}:{self.failures}"

    @classmethod
    def parse(cls, value: object) -> ProfileSpec:
        """Read `llama3`, `llama3:10` or `{name: llama3, failures: 10}`.

        Raises:
            UsageError: it is none of these; `key` is the part that is wrong, where it is one part.
        """
        if isinstance(value, ProfileSpec):
            return value
        if isinstance(value, str):
            said, colon, failures = value.partition(":")
            return cls(said.strip(), _number(failures.strip(), None) if colon else None)
        if not isinstance(value, Mapping):
            raise UsageError(f"{shown(value)} is no profile: write one of {', '.join(PROFILES)}")
        words = ("name", "failures")
        for key in value:
            if key not in words:
                message = f"there is no {shown(key)} in a profile: write {', '.join(words)}"
                raise UsageError(message, key=str(key), suggestion=nearest(str(key), words))
        name = value.get("name")
        if not isinstance(name, str):
            raise UsageError(f"must be one of {', '.join(PROFILES)}, not {shown(name)}", key="name")
        return cls(name, _number(value["failures"], "failures") if "failures" in value else None)

    def num_failures(self, num_steps: int) -> int:
        """How many failures a job of `num_steps` steps has."""
        return self.failures or min(max(num_steps // STEPS_PER_FAILURE, 1), MAX_FAILURES)


def _number(value: object, key: str | None) -> int:
    number = whole_number(value)
    if number is None:
        raise UsageError(f"failures must be a whole number from 1, not {shown(value)}", key=key)
    return number


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which classes of a profile a job can have, and why not the others; `left_out_ratio` is their share by counts."""

    classes: tuple[FailureClass, ...]
    left_out: tuple[tuple[FailureClass, str], ...]

    @property
    def left_out_ratio(self) -> float:
        """The share of the counted failures that this job cannot have."""
        gone = sum(failure.count for failure, _ in self.left_out)
        return gone / (gone + sum(failure.count for failure in self.classes))


def coverage(
    profile: Profile, registry: Mapping[str, type[Fault[Any]]], capabilities: Collection[str], *, num_nodes: int
) -> Coverage:
    """The classes of `profile` for which there is a fault in `registry` that needs only what is in `capabilities`."""
    found: list[FailureClass] = []
    left_out: list[tuple[FailureClass, str]] = []
    for failure in profile.classes:
        why = _why_not(registry.get(failure.kind), capabilities, num_nodes)
        if why is None:
            found.append(failure)
        else:
            left_out.append((failure, f"{failure.kind} {why}"))
    return Coverage(tuple(found), tuple(left_out))


def _why_not(kind: type[Fault[Any]] | None, capabilities: Collection[str], num_nodes: int) -> str | None:
    if kind is None:
        return "is not installed"
    missing = [need for need in kind.needs if need not in capabilities]
    if missing:
        return f"needs {', '.join(missing)}"
    if kind.scope == "link" and num_nodes < 2:
        return "needs two nodes"
    try:
        kind.Parameters.model_validate({})
    except ValidationError:
        return "has parameters without a default"
    return None


@dataclass(frozen=True, slots=True)
class Failure:
    """One drawn failure: its class and its step."""

    failure_class: FailureClass
    step: int


def draw(classes: tuple[FailureClass, ...], num_steps: int, rng: Random) -> Failure:
    """One failure of a job of `num_steps` steps; `classes` (at least one) by their counts.

    The failures of a Poisson process of which the number is given lie anywhere, each for itself: so are these drawn.
    """
    rng_stream = rng.random() * sum(failure.count for failure in classes)
    step = 1 + int(rng.random() * num_steps)
    for failure in classes:
        rng_stream -= failure.count
        if rng_stream < 0:
            return Failure(failure, step)
    return Failure(classes[-1], step)


@dataclass(frozen=True, slots=True)
class TimeCompression:
    """How much faster a run fails than as many ranks of the profile's cluster do.

    `ratio` is the time in which those have `num_failures`, divided by the run's; None while that is not known.
    """

    profile: str
    num_ranks: int
    num_failures: int
    real_days_per_failure: float
    wall_seconds: float | None = None
    ratio: float | None = None

    def __str__(self) -> str:
        real = _days_text(self.real_days_per_failure)
        said = f"{self.num_ranks} ranks fail once in {real} at the rate of {self.profile}"
        return said if self.ratio is None else f"{said}; this run was {self.ratio:,.0f} times as fast"


def time_compression(
    profile: str, num_ranks: int, num_failures: int, wall_seconds: float | None = None
) -> TimeCompression | None:
    """What `num_failures` in `wall_seconds` on `num_ranks` are beside the real cluster; None: its rate is not known.

    Ranks stand for GPUs, and the rate is that of all of the profile's classes.
    """
    known = PROFILES[profile]
    if known.num_failures is None or known.num_gpus is None or known.days is None:
        return None
    days = known.days * known.num_gpus / (known.num_failures * num_ranks)
    ratio = days * _SECONDS_PER_DAY * num_failures / wall_seconds if wall_seconds else None
    return TimeCompression(profile, num_ranks, num_failures, days, wall_seconds, ratio)


def _days_text(days: float) -> str:
    if days >= 10:
        return f"{days:,.0f} days"
    return f"{days:.1f} days" if days >= 1 else f"{days * 24:.1f} hours"
