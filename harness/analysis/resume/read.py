"""What is known of a job's restarts as one value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.analysis.figures import Figures
from harness.analysis.resume.observed import observe
from harness.analysis.resume.resumes import Resume, read_resumes
from harness.analysis.resume.samples import Samples, count_samples
from mecefo_runtime.system.job_records import CheckpointWritten
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record


@dataclass(frozen=True, kw_only=True)
class ResumeFigures(Figures):
    """Whether the training is the same after its restarts; None: nothing was compared.

    `resume_differs` is the number of kinds of differences that make another training. `samples_size` is the number of
    samples of an epoch.
    """

    resume_differs: int | None
    first_differing_step: int | None
    samples_repeated: int | None
    samples_missed: int | None
    samples_size: int | None
    samples_unknown: Reason | None
    resumes: tuple[Resume, ...] = ()


def read_resume_figures(
    main: Sequence[Record],
    baseline: Sequence[Record],
    saved: Iterable[CheckpointWritten],
    *,
    first_fault_seconds: float | None,
    are_steps_counted: bool,
) -> ResumeFigures:
    """Of a command. `main` and `baseline` are the records of the two jobs by time, `saved` the main job's saves."""
    own, twin = observe(main, saved), observe(baseline)
    attempts = own.attempts
    resumes = read_resumes(own, attempts, twin if are_steps_counted else None, first_fault_seconds)
    compared = [one for one in resumes if one.kinds]
    judged = [difference for one in resumes for difference in one.judged]
    samples = count_samples(own, attempts, resumes) if len(attempts) > 1 else Samples(unknown=Reason("no_restart"))
    return ResumeFigures(
        resume_differs=len({one.kind for one in judged}) if compared else None,
        first_differing_step=min((one.step for one in judged), default=None),
        samples_repeated=samples.repeated,
        samples_missed=samples.missed,
        samples_size=samples.size,
        samples_unknown=samples.unknown or samples.why_not_missed,
        resumes=resumes,
    )
