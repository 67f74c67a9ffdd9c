import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.language.recurrence import MAX_INCIDENTS, Rate, Recurrence, default_first
from chaos.language.trigger import Duration, Trigger

pytestmark = pytest.mark.unit


def triggers(first, *, every=None, rate=None, count=None, within=None, num_steps=560, seed=0):
    """Of a recurrence said in texts."""
    period = None if every is None else Duration.parse(every)
    said_rate = None if rate is None else Rate.parse(rate)
    begin = default_first(period, said_rate) if first is None else Trigger.parse(first)
    end = None if within is None else Duration.parse(within)
    return Recurrence(begin, period, said_rate, count, end).triggers(Random(seed), num_steps)


def steps(*arguments, **options):
    return [trigger.step for trigger in triggers(*arguments, **options)]


class TestRate:
    @pytest.mark.parametrize(
        ("text", "rate"),
        [
            ("0.5/min", Rate(0.5, Duration(seconds=60.0))),
            ("2/100steps", Rate(2.0, Duration(steps=100))),
            ("3/h", Rate(3.0, Duration(seconds=3600.0))),
            (" 1 / 30s ", Rate(1.0, Duration(seconds=30.0))),
            ("0.01/step", Rate(0.01, Duration(steps=1))),
        ],
    )
    def test_reads(self, text, rate):
        assert Rate.parse(text) == rate
        assert Rate.parse(str(rate)) == rate

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("0.5", "'0.5' is no rate: write 0.5/min or 2/100steps"),
            (0.5, "0.5 is no rate"),
            (None, "null is no rate"),
            ("/min", "is no rate"),
            ("-1/min", "is no rate"),
            ("1/", "is not a duration"),
            ("1/5", "'5' has no unit"),
            ("1/mi", "(did you mean 'min'?)"),
            ("0/min", "a rate is more than 0"),
            ("1/0s", "a rate needs a time above 0s"),
            ("1/0steps", "write at least 1step"),
            ("1e3/min", "is no rate"),
        ],
    )
    def test_refuses(self, value, message):
        with pytest.raises(UsageError) as refused:
            Rate.parse(value)
        assert message in str(refused.value)

    @given(st.integers(1, 10**9), st.one_of(st.integers(1, 10**6), st.floats(0.001, 1e6)))
    def test_text_round_trips(self, thousandths, per):
        rate = Rate(
            thousandths / 1000, Duration(steps=per) if isinstance(per, int) else Duration(seconds=round(per, 3))
        )
        assert Rate.parse(str(rate)) == rate

    @given(st.one_of(st.text(max_size=20), st.text("0123456789./ minstep", max_size=12)))
    def test_any_text_is_read_or_refused(self, text):
        try:
            rate = Rate.parse(text)
        except UsageError:
            return
        assert Rate.parse(str(rate)) == rate


class TestEvery:
    def test_is_first_one_period_in(self):
        assert steps(None, every="200steps") == [200, 400]
        assert [t.at_seconds for t in triggers(None, every="10s", within="35s")] == [10.0, 20.0, 30.0]

    def test_is_first_at_its_trigger_and_keeps_its_phase(self):
        found = triggers("step=100,phase=reduce", every="200steps")
        assert found == (Trigger(100, "reduce"), Trigger(300, "reduce"), Trigger(500, "reduce"))
        assert [t.at_seconds for t in triggers("time=0s", every="2min", within="4min")] == [0.0, 120.0, 240.0]

    def test_waits_for_regroups(self):
        assert triggers("phase=regroup", every="200steps") == (Trigger(200, "regroup"), Trigger(400, "regroup"))

    def test_ends_with_the_job_the_count_or_the_horizon(self):
        assert steps(None, every="100steps", num_steps=300) == [100, 200, 300]
        assert steps(None, every="100steps", count=2) == [100, 200]
        assert steps(None, every="100steps", within="250steps") == [100, 200]
        assert len(triggers("time=590s", every="5s")) == 3, "the default horizon of times is ten minutes"


class TestPoisson:
    def test_a_known_draw(self):
        # Pinned: a published seed must go on meaning the same failures.
        assert steps(None, rate="1/100steps", seed=7) == [40, 56, 161, 169, 246, 291, 297, 368, 372, 428, 436, 445, 501]

    @given(st.integers(0, 2**32), st.integers(1, 560), st.integers(1, 20))
    def test_lies_in_the_job_in_order_and_after_its_beginning(self, seed, first, count):
        found = steps(f"step={first}", rate="5/100steps", count=count, seed=seed)
        assert found == sorted(found)
        assert all(first <= step <= 560 for step in found)
        assert len(found) <= count

    @given(st.integers(0, 2**32))
    def test_a_shorter_horizon_only_cuts_off(self, seed):
        long, short = (steps(None, rate="5/100steps", within=f"{n}steps", seed=seed) for n in (500, 200))
        assert short == [step for step in long if step <= 200]

    def test_has_the_rate_that_was_asked_for(self):
        # 400 runs with 10 firings in the mean: the standard error of their mean is sqrt(10 / 400) = 0.16.
        counts = [len(triggers(None, rate="1/min", seed=seed)) for seed in range(400)]
        mean = sum(counts) / len(counts)
        assert abs(mean - 10) < 4 * math.sqrt(10 / 400)
        # And as Poisson's does, it varies as much as it is large.
        variance = sum((count - mean) ** 2 for count in counts) / len(counts)
        assert 6 < variance < 15

    def test_every_step_can_be_the_first(self):
        first = [steps(None, rate="1/step", num_steps=3, seed=seed, count=1) for seed in range(60)]
        assert {step for found in first for step in found} == {1, 2, 3}


class TestRefusals:
    @pytest.mark.parametrize(
        ("first", "said", "key", "message"),
        [
            ("step=5", {}, "every", "contradict"),
            ("step=5", {"every": "5steps", "rate": "1/step"}, "every", "contradict"),
            ("time=5s", {"every": "5steps"}, "at", "every counts steps, but at is a time"),
            ("step=5", {"every": "5s"}, "at", "every is in seconds, but at is not a time"),
            ("phase=regroup", {"rate": "1/min"}, "at", "rate is in seconds, but at is not a time"),
            (None, {"every": "5steps", "within": "5s"}, "within", "every counts steps: within must do so, too"),
            (None, {"rate": "5/s", "within": "5steps"}, "within", "rate counts seconds"),
            ("time=700s", {"rate": "1/s"}, "within", "fires first at time=700s, but only within 600s of the start"),
            (None, {"every": "20min"}, "within", "fires first at time=1200s, but only within 600s"),
            (
                "step=50",
                {"every": "5steps", "within": "49steps"},
                "within",
                "fires first at step=50, but only within 49",
            ),
            (None, {"every": "0s"}, "every", "a period is more than 0s"),
            (None, {"every": "1steps", "num_steps": 1001}, "every", "fires more than 1000 times"),
            (None, {"every": "1ms"}, "every", "fires more than 1000 times"),
            (None, {"rate": "999999999/ms"}, "rate", "end it with count or within"),
        ],
    )
    def test_say_what_contradicts_what(self, first, said, key, message):
        with pytest.raises(UsageError) as refused:
            triggers(first, **said)
        assert refused.value.key == key
        assert message in str(refused.value)

    def test_as_many_as_may_be(self):
        assert len(steps(None, every="1steps", num_steps=MAX_INCIDENTS)) == MAX_INCIDENTS
