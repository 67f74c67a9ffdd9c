"""What is said of restarts: a sentence for each difference, and no gate that passes on what was not compared."""

from dataclasses import replace

import pytest

from harness.analysis.resume.differences import OF_STATE, Difference
from harness.analysis.resume.resumes import Resume
from harness.judging.facts import training_differs
from harness.judging.gates import evaluate_all
from harness.judging.resume_words import NOT_COMPARED, resume_lines, resume_title, samples_line
from harness.judging.verdict import _other_trainings
from harness.judging.verdict_reasons import verdict_text
from mecefo_runtime.system.json_values import from_json, to_json
from mecefo_runtime.system.reason import Reason, reason_of
from tests.harness.summaries import summary

pytestmark = pytest.mark.unit

FOUND = (
    Difference("batches", 31, (0, 1)),
    Difference("batches", 31, (0,), same_as_step=1),
    Difference("batch_size", 31, (0,), before=(8, 8), after=(8,)),
    Difference("content", 31, (0,), is_judged=False),
    Difference("content", 31, (0,), is_judged=False, after="same_samples"),
    Difference("rates", 32, (0, 1), before=(0.0074, 0.1), after=(0.001, 0.1)),
    Difference("groups", 31, (1,)),
    Difference("random", 31, (0, 1), after=("torch",)),
    Difference("random", 31, (0, 1), is_judged=False, after=("python", "numpy")),
    Difference("loss", 31, (0,), is_judged=False, before=0.4, after=0.67829),
    Difference("parameters", 32, (0,), is_judged=False),
    Difference("parameters", 31, (0,), "load", before=True, after=True),
    Difference("buffers", 31, (0,), "load", before=True, after=True),
    Difference("optimizer", 31, (0,), "load", before=True, after=False),
    Difference("optimizer", 31, (0,), "load", before=True, after=True),
    Difference("optimizer_steps", 31, (0,), "load", before=30, after=None),
    Difference("scaler", 31, (0,), "load", before="[1]", after="[2]"),
)


def resume(*differences, **changes):
    kinds = tuple({one.kind for one in differences} | {"rates"})
    return Resume(
        2, 30, **{"aligned_by": "parameters", "steps": 4, "kinds": kinds, "differences": differences, **changes}
    )


def of(*resumes, **changes):
    judged = [one for some in resumes for one in some.judged]
    figures = {
        "resume_differs": len({one.kind for one in judged}) if resumes else None,
        "first_differing_step": None,
        "samples_repeated": None,
        "samples_missed": None,
        "samples_size": None,
        "samples_unknown": Reason("no_sampler"),
        **changes,
    }
    return replace(summary(), resumes=resumes, **figures)


def test_each_difference_has_its_words(snapshot):
    told = of(resume(*FOUND), samples_repeated=240, samples_missed=240, samples_size=960)
    lines = [verdict_text(training_differs(told, resume(one))) for one in FOUND]
    others = [
        Resume(2, unknown=Reason("not_aligned")),
        Resume(3, 10, aligned_by="checkpoint", kinds=OF_STATE),
        resume(FOUND[0], against="baseline", unobserved=(Reason("world_size_changed"),)),
        resume(FOUND[3], FOUND[8]),
        resume(FOUND[9], aligned_by="step"),
    ]
    for one in others:
        lines += ["", resume_title(one), *resume_lines(one, told)]
    lines += ["", samples_line(told), samples_line(of())]
    snapshot.check("resumes.txt", "\n".join(lines) + "\n")


def test_every_reason_has_words():
    for code in NOT_COMPARED:
        words = resume_title(Resume(2, unknown=Reason(code)))
        assert code not in words and NOT_COMPARED[code] in words


def test_a_reason_is_read_back_with_its_words():
    reason = training_differs(of(resume(*FOUND)), resume(*FOUND))
    assert verdict_text(reason_of(to_json(reason))) == verdict_text(reason)
    assert from_json(Resume, to_json(resume(FOUND[0]))).attempt == 2


def test_what_the_baseline_shows_again_is_named_once():
    own, again = resume(FOUND[0], FOUND[5]), resume(FOUND[0], against="baseline")
    more = resume(FOUND[6], against="baseline")
    assert [reason.fields["attempt"] for _, reason in _other_trainings("pass", of(own, again))] == [2]
    named = [reason.fields.get("against") for _, reason in _other_trainings("pass", of(own, more))]
    assert named == [None, "baseline"]
    assert not list(_other_trainings("pass", of(resume(FOUND[3]))))


@pytest.mark.parametrize(
    ("told", "passed", "because"),
    [
        (of(), None, "no_restart"),
        (of(resume()), True, None),
        (of(resume(FOUND[0])), False, None),
        (of(Resume(2, unknown=Reason("not_aligned")), resume_differs=None), None, "not_aligned"),
        (of(Resume(2), resume_differs=None), None, "nothing_compared"),
    ],
)
def test_a_gate_on_what_was_not_compared_is_undecided(told, passed, because):
    gate, *_ = evaluate_all(["resume_differs == 0"], told)
    assert gate.passed is passed
    assert because is None or gate.why.fields["because"] == because


def test_a_gate_on_samples_says_why_they_were_not_counted():
    gate, *_ = evaluate_all(["samples_repeated == 0"], of(resume()))
    assert (gate.passed, gate.why.fields["because"]) == (None, "no_sampler")
    gate, *_ = evaluate_all(["first_differing_step >= 50"], of(resume()))
    assert (gate.passed, gate.why.fields["because"]) == (None, "no_difference")
