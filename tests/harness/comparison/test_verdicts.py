"""What a set of runs comes to."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.comparison.figures import DECIDING
from harness.comparison.rounds import REFUSED
from harness.comparison.same_experiment import differences
from harness.comparison.sample import NoSet, Run, RunSet
from harness.comparison.verdicts import judge_against, judge_comparison, judge_repetition, worst
from harness.judging.verdict import EXIT_CODES
from mecefo_runtime.system.json_values import to_json
from tests.harness.comparison.samples import EXPERIMENT, gate, run, run_set, sample

pytestmark = pytest.mark.unit

FAST = "recovery_seconds < 1"
SINGLE = (
    {"recovery_seconds": 2.0, "detection_seconds": 0.2, "steps_lost": 0.0},
    {"recovery_seconds": 1.0, "detection_seconds": 0.1, "steps_lost": 0.0},
)
NONE_CLEAR = "one run on each side: no differences can be told from chance; --repeat 3 on both sides"
SOME_CLEAR = (
    "one run on each side: only differences marked better or worse can be told from chance; --repeat 3 on both sides"
)


def repetition(*runs, status="complete"):
    return judge_repetition(run_set(replace(sample(0.0), runs=runs), kind="repetition", status=status))


def gated(*values):
    return [
        run("pass" if value < 1 else "fail", but_gates="pass", gates=[gate(FAST, value)], recovery_seconds=value)
        for value in values
    ]


class TestRepetition:
    def test_a_gate_holds_for_the_median_though_one_run_fails_it(self):
        verdict = repetition(*gated(0.4, 0.5, 3.0))
        assert (verdict.verdict, verdict.exit_code) == ("pass", 0)
        (answer,) = verdict.gates
        assert (answer.value, answer.passed) == (0.5, True)

    def test_a_gate_fails_for_the_median(self):
        verdict = repetition(*gated(0.4, 1.5, 3.0))
        assert verdict.exit_code == 1
        assert "fails for the median 1.5 of 0.4, 1.5, 3" in verdict.reasons[0]

    def test_a_gate_without_an_answer_in_one_run_never_passes(self):
        unknown = run("inconclusive", but_gates="pass", gates=[gate(FAST, None, "no incident")])
        assert repetition(*gated(0.4, 0.5), unknown).exit_code == 5

    @pytest.mark.parametrize("verdict", [name for name in EXIT_CODES if name != "pass"])
    def test_what_is_wrong_beside_the_gates_is_wrong_in_any_run(self, verdict):
        assert repetition(*gated(0.4, 0.5), run(verdict, but_gates=verdict)).exit_code == EXIT_CODES[verdict]

    def test_interrupted(self):
        assert repetition(*gated(0.4), status="partial").exit_code == 2

    def test_no_run_at_all(self):
        refused = Run("error", error="disk full")
        assert repetition(refused).exit_code == 3


class TestComparison:
    def test_a_failed_gate_is_an_answer(self):
        found = run_set(replace(sample(0.0), runs=gated(0.4, 3.0)), sample(1.0, 2.0, label="ndb"))
        assert judge_comparison(found).exit_code == 0

    def test_a_refused_strategy_leaves_it_open(self):
        runs = [Run(REFUSED, error="give a repair", round=number) for number in (1, 2)]
        refused = replace(sample(0.0, label="checkpoint"), runs=runs)
        verdict = judge_comparison(run_set(sample(1.0, 1.0), refused))
        assert verdict.exit_code == 5
        assert verdict.reasons == ("checkpoint: give a repair",)

    def test_dirty_outranks_all(self):
        dirty = replace(sample(0.0), runs=[run("dirty"), run("inconclusive")])
        assert judge_comparison(run_set(dirty, sample(1.0), status="partial")).exit_code == 6


class TestAgainst:
    def judge(self, now, base, **options):
        return judge_against([now], [base], DECIDING, 0.05, **options)

    def test_worse_fails_and_says_by_how_much(self):
        found = self.judge(sample(2.0, 2.1, 2.2), sample(1.0, 1.05, 1.1))
        assert found.verdict.exit_code == 1
        assert "recovery_seconds got worse: 2.10 s, in the reference 1.05 s" in found.verdict.reasons[0]

    def test_another_experiment_is_refused_with_the_difference(self):
        other = {**EXPERIMENT, "job": {"steps": 80, "strategy": "mecefo"}}
        now = sample(1.0, 1.0, 1.0, experiment_hash="b", experiment=other)
        refused = self.judge(now, sample(1.0, 1.0, 1.0))
        assert refused.verdict.exit_code == 5
        assert "job.steps: 80, not 50" in refused.verdict.reasons[0]
        assert refused.samples == ()
        anyway = self.judge(now, sample(1.0, 1.0, 1.0), anyway=True)
        assert anyway.verdict.exit_code == 0
        assert "job.steps" in anyway.notes[0]

    def test_other_gates_are_no_other_experiment(self):
        gates = {**EXPERIMENT, "gates": [FAST], "name": "y", "halt": ["training_loss is nan"]}
        found = self.judge(sample(1.0, 1.0, 1.0, experiment_hash="b", experiment=gates), sample(1.0, 1.0, 1.0))
        assert found.verdict.exit_code == 0

    def test_what_is_not_known_to_be_the_same_is_another(self):
        unknown = sample(1.0, 1.0, 1.0, experiment_hash="b", experiment={})
        assert self.judge(unknown, sample(1.0, 1.0, 1.0)).verdict.exit_code == 5
        assert self.judge(replace(unknown, experiment_hash=None), replace(unknown)).verdict.exit_code == 5

    def test_another_machine_is_said(self):
        found = self.judge(sample(1.0, 1.0, 1.0, machine={"cores": 64}), sample(1.0, 1.0, 1.0))
        assert any("another machine: cores 64, not cores 2" in note for note in found.notes)

    def test_of_sets_each_strategy_meets_its_own(self):
        now = [sample(2.0, 2.0, 2.0), sample(5.0, 5.0, 5.0, label="ndb")]
        base = [sample(5.0, 5.0, 5.0, label="ndb"), sample(1.0, 1.0, 1.0), sample(1.0, label="exact")]
        found = judge_against(now, base, ["recovery_seconds"], 0.05)
        assert [one.label for one in found.samples] == ["mecefo", "ndb"]
        assert found.verdict.reasons == (
            "mecefo: recovery_seconds got worse: 2.00 s, in the reference 1.00 s (noise 0 ms)",
        )

    def test_one_run_on_each_side_is_said_once(self):
        now, base = (run_set(replace(sample(0.0), runs=[run(**figures)])).samples[0] for figures in SINGLE)
        found = self.judge(now, base)
        assert (found.verdict.exit_code, found.notes) == (5, ())
        assert found.verdict.reasons == (f"{NONE_CLEAR}. Perhaps worse: recovery_seconds, detection_seconds",)
        # The other way round nothing is worse, and the sentence is a note.
        found = self.judge(base, now)
        assert (found.verdict.exit_code, found.notes) == (0, (NONE_CLEAR,))
        # Nothing but figures that cannot be told from chance: there is no answer.
        found = judge_against([base], [now], ["recovery_seconds"], 0.05)
        assert (found.verdict.exit_code, found.verdict.reasons, found.notes) == (5, (NONE_CLEAR,), ())

    def test_of_single_runs_a_count_can_be_told_from_chance(self):
        now, base = (replace(sample(0.0), runs=[run(steps_lost=lost, recovery_seconds=1.0)]) for lost in (3.0, 0.0))
        found = self.judge(now, base)
        assert found.verdict.exit_code == 1
        assert found.verdict.reasons == ("steps_lost got worse: 3, in the reference 0 (noise 0)",)
        assert found.notes == (SOME_CLEAR,)

    @pytest.mark.parametrize(("num_now", "num_base"), [(2, 1), (1, 2), (3, 3)])
    def test_of_several_runs_nothing_is_said_of_single_ones(self, num_now, num_base):
        found = self.judge(sample(*[1.0] * num_now), sample(*[1.0] * num_base))
        assert "one run" not in " ".join((*found.verdict.reasons, *found.notes))

    def test_what_was_stopped_has_nothing_to_compare(self):
        halted = replace(sample(1.0), runs=[run("halted")])
        found = self.judge(halted, sample(1.0, 1.0, 1.0))
        assert found.verdict.exit_code == 5
        assert found.verdict.reasons == ("no run here has figures that count: halted",)
        found = self.judge(sample(1.0), replace(sample(1.0), runs=[run("error"), run("dirty")]))
        assert found.verdict.reasons == ("no run in the reference has figures that count: error, dirty",)

    def test_nothing_in_common(self):
        two = [sample(1.0, label="a"), sample(1.0, label="b")]
        assert judge_against(two, [sample(1.0, label="c")], DECIDING, 0.05).verdict.exit_code == 5

    def test_runs_that_do_not_count_are_missing(self):
        now = replace(sample(1.0, 1.0), runs=[run("error"), run(recovery_seconds=1.0), run(recovery_seconds=1.0)])
        assert self.judge(now, sample(1.0, 1.0, 1.0)).verdict.exit_code == 5


@given(st.lists(st.sampled_from(sorted(EXIT_CODES.values())), max_size=5))
def test_the_worst_exit_code_is_one_of_them_in_any_order(codes):
    found = {worst(list(order)) for order in list(permutations(codes))[:24]}
    assert found <= set(codes or [0])
    assert len(found) == 1


def test_an_unknown_exit_code_is_never_hidden():
    assert worst([0, 6, 17]) == 17


figure_values = st.dictionaries(
    st.sampled_from(["recovery_seconds", "goodput_ratio", "steps_lost"]), st.none() | st.floats(0, 100)
)
runs = st.builds(
    Run,
    verdict=st.sampled_from([*EXIT_CODES, REFUSED]),
    figures=figure_values,
    folder=st.none() | st.text(max_size=9),
    round=st.integers(1, 9),
    reasons=st.lists(st.text(max_size=9), max_size=2).map(tuple),
    error=st.none() | st.text(max_size=9),
    verdict_but_gates=st.none() | st.sampled_from(sorted(EXIT_CODES)),
    dilation_overrun_ratio=st.none() | st.floats(0, 9),
)


@given(st.lists(runs, max_size=4))
def test_a_set_reads_what_it_wrote(made):
    found = run_set(replace(sample(0.0), runs=tuple(made)))
    assert to_json(RunSet.parse(to_json(found))) == to_json(found)


@pytest.mark.parametrize("damage", [{}, {"format": "x"}, {"samples": [{}]}, {"samples": 3}, {"num_rounds": "many"}])
def test_a_damaged_set_is_told(damage):
    whole = to_json(run_set(sample(1.0)))
    with pytest.raises(NoSet):
        RunSet.parse({**whole, **damage} if damage else {})


def test_differences_name_the_keys():
    assert differences({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}) == ["a.b[1]: 2, not 3"]
    assert differences({"a": 1}, {}) == ["a: 1, not null"]
    assert differences({"name": 1, "gates": 2}, {}) == []
