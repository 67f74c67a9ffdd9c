"""Words for what a restart has changed of a training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.analysis.resume.differences import Difference
from harness.analysis.resume.read import ResumeFigures
from harness.analysis.resume.resumes import Resume
from harness.analysis.words import count, name_ranks

NOT_COMPARED: Mapping[str, str] = {
    "no_restart": "the job was not restarted",
    "not_entered": "no rank reported the parameters with which it began",
    "ranks_apart": "its ranks continued from different steps",
    "not_aligned": "neither its parameters nor the checkpoint that it loaded show after which step it continued",
    "nothing_compared": "no step was taken twice, and no saved state was seen being loaded",
    "undisturbed_differ": "they differed from the baseline before the fault already (no fixed seed)",
    "no_common_steps": "no step after the fault was seen in both",
    "no_steps_seen": "no step was seen",
    "no_difference": "nothing that was compared differs",
    "no_sampler": "no loader with a sampler was seen",
    "several_samplers": "the sampler, or the length of its epochs, changed",
    "with_replacement": "the sampler may draw a sample several times",
    "sampler_not_known": "it is not known what an epoch of the sampler is",
    "epochs_of_other_length": "the epochs of the script are not those of its sampler",
    "repeats_by_itself": "samples repeat before the first restart already",
    "content_may_change": "the indices of samples were not seen, and their content may change (augmentation)",
    "steps_not_seen": "not every step was looked at",
    "batches_not_seen": "not every batch was seen",
    "world_size_changed": "the number of ranks changed",
    "epoch_not_complete": "no epoch was completed",
    "counted_as_samples_lost": "the built-in job counts them in samples_lost",
}
"""Why something was not compared, by code."""
_GENERATORS = {"python": "Python's", "numpy": "NumPy's", "torch": "torch's", "device": "the device's"}


def difference_words(one: Difference, against: str, samples: ResumeFigures | None = None) -> str:
    """A difference from what it was compared with, without a full stop; `samples` are those of the run."""
    return _with_samples(one, "" if samples is None else sample_words(samples), against)


def sample_words(figures: ResumeFigures) -> str:
    """How many samples were used twice or never; empty where that is not known."""
    if figures.samples_repeated is None:
        return ""
    return _sample_words(figures.samples_repeated, figures.samples_size, figures.samples_missed)


def _sample_words(repeated: int, size: int | None = None, missed: int | None = None) -> str:
    of = f" of {size:,}" if size else ""
    never = "" if missed is None else f", {missed:,} never"
    return f"{repeated:,}{of} used twice{never}"


def _batches(one: Difference) -> str:
    again = "" if one.same_as_step is None else f" (those of step {one.same_as_step} again)"
    return f"from step {one.step} on other samples than {{than}}{again}"


def _batch_size(one: Difference) -> str:
    return f"batches of {_listed(one.after)} rows instead of {_listed(one.before)} at step {one.step}"


def _content(one: Difference) -> str:
    if one.after == "same_samples":
        return f"from step {one.step} on the same samples with other content (augmentation, for example)"
    return f"from step {one.step} on batches with other content: other samples, or the same ones augmented anew"


def _rates(one: Difference) -> str:
    after, before = _numbers(one.after, one.before), _numbers(one.before, one.after)
    return f"learning rate {after} instead of {before} at step {one.step}"


def _random(one: Difference) -> str:
    *first, last = [_GENERATORS.get(str(name), str(name)) for name in one.after or ()] or ["a"]
    names = f"{', '.join(first)} and {last}" if first else last
    if not one.is_judged:
        return f"{names} random state, from which no step is known to draw"
    return f"{names} random state was not restored: from step {one.step} on other dropout masks, or other draws"


def _loss(one: Difference) -> str:
    return f"loss {one.after:.6g} instead of {one.before:.6g} at step {one.step}"


def _parameters(one: Difference) -> str:
    if one.moment == "load":
        return "the parameters are not those that were saved"
    return f"parameters differ after step {one.step}"


def _optimizer(one: Difference) -> str:
    return (
        "the optimizer's moments are not those that were saved"
        if one.after
        else "the optimizer's moments were not restored"
    )


_WORDS: Mapping[str, Any] = {
    "batches": _batches,
    "batch_size": _batch_size,
    "content": _content,
    "rates": _rates,
    "groups": lambda one: f"other settings of the parameter groups (weight decay, betas, ...) at step {one.step}",
    "random": _random,
    "loss": _loss,
    "parameters": _parameters,
    "buffers": lambda one: "the model's buffers (batch norm statistics, for example) are not those that were saved",
    "optimizer": _optimizer,
    "optimizer_steps": lambda one: f"the optimizer's count of steps is {one.after or 0} instead of {one.before or 0}",
    "scaler": lambda one: "the GradScaler's scale was not restored",
}


def training_differs_words(
    attempt: int,
    differences: Sequence[Mapping[str, Any]],
    against: str = "before",
    samples: Mapping[str, Any] | None = None,
) -> str:
    """The reason that a restart has made another training of it."""
    used = "" if samples is None else _sample_words(**samples)
    found = [Difference(**{**one, "ranks": tuple(one["ranks"])}) for one in differences]
    words = [_with_samples(one, used, against) for one in found]
    since = "than the fault-free baseline" if against == "baseline" else f"since the restart (attempt {attempt})"
    return f"it is another training {since}: {'; '.join(words)}"


def _with_samples(one: Difference, used: str, against: str) -> str:
    words: str = _WORDS[one.kind](one)
    if one.kind == "batches":
        words = words.format(than="before the restart" if against == "before" else "in the baseline")
    return f"{words}: {used}" if one.kind == "batches" and used else words


def resume_title(one: Resume) -> str:
    """What was compared with what."""
    if one.against == "baseline":
        return f"Against the fault-free baseline: {count(one.steps, 'step')} after the fault compared"
    if one.aligned_by is None:
        return f"Attempt {one.attempt}: nothing compared, because {because(one)}"
    how = "as its parameters show" if one.aligned_by == "parameters" else "by the checkpoint that it loaded"
    repeated = f"{count(one.steps, 'step')} taken twice and compared" if one.steps else "no step was taken twice"
    if one.aligned_by == "step":
        return f"The built-in job returned to its state after step {one.resumed_after}: {repeated}"
    return f"Attempt {one.attempt} continued after step {one.resumed_after}, {how}: {repeated}"


def because(one: Resume) -> str:
    """Why a restart was not compared."""
    code = "nothing_compared" if one.unknown is None else one.unknown.code
    return NOT_COMPARED.get(code, code)


def samples_line(figures: ResumeFigures) -> str:
    """Whether samples were used twice or never, or why that is not known, with a full stop."""
    if words := sample_words(figures):
        return f"Samples: {words}."
    code = "" if figures.samples_unknown is None else figures.samples_unknown.code
    return f"Samples were not counted: {NOT_COMPARED.get(code, code)}."


def resume_lines(one: Resume, samples: ResumeFigures) -> list[str]:
    """Sentences on one comparison: judged differences first, then those that are only shown."""
    own = samples if one.against == "before" else None
    found = [
        f"{_capital(difference_words(difference, one.against, own))}{_whose(difference, one)}."
        for difference in one.judged
    ]
    if equal := compared_words(one):
        found.append(f"Equal: {equal}.")
    hidden = [_NAMES[kind] for kind in _OF_STEPS if kind not in one.kinds] if one.steps and own is not None else []
    if hidden and one.aligned_by != "step":
        found.append(f"Not observed: {', '.join(hidden)}.")
    shown = [difference_words(difference, one.against) for difference in one.differences if not difference.is_judged]
    if shown:
        found.append(f"Not judged: {'; '.join(shown)}.")
    found += [f"Not compared: {NOT_COMPARED.get(reason.code, reason.code)}." for reason in one.unobserved]
    return found


def compared_words(one: Resume) -> str:
    """What was compared and is equal."""
    differing = {difference.kind for difference in one.differences}
    return ", ".join(_NAMES[kind] for kind in _NAMES if kind in one.kinds and kind not in differing)


_NAMES: Mapping[str, str] = {
    "batches": "batches",
    "rates": "learning rates",
    "groups": "settings of parameter groups",
    "random": "random states",
    "parameters": "parameters",
    "buffers": "buffers",
    "optimizer": "optimizer's moments",
    "optimizer_steps": "optimizer's count",
    "scaler": "GradScaler",
    "loss": "losses",
}


_OF_STEPS = ("batches", "rates", "random")
"""Kinds that a step of every script has."""


def _whose(difference: Difference, one: Resume) -> str:
    return f" ({name_ranks(difference.ranks)})" if difference.ranks else ""


def _listed(values: Any) -> str:
    return " + ".join(map(str, values)) if isinstance(values, Iterable) and not isinstance(values, str) else str(values)


def _numbers(values: Any, others: Any) -> str:
    """The learning rates of the groups that differ."""
    if not isinstance(values, Sequence) or not isinstance(others, Sequence):
        return str(values)
    pairs = zip(values, others, strict=False) if len(values) == len(others) else ((one, None) for one in values)
    return ", ".join(dict.fromkeys(f"{one:.4g}" for one, other in pairs if one != other))


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
