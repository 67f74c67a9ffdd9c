"""The verdict of a set of runs: of repetitions, of a comparison, and against a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar, cast

from harness.comparison.change import Change, compare, exit_code, is_of_single_runs
from harness.comparison.rounds import REFUSED
from harness.comparison.same_experiment import other_experiment
from harness.comparison.sample import Run, RunSet, Sample, overlapped_words
from harness.comparison.set_reasons import NO_GATE, median_gate_text, set_text
from harness.judging.gates import OPERATORS, Gate, GateError
from harness.judging.summary import GateResult
from harness.judging.verdict import EXIT_CODES, GATE_FAILED, GATE_UNDECIDED, WORST_FIRST, Outcome
from mecefo_runtime.system.json_values import FLAT
from mecefo_runtime.system.reason import Reason


@dataclass(frozen=True, slots=True)
class MedianGate:
    """A gate on the median over runs; `passed` is None where a run has no answer, `why` says how it came to that."""

    ALSO_WRITTEN: ClassVar[Mapping[str, str]] = {"reason": "reason"}

    expression: str
    value: float | None
    passed: bool | None
    why: Reason

    @property
    def reason(self) -> str:
        """In words."""
        return median_gate_text(self.expression, self.why)


@dataclass(frozen=True, slots=True)
class SetVerdict:
    """`reason_codes` are one for each thing that speaks against it."""

    ALSO_WRITTEN: ClassVar[Mapping[str, str]] = {"reasons": "reasons"}

    verdict: str
    exit_code: int
    reason_codes: tuple[Reason, ...]
    gates: tuple[MedianGate, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Their sentences."""
        return tuple(map(set_text, self.reason_codes))


@dataclass(frozen=True, slots=True)
class SampleChanges:
    """The figures of the sample `label` beside those of its reference."""

    label: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Against:
    """Samples beside those of a reference, sample by sample, and the verdict over all of them."""

    samples: tuple[SampleChanges, ...]
    verdict: SetVerdict = field(metadata=FLAT)
    notes: tuple[str, ...] = ()


def worst(codes: Sequence[int]) -> int:
    """The exit code of several: the one whose verdict outranks the others; see `verdict.WORST_FIRST`."""
    ranks = {EXIT_CODES[outcome]: rank for rank, outcome in enumerate(WORST_FIRST)}
    return min(codes, key=lambda code: ranks.get(code, -1), default=0)


def judge_repetition(found: RunSet) -> SetVerdict:
    """Of the same experiment, again and again: the gates hold for the median, all else must be well in every run."""
    (sample,) = found.samples
    outcomes: list[tuple[Outcome, Reason]] = []
    for run in sample.runs:
        if (outcome := outcome_against(found, run)) is not None:
            outcomes.append((outcome, Reason("run", run=run.round, why=why_against(run))))
    gates = _median_gates(sample)
    for gate in gates:
        if gate.passed is not True:
            outcome, code = ("fail", GATE_FAILED) if gate.passed is False else ("inconclusive", GATE_UNDECIDED)
            outcomes.append((outcome, Reason(code, gate=gate.expression, why=gate.why)))
    if found.status == "partial":
        outcomes.append(("halted", Reason("runs_missing", started=len(sample.runs), runs=found.num_rounds)))
    return _verdict(outcomes, Reason("median_passed", runs=len(sample.runs)), gates)


def judge_comparison(found: RunSet) -> SetVerdict:
    """Of strategies beside each other: whether there is an answer for each of them, not which it is."""
    outcomes: list[tuple[Outcome, Reason]] = []
    for sample in found.samples:
        for run in sample.runs:
            if (outcome := outcome_against(found, run)) is not None:
                # A refusal is that of every round.
                number = None if run.verdict == REFUSED else run.round
                why = why_against(run)
                outcomes.append((outcome, Reason("strategy_run", strategy=sample.label, run=number, why=why)))
    if found.status == "partial":
        broke_down = any(run.error and run.verdict != REFUSED for sample in found.samples for run in sample.runs)
        done = runs_done(found)
        code = "rounds_ended_early" if broke_down else "rounds_interrupted"
        outcomes.append(("halted", Reason(code, rounds=found.num_rounds, strategies=done)))
    return _verdict(_once(outcomes), Reason("all_ran"), ())


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


def runs_done(found: RunSet) -> list[tuple[str, int]]:
    """Each strategy, and how many of its runs are done."""
    return [(sample.label, sum(run.is_done for run in sample.runs)) for sample in found.samples]


def judge_against(
    samples: Sequence[Sample],
    reference: Sequence[Sample],
    deciding: Sequence[str],
    tolerance_ratio: float,
    *,
    anyway: bool = False,
) -> Against:
    """Beside a reference: worse fails. Of other experiments nothing is told, unless `anyway`."""
    pairs = _pairs(samples, reference)
    if not pairs:
        ours, theirs = ([sample.label for sample in side] for side in (samples, reference))
        reason = Reason("nothing_in_common", here=ours, reference=theirs)
        return Against((), _verdict([("inconclusive", reason)], reason, ()))
    outcomes: list[tuple[Outcome, Reason]] = []
    notes: list[str] = []
    judged: list[SampleChanges] = []
    for now, base in pairs:
        if other := other_experiment(now, base):
            if not anyway:
                outcomes.append(("inconclusive", Reason("other_experiment", difference=other)))
                continue
            notes.append(other)
        if now.machine and base.machine and now.machine != base.machine:
            notes.append(f"another machine: {_machine(now)}, not {_machine(base)}")
        sides = (overlapped_words(now, "here"), overlapped_words(base, "in the reference"))
        notes += [words.rstrip(".") for words in sides if words is not None]
        changes = tuple(compare(now, base, deciding, tolerance_ratio))
        judged.append(SampleChanges(now.label, changes))
        strategy = now.label if len(pairs) > 1 else None
        outcomes += [("fail", _worse(change, strategy)) for change in changes if _is(change, "worse")]
        suspect = [change.figure.name for change in changes if change.is_deciding and change.may_be_worse]
        single = _of_single_runs(changes, suspect) if is_of_single_runs(changes) else None
        why_open = _why_open(now, base, changes, suspect, single)
        if exit_code(changes) == EXIT_CODES["inconclusive"]:
            outcomes.append(("inconclusive", Reason("not_decided", strategy=strategy, why=why_open)))
        if single is not None and (why_open != single or exit_code(changes) != EXIT_CODES["inconclusive"]):
            notes.append(set_text(Reason("not_decided", strategy=strategy, why=single)))
    return Against(tuple(judged), _verdict(outcomes, Reason("not_worse"), ()), tuple(dict.fromkeys(notes)))


def _why_open(now: Sample, base: Sample, changes: Sequence[Change], suspect: Sequence[str], single: str | None) -> str:
    """Why no deciding figure gives an answer, the most general reason alone."""
    if useless := [*_without_figures(now, "here"), *_without_figures(base, "in the reference")]:
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


def _worse(change: Change, strategy: str | None) -> Reason:
    figure = change.figure
    return Reason(
        "got_worse",
        strategy=strategy,
        figure=figure.name,
        now=figure.to_text(change.now),
        base=figure.to_text(change.base),
        noise=figure.to_text(change.band),
    )


def _pairs(samples: Sequence[Sample], reference: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    if len(samples) == len(reference) == 1:
        return [(samples[0], reference[0])]
    by_label = {sample.label: sample for sample in reference}
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
        why = unknown.why or (None if unknown.reason is None else Reason("no_value", sentence=unknown.reason))
        return MedianGate(expression, None, None, Reason("undecided_in_runs", why=why))
    value = float(median(values))
    try:
        gate = Gate.parse(expression)
    except GateError as error:
        return MedianGate(expression, value, None, Reason(NO_GATE, sentence=str(error)))
    passed = OPERATORS[gate.comparison](value, gate.threshold)
    return MedianGate(expression, value, passed, Reason("median", value=value, values=values, passed=passed))


def known_outcome(verdict: str) -> Outcome:
    """`verdict`, or `error` where it is none of a run."""
    return cast(Outcome, verdict) if verdict in EXIT_CODES else "error"


def _once(outcomes: Sequence[tuple[Outcome, Reason]]) -> list[tuple[Outcome, Reason]]:
    return list(dict.fromkeys(outcomes))


def _verdict(outcomes: Sequence[tuple[Outcome, Reason]], fine: Reason, gates: tuple[MedianGate, ...]) -> SetVerdict:
    ordered = sorted(outcomes, key=lambda outcome: WORST_FIRST.index(outcome[0])) or [("pass", fine)]
    verdict = ordered[0][0]
    once: dict[str, Reason] = {}
    for outcome, reason in ordered:
        once.setdefault(set_text(reason), reason.with_fields(verdict=outcome))
    return SetVerdict(verdict, EXIT_CODES[verdict], tuple(once.values()), gates)
