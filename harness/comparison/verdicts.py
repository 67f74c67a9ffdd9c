"""The verdict of a set of runs: of repetitions, of a comparison, and against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

from harness.analysis.words import count
from harness.comparison.change import Change, compare, exit_code, is_of_single_runs
from harness.comparison.rounds import REFUSED
from harness.comparison.same_experiment import other_experiment
from harness.comparison.sample import Run, RunSet, Sample, overlapped_words
from harness.judging.gates import OPERATORS, Gate, GateError
from harness.judging.summary import GateResult
from harness.judging.verdict import EXIT_CODES, WORST_FIRST, Outcome


@dataclass(frozen=True, slots=True)
class MedianGate:
    """A gate on the median over runs; `passed` is None where a run has no answer."""

    expression: str
    value: float | None
    passed: bool | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"expression": self.expression, "value": self.value, "passed": self.passed, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class SetVerdict:
    """`reasons` are sentences, one for each thing that speaks against it."""

    verdict: str
    exit_code: int
    reasons: tuple[str, ...]
    gates: tuple[MedianGate, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "reasons": list(self.reasons),
            "gates": [gate.to_dict() for gate in self.gates],
        }


@dataclass(frozen=True, slots=True)
class Against:
    """Samples beside those of a baseline, pair by pair, and what that comes to."""

    pairs: tuple[tuple[str, tuple[Change, ...]], ...]
    verdict: SetVerdict
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            **self.verdict.to_dict(),
            "notes": list(self.notes),
            "samples": [
                {"label": label, "changes": [change.to_dict() for change in changes]} for label, changes in self.pairs
            ],
        }


def worst(codes: Sequence[int]) -> int:
    """The exit code of several: the one whose verdict outranks the others; see `verdict.WORST_FIRST`."""
    ranks = {EXIT_CODES[outcome]: rank for rank, outcome in enumerate(WORST_FIRST)}
    return min(codes, key=lambda code: ranks.get(code, -1), default=0)


def judge_repetition(found: RunSet) -> SetVerdict:
    """Of the same experiment, again and again: the gates hold for the median, all else must be well in every run."""
    (sample,) = found.samples
    outcomes: list[tuple[Outcome, str]] = []
    for run in sample.runs:
        if (outcome := outcome_against(found, run)) is not None:
            outcomes.append((outcome, f"run {run.round}: {why_against(run)}"))
    gates = _median_gates(sample)
    for gate in gates:
        if gate.passed is not True:
            outcomes.append(("fail" if gate.passed is False else "inconclusive", gate.reason))
    if found.status == "partial":
        outcomes.append(("halted", f"interrupted: {len(sample.runs)} of {found.num_rounds} runs were started"))
    return _verdict(outcomes, f"all {len(sample.runs)} runs completed, and every gate passed for the median", gates)


def judge_comparison(found: RunSet) -> SetVerdict:
    """Of strategies beside each other: whether there is an answer for each of them, not which it is."""
    outcomes: list[tuple[Outcome, str]] = []
    for sample in found.samples:
        for run in sample.runs:
            if (outcome := outcome_against(found, run)) is not None:
                # A refusal is that of every round.
                where = "" if run.verdict == REFUSED else f", round {run.round}"
                outcomes.append((outcome, f"{sample.label}{where}: {why_against(run)}"))
    if found.status == "partial":
        broke_down = any(run.error and run.verdict != REFUSED for sample in found.samples for run in sample.runs)
        outcomes.append(("halted", f"{'ended early' if broke_down else 'interrupted'}: {what_ran(found)}"))
    return _verdict(_once(outcomes), "every strategy ran in every round", ())


def outcome_against(found: RunSet, run: Run) -> Outcome | None:
    """The outcome of a run that the verdict of its set names, with its reason; None of a run that is well.

    In a repetition the median decides the gates. In a comparison a failed run is an answer, too.
    """
    if found.kind == "comparison":
        outcome = "inconclusive" if run.verdict == REFUSED else known_outcome(run.verdict)
        return None if outcome in ("pass", "fail") else outcome
    is_judged = run.error is None and run.verdict_but_gates is not None
    outcome = known_outcome(str(run.verdict_but_gates) if is_judged else run.verdict)
    return outcome if run.error is not None or outcome != "pass" else None


def why_against(run: Run) -> str:
    """Why there is no run, or the first reason of its verdict."""
    return run.error or (run.reasons[0] if run.reasons else run.verdict)


def what_ran(found: RunSet) -> str:
    """How many rounds of each strategy are done: `of 3 rounds, exact ran 2, ndb ran none`."""
    done = (f"{sample.label} ran {sum(run.is_done for run in sample.runs) or 'none'}" for sample in found.samples)
    return f"of {count(found.num_rounds, 'round')}, {', '.join(done)}"


def judge_against(
    samples: Sequence[Sample],
    baseline: Sequence[Sample],
    deciding: Sequence[str],
    tolerance_ratio: float,
    *,
    anyway: bool = False,
) -> Against:
    """Beside a baseline: worse fails. Of other experiments nothing is told, unless `anyway`."""
    pairs = _pairs(samples, baseline)
    if not pairs:
        ours, theirs = (", ".join(sample.label for sample in side) for side in (samples, baseline))
        reason = f"they have nothing in common: {ours} here, {theirs} in the baseline"
        return Against((), _verdict([("inconclusive", reason)], "", ()))
    outcomes: list[tuple[Outcome, str]] = []
    notes: list[str] = []
    judged: list[tuple[str, tuple[Change, ...]]] = []
    for now, base in pairs:
        if other := other_experiment(now, base):
            if not anyway:
                outcomes.append(("inconclusive", f"{other}; --anyway compares them anyway"))
                continue
            notes.append(other)
        if now.machine and base.machine and now.machine != base.machine:
            notes.append(f"another machine: {_machine(now)}, not {_machine(base)}")
        sides = (overlapped_words(now, "here"), overlapped_words(base, "in the baseline"))
        notes += [words.rstrip(".") for words in sides if words is not None]
        changes = tuple(compare(now, base, deciding, tolerance_ratio))
        judged.append((now.label, changes))
        name = f"{now.label}: " if len(pairs) > 1 else ""
        outcomes += [("fail", f"{name}{_worse(change)}") for change in changes if _is(change, "worse")]
        suspect = [change.figure.name for change in changes if change.is_deciding and change.may_be_worse]
        single = _of_single_runs(changes, suspect) if is_of_single_runs(changes) else None
        why_open = _why_open(now, base, changes, suspect, single)
        if exit_code(changes) == EXIT_CODES["inconclusive"]:
            outcomes.append(("inconclusive", f"{name}{why_open}"))
        if single is not None and (why_open != single or exit_code(changes) != EXIT_CODES["inconclusive"]):
            notes.append(f"{name}{single}")
    fine = "no decisive figure got worse by more than the noise and the tolerance"
    return Against(tuple(judged), _verdict(outcomes, fine, ()), tuple(dict.fromkeys(notes)))


def _why_open(now: Sample, base: Sample, changes: Sequence[Change], suspect: Sequence[str], single: str | None) -> str:
    """Why no deciding figure gives an answer, the most general reason alone."""
    if useless := [*_without_figures(now, "here"), *_without_figures(base, "in the baseline")]:
        return "; ".join(useless)
    if gone := [change.figure.name for change in changes if _is(change, "no data") and change.base is not None]:
        return f"no longer known: {', '.join(gone)}"
    if single is not None and any(_is(change, "cannot tell") for change in changes):
        return single
    if suspect:
        return f"worse, or chance? {', '.join(suspect)}: too few runs to tell; --repeat 3 on both sides does"
    return "no decisive figure is available"


def _of_single_runs(changes: Sequence[Change], suspect: Sequence[str]) -> str:
    """What one run on each side shows: one sentence for all figures."""
    is_any_clear = any(change.word in ("better", "worse") for change in changes)
    what = "only differences marked better or worse can" if is_any_clear else "no differences can"
    perhaps = f". Perhaps worse: {', '.join(suspect)}" if suspect else ""
    return f"one run on each side: {what} be told from chance; --repeat 3 on both sides{perhaps}"


def _without_figures(sample: Sample, where: str) -> list[str]:
    """That no run of `sample` has figures that count, and what became of them; nothing where one has."""
    verdicts = ", ".join(dict.fromkeys(run.verdict for run in sample.runs))
    return [] if sample.usable else [f"no run {where} has figures that count: {verdicts or 'there is none'}"]


def _is(change: Change, word: str) -> bool:
    return change.is_deciding and change.word == word


def _worse(change: Change) -> str:
    figure = change.figure
    return (
        f"{figure.name} got worse: {figure.to_text(change.now)}, in the baseline {figure.to_text(change.base)} "
        f"(noise {figure.to_text(change.band)})"
    )


def _pairs(samples: Sequence[Sample], baseline: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    if len(samples) == len(baseline) == 1:
        return [(samples[0], baseline[0])]
    by_label = {sample.label: sample for sample in baseline}
    return [(sample, by_label[sample.label]) for sample in samples if sample.label in by_label]


def _machine(sample: Sample) -> str:
    return ", ".join(f"{key} {value}" for key, value in sample.machine.items())


def _median_gates(sample: Sample) -> tuple[MedianGate, ...]:
    answers: dict[str, list[GateResult]] = {}
    for run in sample.usable:
        for gate in run.gates:
            answers.setdefault(gate.expression, []).append(gate)
    return tuple(_median_gate(expression, of_runs) for expression, of_runs in answers.items())


def _median_gate(expression: str, answers: Sequence[GateResult]) -> MedianGate:
    values = [answer.value for answer in answers if answer.value is not None]
    unknown = next((answer for answer in answers if answer.value is None), None)
    if unknown is not None:
        return MedianGate(expression, None, None, f"gate '{expression}' is undecided in every run: {unknown.reason}")
    value = float(median(values))
    try:
        gate = Gate.parse(expression)
    except GateError as error:
        return MedianGate(expression, value, None, str(error))
    passed = OPERATORS[gate.comparison](value, gate.threshold)
    listed = ", ".join(f"{one:.6g}" for one in values)
    word = "holds for" if passed else "fails for"
    return MedianGate(expression, value, passed, f"gate '{expression}' {word} the median {value:.6g} of {listed}")


def known_outcome(verdict: str) -> Outcome:
    """`verdict`, or `error` where it is none of a run."""
    return cast(Outcome, verdict) if verdict in EXIT_CODES else "error"


def _once(outcomes: Sequence[tuple[Outcome, str]]) -> list[tuple[Outcome, str]]:
    return list(dict.fromkeys(outcomes))


def _verdict(outcomes: Sequence[tuple[Outcome, str]], fine: str, gates: tuple[MedianGate, ...]) -> SetVerdict:
    ordered = sorted(outcomes, key=lambda outcome: WORST_FIRST.index(outcome[0]))
    if not ordered:
        return SetVerdict("pass", EXIT_CODES["pass"], (fine,), gates)
    verdict = ordered[0][0]
    return SetVerdict(verdict, EXIT_CODES[verdict], tuple(dict.fromkeys(text for _, text in ordered)), gates)
