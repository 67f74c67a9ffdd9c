"""Which steps are fit to be committed, and who is to blame for the others."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.config import HealthConfig
from mecefo_runtime.job.step_report import HealthHistory, PartHealth, StepStats, StepTotals, StepVerdict
from mecefo_runtime.step.health import (
    Judgement,
    after_commit,
    after_rejection,
    judge,
    odd_ones_out,
    origins_of,
    outliers_among,
)

pytestmark = pytest.mark.unit

USUAL = {rank: PartHealth(1.0) for rank in range(4)}


class Judge:
    """Judges one step after the other, and remembers as a rank does."""

    def __init__(self, config: HealthConfig) -> None:
        self._config, self._history = config, HealthHistory()

    def judge(self, step: int, loss_sum: float, squared_norm: float, parts: dict[int, PartHealth]) -> Judgement:
        judgement = judge(self._config, self._history, step, loss_sum, squared_norm, parts)
        if judgement.verdict in (StepVerdict.COMMIT, StepVerdict.SKIP):
            totals = StepTotals(squared_norm, StepStats(loss_sum), judgement.verdict)
            self._history = after_commit(self._config, self._history, totals)
        else:
            self._history = after_rejection(self._history, step, judgement.verdict, parts)
        return judgement


def judge_of(**settings: object) -> Judge:
    return Judge(HealthConfig(window_steps=5, **settings))


def warmed_up(judge: Judge, norm: float = 1.0) -> Judge:
    for step in range(1, 6):
        assert judge.judge(step, 1.0, norm**2, USUAL).verdict is StepVerdict.COMMIT
    return judge


def with_part(rank: int, part: PartHealth) -> dict[int, PartHealth]:
    return {**USUAL, rank: part}


@pytest.mark.parametrize(("loss", "squared_norm"), [(nan, 1.0), (inf, 1.0), (1.0, nan), (1.0, inf)])
def test_a_step_that_is_not_finite_is_computed_again_and_then_skipped(loss: float, squared_norm: float) -> None:
    judge = judge_of(max_repeats=2)
    parts = with_part(2, PartHealth(nan))
    verdicts = [judge.judge(7, loss, squared_norm, parts).verdict for _ in range(3)]
    assert verdicts == [StepVerdict.REPEAT, StepVerdict.REPEAT, StepVerdict.SKIP]
    assert judge.judge(8, 1.0, 1.0, USUAL).verdict is StepVerdict.COMMIT


def test_a_transient_one_costs_one_repetition_and_the_next_step_has_its_own() -> None:
    judge = judge_of()
    parts = with_part(2, PartHealth(nan, is_origin=True))
    first = judge.judge(7, nan, nan, parts)
    assert first.verdict is StepVerdict.REPEAT
    assert first.suspects == (2,)
    assert "rank 2" in first.reason
    assert judge.judge(7, 1.0, 1.0, USUAL).verdict is StepVerdict.COMMIT
    assert judge.judge(8, nan, nan, parts).verdict is StepVerdict.REPEAT


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("commit", [StepVerdict.COMMIT, StepVerdict.COMMIT]),
        ("skip", [StepVerdict.SKIP, StepVerdict.SKIP]),
        ("repeat", [StepVerdict.REPEAT, StepVerdict.SKIP]),
        ("evict", [StepVerdict.REPEAT, StepVerdict.EVICT]),
    ],
)
def test_the_policy_decides_what_becomes_of_it(policy: str, expected: list[StepVerdict]) -> None:
    judge = judge_of(nonfinite=policy)
    parts = with_part(1, PartHealth(nan))
    judgements = [judge.judge(3, nan, nan, parts) for _ in range(2)]
    assert [judgement.verdict for judgement in judgements] == expected
    if policy == "evict":
        assert judgements[-1].suspects == (1,)


def test_nobody_is_evicted_when_it_is_not_known_whom() -> None:
    judge = judge_of(nonfinite="evict", max_repeats=0)
    everybody = {rank: PartHealth(nan) for rank in range(4)}
    assert judge.judge(3, nan, nan, everybody).verdict is StepVerdict.SKIP


def test_who_made_it_is_told_from_who_passed_it_on() -> None:
    passed_on = {0: PartHealth(nan), 1: PartHealth(nan, is_origin=True), 2: PartHealth(1.0)}
    assert origins_of(passed_on) == (1,)
    assert origins_of({0: PartHealth(inf), 1: PartHealth(1.0)}) == (0,)


def test_an_outlier_is_computed_again_and_committed_if_it_comes_out_the_same() -> None:
    judge = warmed_up(judge_of(outlier_ratio=50.0))
    parts = with_part(3, PartHealth(99.0))
    first = judge.judge(6, 1.0, 99.0**2, parts)
    assert (first.verdict, first.suspects) == (StepVerdict.REPEAT, (3,))
    assert judge.judge(6, 1.0, 99.0**2, parts).verdict is StepVerdict.COMMIT


def test_outliers_that_go_on_become_what_is_usual() -> None:
    judge = warmed_up(judge_of(outlier_ratio=50.0))
    for step in (6, 7, 8):
        assert [judge.judge(step, 1.0, 99.0**2, USUAL).verdict for _ in range(2)] == [
            StepVerdict.REPEAT,
            StepVerdict.COMMIT,
        ]
    assert judge.judge(9, 1.0, 99.0**2, USUAL).verdict is StepVerdict.COMMIT, "three of the last five"


def test_an_outlier_can_be_skipped_or_cost_the_rank_its_place() -> None:
    parts = with_part(3, PartHealth(99.0))
    assert warmed_up(judge_of(outlier="skip")).judge(6, 1.0, 99.0**2, parts).verdict is StepVerdict.SKIP
    judge = warmed_up(judge_of(outlier="evict"))
    assert [judge.judge(6, 1.0, 99.0**2, parts).verdict for _ in range(2)] == [StepVerdict.REPEAT, StepVerdict.EVICT]
    assert warmed_up(judge_of(outlier="commit")).judge(6, 1.0, 99.0**2, parts).verdict is StepVerdict.COMMIT


def test_an_outlier_that_nobody_is_to_blame_for_is_committed_where_one_would_be_evicted() -> None:
    judge = warmed_up(judge_of(outlier="evict"))
    everybody = {rank: PartHealth(99.0) for rank in range(4)}
    assert [judge.judge(6, 1.0, 99.0**2, everybody).verdict for _ in range(2)] == [
        StepVerdict.REPEAT,
        StepVerdict.COMMIT,
    ]


def test_what_is_usual_is_not_known_at_first_and_follows_the_training() -> None:
    early = judge_of()
    for step, norm in enumerate((1.0, 1.0, 1.0, 1.0, 1e6), start=1):
        assert early.judge(step, 1.0, norm**2, USUAL).verdict is StepVerdict.COMMIT, "four of five say little"
    judge = warmed_up(judge_of(outlier_ratio=10.0), norm=8.0)
    assert judge.judge(6, 1.0, 70.0**2, USUAL).verdict is StepVerdict.COMMIT
    assert judge.judge(7, 1.0, 90.0**2, USUAL).verdict is StepVerdict.REPEAT


def test_differing_parameters_outrank_everything_else() -> None:
    judgement = judge_of().judge(3, nan, nan, with_part(2, PartHealth(1.0, differs=True)))
    assert (judgement.verdict, judgement.suspects) == (StepVerdict.HEAL, (2,))


def test_outliers_among_ranks() -> None:
    assert outliers_among({0: PartHealth(1.0), 1: PartHealth(2.0), 2: PartHealth(80.0), 3: PartHealth(0.0)}) == (2,)
    assert outliers_among(USUAL) == ()
    idle = {rank: PartHealth(0.0) for rank in (4, 5, 6, 7, 8)}
    assert outliers_among({**USUAL, **idle}) == (), "who computes nothing says nothing of what is usual"


@given(st.floats(0, 1e300) | st.just(nan) | st.just(inf), st.booleans(), st.booleans(), st.booleans())
def test_what_a_member_says_survives_the_exchange(
    norm: float, is_origin: bool, differs: bool, is_corrupted: bool
) -> None:
    part = PartHealth(norm, is_origin, differs, is_corrupted)
    assert repr(PartHealth.decode(part.encode())) == repr(part)


def test_whose_optimizer_state_is_corrupted_is_healed_before_it_steps() -> None:
    judgement = judge_of().judge(7, 1.0, 1.0, with_part(2, PartHealth(1.0, differs=True, is_corrupted=True)))
    assert (judgement.verdict, judgement.suspects) == (StepVerdict.HEAL, (2,))
    assert judgement.reason == "rank 2: parameters or optimizer state are corrupted"


@pytest.mark.parametrize(("policy", "expected"), [("repeat", StepVerdict.SKIP), ("evict", StepVerdict.EVICT)])
def test_what_is_corrupted_again_and_again_does_not_stop_the_job(policy: str, expected: StepVerdict) -> None:
    judge = judge_of(nonfinite=policy, max_repeats=1)
    parts = with_part(2, PartHealth(nan, is_origin=True, is_corrupted=True))
    judgements = [judge.judge(7, nan, nan, parts) for _ in range(3)]
    assert [judgement.verdict for judgement in judgements] == [StepVerdict.HEAL, StepVerdict.HEAL, expected]
    assert judgements[-1].suspects == (2,)
    assert judgements[-1].reason.endswith("are corrupted, 3 times")
    assert judge.judge(8, nan, nan, parts).verdict is StepVerdict.HEAL


@pytest.mark.parametrize(
    ("checksums", "odd"),
    [
        ({}, ()),
        ({0: 7, 1: 7, 2: 7}, ()),
        ({0: 7, 1: 8, 2: 7}, (1,)),
        ({0: 8, 1: 7, 2: 7}, (0,)),
        ({0: 7, 1: 8}, (1,)),
        ({0: 1, 1: 2, 2: 3}, (1, 2)),
        ({0: 1, 1: 2, 2: 2, 3: 1}, (1, 2)),
    ],
)
def test_the_largest_group_that_agrees_is_right(checksums: dict[int, int], odd: tuple[int, ...]) -> None:
    assert odd_ones_out(checksums) == odd


@pytest.mark.parametrize(
    "settings", [{"nonfinite": "ignore"}, {"outlier": "heal"}, {"outlier_ratio": 1.0}, {"window_steps": 0}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        HealthConfig(**settings)
