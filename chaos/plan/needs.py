"""What faults need from the machine and the backend, and the messages when it is missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chaos.errors import UsageError, nearest, setting
from chaos.experiment.experiment import Experiment

_CHECKPOINTS = f"a job that writes checkpoints: give it {setting('job.checkpoint.every_steps', 20)}"
_KEEPS_SNAPSHOTS = setting("job.snapshots.every", 1)
# Only the built-in job keeps them.
_BUILT_IN_WITH_SNAPSHOTS = (
    f"the built-in job with snapshots: leave {setting('job.command')} out, and give it {_KEEPS_SNAPSHOTS}"
)
# Need -> what would have to be there.
NEEDS: Mapping[str, str] = {
    "checkpoints": _CHECKPOINTS,
    "checkpoint-phase": _CHECKPOINTS,
    "command": "a command of your own, which can be started again",
    "cuda": "a job whose ranks run on CUDA devices",
    "data-workers": "a command of your own, whose DataLoader has worker processes (num_workers above 0)",
    "links": "ranks with networks of their own",
    "lookups": "a command of your own, whose Python code looks names up",
    "own-runtime": f"the built-in job, into whose steps it reaches: leave {setting('job.command')} out",
    "snapshots": f"a job that keeps snapshots: give it {_KEEPS_SNAPSHOTS}",
    "root": "root's rights on this machine",
}


def capabilities_of(experiment: Experiment) -> frozenset[str]:
    """The abilities that an experiment offers on every machine; its nodes may add "cuda", "root" and "links"."""
    job = experiment.job
    # Whether a script saves anything shows when it does.
    has_checkpoints = job.traits.keeps_own_checkpoints or job.checkpoint is not None
    offered = {
        "links": experiment.nodes_on.has_own_networks or experiment.nodes_on.links_are_connections,
        "own-runtime": not job.traits.is_user_script,
        "command": job.traits.is_user_script,
        "checkpoints": has_checkpoints,
        # Whether it has any shows when it loads.
        "data-workers": job.traits.is_user_script,
        # The built-in job knows addresses alone.
        "lookups": job.traits.is_user_script,
        "snapshots": job.snapshots is not None,
        "checkpoint-phase": has_checkpoints,
    }
    return frozenset(need for need, is_there in offered.items() if is_there)


class Unmet(UsageError):
    """A kind of fault has `needs` that the run does not meet."""

    def __init__(self, kind: str, needs: tuple[str, ...]) -> None:
        both = ("own-runtime", "snapshots")
        is_both = set(both) <= set(needs)
        words = [NEEDS[need] for need in needs if not (is_both and need in both)]
        super().__init__(f"{kind} needs {'; and '.join([*words, *([_BUILT_IN_WITH_SNAPSHOTS] if is_both else [])])}")
        self.needs = needs


def check_needs(needs: Mapping[str, Collection[str]], capabilities: Collection[str]) -> list[Unmet]:
    """One violation for each kind of fault in `needs` of whose needs some are not among `capabilities`.

    Raises:
        ValueError: a fault names a need that there is no word for.
    """
    violations = []
    for kind, wanted in needs.items():
        for need in wanted:
            if need not in NEEDS:
                raise ValueError(f"{kind} needs {need!r}: the words are {', '.join(NEEDS)} ({nearest(need, NEEDS)}?)")
        missing = tuple(need for need in wanted if need not in capabilities)
        if missing:
            violations.append(Unmet(kind, missing))
    return violations
