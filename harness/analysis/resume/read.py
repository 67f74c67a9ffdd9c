"""What is known of a job's restarts as one value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.analysis.contained import charge
from harness.analysis.figures import Figures
from harness.analysis.resume.differences import Compared, Difference
from harness.analysis.resume.observed import observe
from harness.analysis.resume.resumes import MIN_STEPS_OF_PAIR, Resume, read_resumes
from harness.analysis.resume.samples import Samples, count_samples
from harness.analysis.steps import CommittedStep
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


def read_own_job(steps: Sequence[CommittedStep], baseline: Sequence[CommittedStep]) -> ResumeFigures:
    """Compare the steps that the built-in job committed again after it had returned to a saved state.

    `steps` are all of them by time, `baseline` those of its fault-free baseline. Its batches are told by their
    checksums; its losses are judged where those of the baseline, which computes the same, are equal before.
    """
    passes: dict[int, list[CommittedStep]] = {}
    for step in steps:
        charge()
        passes.setdefault(step.step, []).append(step)
    theirs = {one.step: one.loss for one in baseline}
    single = [some[0] for some in passes.values() if len(some) == 1 and some[0].step in theirs]
    is_exact = len(single) >= MIN_STEPS_OF_PAIR and all(one.loss == theirs[one.step] for one in single)
    compared, epochs = Compared(), set()
    for number, some in passes.items():
        if len(some) < 2:
            continue
        first, last = some[0], some[-1]
        epochs.add(last.epoch)
        compared.steps.add(number)
        if first.samples_checksum is not None and last.samples_checksum is not None:
            is_same = first.samples_checksum == last.samples_checksum
            compared.saw("batches", None if is_same else Difference("batches", number, ()))
        if first.learning_rate is not None and last.learning_rate is not None:
            old, new = (first.learning_rate,), (last.learning_rate,)
            compared.saw("rates", None if old == new else Difference("rates", number, (), before=old, after=new))
        if first.loss is not None and last.loss is not None:
            differs = Difference("loss", number, (), is_judged=is_exact, before=first.loss, after=last.loss)
            compared.saw("loss", None if first.loss == last.loss else differs)
    resumes = []
    if compared.steps:
        resumes = [
            Resume(
                max(epochs),
                min(compared.steps) - 1,
                aligned_by="step",
                steps=len(compared.steps),
                kinds=tuple(sorted(compared.kinds)),
                differences=compared.differences(),
            )
        ]
    return _figures(resumes, Samples(unknown=Reason("counted_as_samples_lost")))


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
    samples = count_samples(own, attempts, resumes) if len(attempts) > 1 else Samples(unknown=Reason("no_restart"))
    return _figures(resumes, samples)


def _figures(resumes: Sequence[Resume], samples: Samples) -> ResumeFigures:
    # A restart that was compared with nothing may have changed anything: then there is no figure without a difference.
    restarts = [one for one in resumes if one.against == "before"] or resumes
    is_whole = bool(restarts) and not any(one.is_open for one in restarts)
    judged = [difference for one in resumes for difference in one.judged]
    return ResumeFigures(
        resume_differs=len({one.kind for one in judged}) if judged or is_whole else None,
        first_differing_step=min((one.step for one in judged), default=None),
        samples_repeated=samples.repeated,
        samples_missed=samples.missed,
        samples_size=samples.size,
        samples_unknown=samples.unknown or samples.why_not_missed,
        resumes=tuple(resumes),
    )
