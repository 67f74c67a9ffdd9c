"""Whether a command is still the same training after a restart, from synthetic logs."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.resume.observed import observe
from tests.harness.analysis.resume.logs import Log, sampler_of

pytestmark = pytest.mark.unit

STATE = {
    "parameters": "p30",
    "buffers": "b",
    "optimizer": "m30",
    "optimizer_steps": 30,
    "is_whole": True,
}


def in_order(step, rank):
    first = (step - 1) * 4 + rank * 2
    return [first, first + 1]


def judged(one):
    return [(difference.kind, difference.step, difference.ranks) for difference in one.judged]


def restarted(**second):
    """34 steps, a restart after step 30, 40 steps in the end."""
    log = Log()
    log.attempt(1, range(1, 35), in_order, saves=lambda step, rank: STATE if (step, rank) == (30, 0) else None)
    log.attempt(2, range(31, 41), **{"batch": in_order, "entered": lambda rank: STATE, **second})
    return log


def test_an_equal_second_pass_has_no_difference():
    figures = restarted().figures()
    (one,) = figures.resumes
    assert (one.resumed_after, one.aligned_by, one.steps, one.differences) == (30, "parameters", 4, ())
    assert {"batches", "rates", "parameters", "optimizer", "optimizer_steps"} <= set(one.kinds)
    assert (figures.resume_differs, figures.first_differing_step) == (0, None)


def test_other_batches_are_a_difference_of_all_ranks_and_name_the_step_they_were_of():
    figures = restarted(batch=lambda step, rank: in_order(step - 30, rank)).figures()
    (one,) = figures.resumes
    assert judged(one) == [("batches", 31, (0, 1))]
    assert (one.judged[0].same_as_step, one.judged[0].num_steps) == (1, 4)
    assert (figures.resume_differs, figures.first_differing_step) == (1, 31)


def test_another_learning_rate_is_given_with_both_values():
    (one,) = restarted(step=lambda step, rank: {"rates": [0.001]}).figures().resumes
    assert judged(one) == [("rates", 31, (0, 1))]
    assert (one.judged[0].before, one.judged[0].after) == ((0.01,), (0.001,))


def test_moments_that_were_not_restored_differ_at_the_load():
    (one,) = restarted(entered=lambda rank: {**STATE, "optimizer": "", "optimizer_steps": None}).figures().resumes
    assert {kind for kind, _, _ in judged(one)} == {"optimizer", "optimizer_steps"}
    assert {difference.moment for difference in one.judged} == {"load"}


def test_what_one_rank_saved_says_nothing_of_the_shards_of_another():
    shards = {0: {**STATE, "parameters": "s0"}, 1: {**STATE, "parameters": "s1", "optimizer": "m31"}}
    log = Log()
    log.attempt(
        1,
        range(1, 35),
        in_order,
        entered=lambda rank: {"parameters": f"a{rank}"},
        saves=lambda step, rank: shards[0] if (step, rank) == (30, 0) else None,
    )
    log.attempt(2, range(31, 41), in_order, entered=shards.__getitem__)
    assert log.figures().resume_differs == 0


def test_random_states_count_only_where_the_step_draws():
    def seen(state, draws):
        return lambda step, rank: {"random": {"torch": state}, "draws": draws}

    def compared(draws):
        log = Log()
        log.attempt(1, range(1, 35), in_order, step=seen("one", draws))
        log.attempt(2, range(31, 41), in_order, step=seen("two", draws))
        return log.figures()

    assert compared(["torch"]).resume_differs == 1
    quiet = compared([])
    assert quiet.resume_differs == 0
    assert [one.kind for one in quiet.resumes[0].differences] == ["random"]


def test_an_attempt_that_cannot_be_placed_is_compared_with_nothing():
    figures = restarted(entered_step=None, batch=lambda step, rank: [0, 1]).figures()
    assert figures.resumes[0].unknown.code == "not_aligned"
    assert (figures.resume_differs, figures.first_differing_step) == (None, None)
    assert (figures.samples_repeated, figures.samples_unknown.code) == (None, "not_aligned")


def test_one_restart_that_was_compared_with_nothing_leaves_the_figure_open():
    log = restarted()
    log.attempt(3, range(36, 45), in_order, entered_step=None)
    figures = log.figures()
    assert [bool(one.kinds) for one in figures.resumes] == [True, False]
    assert figures.resume_differs is None


def test_a_difference_is_counted_though_another_restart_was_not_compared():
    log = restarted(step=lambda step, rank: {"rates": [0.5]})
    log.attempt(3, range(36, 45), in_order, entered_step=None)
    assert log.figures().resume_differs == 1


def test_steps_of_another_number_of_ranks_are_not_compared_by_content():
    log = Log()
    log.attempt(1, range(1, 41), lambda step, rank: [100 * step + rank], ranks=(0, 1, 2, 3))
    log.attempt(2, range(31, 36), in_order)
    log.attempt(3, range(34, 45), in_order)
    figures = log.figures()
    assert [one.judged for one in figures.resumes] == [(), ()]
    assert figures.resumes[0].unobserved[0].code == "world_size_changed"


def augmented(attempt):
    """Each sample flipped, or not, at random."""

    def content(step, rank, sample):
        return sample, random.Random(f"{attempt}.{step}.{sample}").random() < 0.5

    return content


@pytest.mark.parametrize("with_indices", [True, False])
def test_augmentation_is_no_other_sample(with_indices):
    def five_steps(step, rank):
        return in_order(step % 5, rank)

    log = Log()
    for attempt, steps in ((1, range(1, 35)), (2, range(31, 41))):
        log.attempt(attempt, steps, five_steps, content=augmented(attempt), with_indices=with_indices)
    figures = log.figures()
    (one,) = figures.resumes
    assert one.judged == ()
    assert "content" in [difference.kind for difference in one.differences]
    # Without indices other samples look the same.
    assert figures.resume_differs == (0 if with_indices else None)
    assert [reason.code for reason in one.unobserved] == ([] if with_indices else ["content_may_change"])


def test_batches_that_were_not_seen_leave_the_figure_open_and_hide_no_other_difference():
    """As of a GAN, of whose passes some are not seen."""
    unseen = {"batches": ["", ""]}
    figures = restarted(step=lambda step, rank: unseen).figures()
    (one,) = figures.resumes
    assert (figures.resume_differs, [reason.code for reason in one.unobserved]) == (None, ["batches_not_seen"])
    assert restarted(step=lambda step, rank: {**unseen, "rates": [0.5]}).figures().resume_differs == 1


def with_baseline(batches_of_baseline):
    log, twin = restarted(), Log()
    twin.attempt(1, range(1, 41), batches_of_baseline)
    fault_seconds = next(one.monotonic_seconds for one in log.records if one.KIND == "step_seen" and one.step == 34)
    return log.figures(twin, fault_seconds)


def test_the_baseline_is_compared_after_the_fault():
    figures = with_baseline(lambda step, rank: in_order(step if step < 36 else step + 9, rank))
    against = next(one for one in figures.resumes if one.against == "baseline")
    assert judged(against) == [("batches", 36, (0, 1))]
    assert figures.first_differing_step == 36


def test_a_baseline_that_was_another_training_from_the_start_is_not_judged():
    figures = with_baseline(lambda step, rank: in_order(step + 7, rank))
    against = next(one for one in figures.resumes if one.against == "baseline")
    assert against.judged == ()
    assert "batches" not in against.kinds
    assert [(one.code, one.fields["kinds"]) for one in against.unobserved] == [("undisturbed_differ", ["batches"])]
    assert figures.resume_differs == 0


EPOCH = 48


def shuffled(seed):
    """Two ranks, 4 samples a step, 12 steps an epoch, each epoch shuffled anew."""

    def batch(step, rank):
        epoch, within = divmod(step - 1, 12)
        order = list(range(EPOCH))
        random.Random(f"{seed}.{epoch}").shuffle(order)
        return order[within * 4 + rank * 2 : within * 4 + rank * 2 + 2]

    return batch


def begins(step, rank):
    return {"begins_epoch": (step - 1) % 12 == 0}


@given(last=st.integers(13, 23), back=st.integers(0, 6), seed=st.integers(0, 5), other=st.booleans())
def test_samples_are_counted_as_by_hand(last, back, seed, other):
    after = last - back
    log = Log()
    again = shuffled(f"{seed}-other" if other else seed)
    log.attempt(1, range(1, last + 1), shuffled(seed), step=begins, sampler=sampler_of(EPOCH))
    log.attempt(2, range(after + 1, 37), again, step=begins, sampler=sampler_of(EPOCH))
    figures = log.figures()
    kept = {step: shuffled(seed) if step <= after else again for step in range(1, 37)}
    repeated = missed = 0
    for epoch in range(3):
        steps = range(12 * epoch + 1, 12 * epoch + 13)
        used = Counter(sample for step in steps for rank in (0, 1) for sample in kept[step](step, rank))
        repeated += used.total() - len(used)
        missed += EPOCH - len(used)
    assert (figures.samples_repeated, figures.samples_missed, figures.samples_size) == (repeated, missed, EPOCH)
    if not other:
        assert (figures.samples_repeated, figures.samples_missed) == (0, 0)


@given(last=st.integers(2, 30), back=st.integers(1, 10), shift=st.integers(1, 9), indices=st.booleans())
def test_an_equal_pass_never_differs_and_a_shifted_one_always_does(last, back, shift, indices):
    after = max(0, last - back)

    def figures(by):
        log = Log()
        log.attempt(1, range(1, last + 1), in_order, with_indices=indices)
        log.attempt(2, range(after + 1, last + 5), lambda step, rank: in_order(step + by, rank), with_indices=indices)
        return log.figures()

    assert figures(0).resume_differs == 0
    shifted = figures(shift)
    if indices:
        assert (shifted.resume_differs, shifted.first_differing_step) == (1, after + 1)
    else:
        # Rows that were never seen before may be the same samples augmented anew: shown, and judged only if seen.
        assert {one.kind for one in shifted.resumes[0].differences} <= {"batches", "content"}
        assert shifted.resumes[0].differences


def test_with_replacement_nothing_is_counted():
    log = Log()
    sampler = sampler_of(EPOCH, has_replacement=True)
    log.attempt(1, range(1, 20), shuffled(0), step=begins, sampler=sampler)
    log.attempt(2, range(16, 37), shuffled(0), step=begins, sampler=sampler)
    figures = log.figures()
    assert (figures.samples_repeated, figures.samples_unknown.code) == (None, "with_replacement")


def test_the_settings_of_a_place_are_read_once_however_many_steps_are_compared():
    log = Log()
    for attempt in (1, 2):
        log.attempt(attempt, range(1, 51), in_order, entered_step=0)
    observed = observe(log.records)
    assert observed.groups(1, 0) is observed.groups(1, 0)
    assert log.figures().resumes[0].steps == 50
