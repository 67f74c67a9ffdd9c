import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.system.dilation import MAX_CARRIED_SECONDS, Pacer, Steady, automatic_ratio
from mecefo_runtime.system.process import ask_for_short_slices

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("num_ranks", "num_cores", "ratio"),
    [(8, 1, 16.0), (8, 2, 8.0), (8, 4, 2.86), (8, 16, 1.0), (1, 2, 1.0)],
)
def test_ranks_leave_a_core_and_some_of_the_rest_to_others(num_ranks, num_cores, ratio):
    assert automatic_ratio(num_ranks, num_cores) == ratio


def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


def test_a_segment_takes_the_ratio_of_its_cpu_time():
    pacer = Pacer(4.0)
    for _ in range(3):
        with pacer:
            compute(0.01)
    assert pacer.compute_seconds >= 0.03
    # Never less, whatever the machine does; more where the machine is busy.
    assert pacer.wall_seconds >= 4.0 * pacer.compute_seconds


def test_a_slower_device_takes_so_many_times_more_and_says_nothing_of_it():
    pacer = Pacer(2.0)
    pacer.slow_factor = 3.0
    began = time.monotonic()
    with pacer:
        compute(0.01)
    elapsed_seconds = time.monotonic() - began
    assert elapsed_seconds >= 6.0 * pacer.compute_seconds >= 0.06
    # What the slowness added is no contention of the machine.
    assert pacer.wall_seconds <= elapsed_seconds - 4.0 * pacer.compute_seconds


def test_a_rated_segment_takes_its_rated_time_however_much_it_computed():
    pacer = Pacer(8.0)
    began = time.monotonic()
    for seconds in (0.001, 0.004, 0.0):
        with pacer.segment(0.05):
            compute(seconds)
    assert time.monotonic() - began >= 3 * 0.05
    assert pacer.slot_seconds == pytest.approx(3 * 0.05)
    assert (pacer.num_segments, pacer.compute_seconds < 0.02) == (3, True)


def test_a_segment_that_takes_longer_than_rated_is_an_overrun():
    pacer = Pacer(8.0)
    for rated_seconds in (0.01, 1.0):
        with pacer.segment(rated_seconds):
            compute(0.03)
    assert (pacer.num_segments, pacer.num_overruns) == (2, 1)
    assert pacer.worst_overrun_seconds == pacer.overrun_seconds >= 0.02


def test_of_what_is_late_little_is_made_up_for():
    pacer = Pacer(8.0)
    with pacer.segment(0.01):
        threading.Event().wait(0.1)
    began = time.monotonic()
    with pacer.segment(0.05):
        compute(0.001)
    # What a fault takes is to show.
    assert time.monotonic() - began >= 0.05 - MAX_CARRIED_SECONDS


def test_the_next_segment_is_measured_again_unless_it_is_rated_too():
    pacer = Pacer(2.0)
    with pacer.segment(0.05):
        compute(0.0)
    with pacer.segment(None):
        compute(0.01)
    assert pacer.slot_seconds == pytest.approx(0.05 + 2 * 0.01, abs=0.01)


def test_without_dilation_a_rating_counts_for_nothing():
    pacer = Pacer(1.0)
    with pacer.segment(5.0):
        compute(0.001)
    assert pacer.wall_seconds < 5.0


def test_what_is_waited_for_is_not_computed():
    pacer = Pacer(10.0)
    with pacer:
        threading.Event().wait(0.05)
    assert pacer.compute_seconds < 0.02
    assert pacer.wall_seconds >= 0.05


def test_without_dilation_nothing_is_padded():
    pacer = Pacer(1.0)
    began = time.thread_time()
    with pacer:
        compute(0.02)
    assert pacer.compute_seconds == pytest.approx(time.thread_time() - began, abs=0.01)


def test_a_segment_that_fails_counts_too():
    pacer = Pacer(2.0)
    with pytest.raises(ZeroDivisionError), pacer:
        compute(0.01)
        1 / 0  # noqa: B018
    assert pacer.wall_seconds >= 2.0 * pacer.compute_seconds > 0


def test_a_ratio_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        Pacer(0.5)


def test_asking_for_short_slices_leaves_the_thread_as_it_was():
    answers = []
    # On a thread of its own: the slice stays with the thread.
    thread = threading.Thread(target=lambda: answers.append(ask_for_short_slices(0.0002)))
    thread.start()
    thread.join()
    assert answers in ([True], [False])


def test_a_rating_pads_without_dilation_where_it_is_another_device_s():
    pacer = Pacer(1.0, is_rated=True)
    began = time.monotonic()
    with pacer.segment(0.05):
        pass
    assert time.monotonic() - began >= 0.05
    # What nobody rated takes as long as it takes.
    with pacer.segment(None):
        compute(0.002)
    assert pacer.slot_seconds == pytest.approx(0.05 + pacer.compute_seconds, abs=1e-3)
    assert not Pacer(1.0).pads and Pacer(1.0, is_rated=True).pads


def test_a_segment_that_could_begin_a_moment_ago_ends_as_if_it_had():
    pacer = Pacer(1.0, is_rated=True)
    ready = time.monotonic() - MAX_CARRIED_SECONDS / 2
    with pacer.segment(0.05, ready):
        pass
    assert pacer.now_seconds == pytest.approx(ready + 0.05, abs=MAX_CARRIED_SECONDS / 2)
    assert time.monotonic() >= ready + 0.05
    # No sooner than the one before it.
    with pacer.segment(0.02, 0.0):
        pass
    assert time.monotonic() >= ready + 0.07
    assert pacer.slot_seconds == pytest.approx(0.07)


def test_what_is_late_by_a_segment_is_made_up_for_and_no_more():
    pacer = Pacer(1.0, is_rated=True)
    with pacer.segment(0.1):
        pass
    ended = pacer.now_seconds
    # Held by a fault, say; in another process all the while the next one is waited for.
    time.sleep(0.3)
    began = time.monotonic()
    with pacer.segment(0.15):
        pass
    assert time.monotonic() >= began + 0.15 - 0.1
    assert pacer.now_seconds >= ended + 0.3 - 0.1 + 0.15


def test_all_devices_go_on_from_what_they_all_waited_for():
    pacer = Pacer(1.0, is_rated=True)
    with pacer.segment(0.1):
        pass
    over = time.monotonic() - 0.04
    pacer.set_now(over)
    with pacer.segment(0.1):
        pass
    assert pacer.now_seconds == pytest.approx(over + 0.1, abs=0.05)
    assert time.monotonic() >= over + 0.1


def test_what_is_not_ready_yet_may_begin_and_ends_when_it_should():
    pacer = Pacer(1.0, is_rated=True)
    ready = time.monotonic() + 0.03
    with pacer.segment(0.02, ready):
        pass
    assert time.monotonic() >= ready + 0.02
    assert pacer.num_overruns == 0


def test_after_what_all_wait_for_a_rank_may_be_later_by_as_long_as_that_takes():
    pacer = Pacer(1.0, is_rated=True)
    with pacer.segment(0.05):
        pass
    pacer.set_now(time.monotonic() - 0.2, 0.1)
    # A segment and what they waited for together; the rest is lost.
    assert time.monotonic() - pacer.now_seconds == pytest.approx(0.15, abs=0.02)


def test_who_was_late_before_a_segment_began_has_not_overrun_it():
    pacer = Pacer(1.0, is_rated=True)
    with pacer.segment(0.1):
        pass
    pacer.set_now(time.monotonic() - 0.09)
    with pacer.segment(0.05):
        pass
    assert pacer.num_overruns == 0
    with pacer.segment(0.01):
        compute(0.05)
    assert pacer.num_overruns == 1


@given(st.lists(st.floats(0.0, 1.0), max_size=12))
def test_what_is_slow_of_late_is_what_all_of_the_last_ones_took(taken):
    steady = Steady(4)
    for seconds in taken:
        steady.add(seconds)
    assert steady.seconds == (min(taken[-4:]) if len(taken) >= 4 else 0.0)
