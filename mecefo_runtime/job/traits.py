"""What kind of job it is, as answers to the questions that are asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class JobTraits:
    """The traits of one kind of job: on its configuration, and in the log of a run.

    `has_layout`: ranks hold layers, and survivors of a loss take them over in a new membership.
    `restarts_by_launcher`: its own launcher starts lost ranks again, all of them, as another attempt.
    `has_planned_steps`: it takes as many steps as planned, numbered from 1 without a gap.
    `is_user_script`: the ranks run a script of the user's, of which only that is known which its agents observe.
    `keeps_own_checkpoints`: it saves and loads checkpoints itself, in files of whatever form.
    `has_baseline_beside`: a fault-free baseline can run at the same time, in what the job leaves of the machine.
    """

    has_layout: bool
    restarts_by_launcher: bool
    has_planned_steps: bool
    is_user_script: bool
    keeps_own_checkpoints: bool
    has_baseline_beside: bool

    def to_dict(self) -> dict[str, bool]:
        """As plain JSON values."""
        return asdict(self)


OF_RUNTIME = JobTraits(
    has_layout=True,
    restarts_by_launcher=False,
    has_planned_steps=True,
    is_user_script=False,
    keeps_own_checkpoints=False,
    has_baseline_beside=True,
)
OF_COMMAND = JobTraits(
    has_layout=False,
    restarts_by_launcher=True,
    has_planned_steps=False,
    is_user_script=True,
    keeps_own_checkpoints=True,
    has_baseline_beside=False,
)
_OF_RUNTIMES = {"mecefo": OF_RUNTIME, "command": OF_COMMAND}


def traits_of(runtime: object, recorded: Mapping[str, object] | None = None) -> JobTraits:
    """The traits of a job by the name of its `runtime`, and by what its log has `recorded` of them.

    A log of an earlier version has recorded none.
    """
    known = _OF_RUNTIMES.get(str(runtime), OF_RUNTIME)
    if not recorded:
        return known
    return JobTraits(**{one.name: bool(recorded.get(one.name, getattr(known, one.name))) for one in fields(JobTraits)})
