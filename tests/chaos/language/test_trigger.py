import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.language.trigger import OPEN_PHASES, OUTSIDE_PHASES, PHASES, Duration, Trigger

pytestmark = pytest.mark.unit


class TestDuration:
    @pytest.mark.parametrize(
        ("text", "duration"),
        [
            ("30s", Duration(seconds=30.0)),
            ("1500ms", Duration(seconds=1.5)),
            ("2min", Duration(seconds=120.0)),
            ("1h", Duration(seconds=3600.0)),
            ("0.25 s", Duration(seconds=0.25)),
            ("0s", Duration(seconds=0.0)),
            ("15steps", Duration(steps=15)),
            ("1step", Duration(steps=1)),
        ],
    )
    def test_reads(self, text, duration):
        assert Duration.parse(text) == duration

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("30", "'30' has no unit: write 30s or 30steps"),
            (30, "30 has no unit: write 30s or 30steps"),
            ("30sec", "'sec' is no unit"),
            ("5setps", "'setps' is no unit: use one of ms, s, min, h, step, steps (did you mean 'steps'?)"),
            ("1.5steps", "whole numbers"),
            ("0steps", "write at least 1step"),
            ("-1s", "is not a duration"),
            ("1e3s", "is not a duration"),
            ("٣s", "is not a duration"),
            ("9" * 400 + "s", "is not a duration"),
            ("", "is not a duration"),
            (None, "null is not a duration"),
            (True, "true is not a duration"),
            (["30s"], "is not a duration"),
        ],
    )
    def test_refuses(self, value, message):
        with pytest.raises(UsageError) as refused:
            Duration.parse(value)
        assert message in str(refused.value)

    @pytest.mark.parametrize("values", [{}, {"seconds": 1.0, "steps": 1}, {"seconds": float("nan")}, {"seconds": -1.0}])
    def test_is_exactly_one_of_seconds_and_steps(self, values):
        with pytest.raises(UsageError):
            Duration(**values)

    @given(
        st.one_of(
            st.integers(1, 10**9 - 1).map(lambda n: Duration(steps=n)),
            st.integers(0, 10**9).map(lambda n: Duration(seconds=n / 1000)),
        )
    )
    def test_text_round_trips(self, duration):
        assert Duration.parse(str(duration)) == duration


class TestTrigger:
    @pytest.mark.parametrize(
        ("value", "trigger"),
        [
            ("step=500", Trigger(step=500, phase="forward")),
            ("step=500,phase=backward", Trigger(step=500, phase="backward")),
            (" phase = commit , step = 7 ", Trigger(step=7, phase="commit")),
            ("time=10s", Trigger(at_seconds=10.0)),
            ("time=1500ms", Trigger(at_seconds=1.5)),
            ({"step": 100}, Trigger(step=100)),
            ({"step": 100, "phase": "backward"}, Trigger(step=100, phase="backward")),
            ({"time": "10s"}, Trigger(at_seconds=10.0)),
            ("phase=regroup", Trigger(phase="regroup")),
            ("step=100,phase=transfer", Trigger(step=100, phase="transfer")),
            ({"phase": "regroup"}, Trigger(phase="regroup")),
            ({"step": 7, "phase": "regroup"}, Trigger(step=7, phase="regroup")),
        ],
    )
    def test_reads(self, value, trigger):
        assert Trigger.parse(value) == trigger

    @pytest.mark.parametrize(
        ("value", "key", "message"),
        [
            ("step=0", "step", "steps count from 1"),
            ("step=-3", "step", "whole number from 1, not '-3'"),
            ("step=1e3", "step", "whole number"),
            ({"step": 1.0}, "step", "whole number"),
            ({"step": True}, "step", "whole number from 1, not true"),
            ({"step": None}, "step", "whole number"),
            ({"step": 10**30}, "step", "whole number"),
            ("step=5,phase=bakward", "phase", "(did you mean 'backward'?)"),
            (
                "step=5,phase=rendezvous",
                "phase",
                "the phases of a step are data, forward, backward, reduce, optimizer, commit, checkpoint; of its "
                "snapshot snapshot, encode; outside of steps there are regroup, transfer",
            ),
            ({"step": 5, "phase": 3}, "phase", "not 3"),
            ("step=5,time=10s", None, "contradict"),
            ({"step": 5, "time": "10s"}, None, "contradict"),
            ("time=10s,phase=backward", "phase", "a phase belongs to a step"),
            ("time=10s,phase=regroup", "phase", "contradict"),
            ("step=5,phase=regrup", "phase", "(did you mean 'regroup'?)"),
            ("phase=forward", None, "not said when"),
            ("time=10", "time", "'10' has no unit"),
            ("time=10steps", "time", "write step=10 instead"),
            ("stepp=5", None, "(did you mean 'step'?)"),
            ({"stepp": 5}, "stepp", "(did you mean 'step'?)"),
            ({5: 5}, "5", "there is no 5 in a trigger"),
            ("step=5,step=6", None, "says 'step' twice"),
            ("step=", None, "empty part"),
            ("step=5,", None, "empty part"),
            ("step", "step", "whole number"),
            ("phase=backward", None, "not said when"),
            ({}, None, "not said when"),
            ("", None, "empty part"),
            (500, None, "write step=500 or time=500s"),
            (None, None, "null is no trigger"),
            ([5], None, "is no trigger"),
        ],
    )
    def test_refuses(self, value, key, message):
        with pytest.raises(UsageError) as refused:
            Trigger.parse(value)
        assert message in str(refused.value)
        assert refused.value.key == key

    @given(st.integers(1, 10**9 - 1), st.sampled_from((*PHASES, *OPEN_PHASES)))
    def test_text_of_a_step_round_trips(self, step, phase):
        trigger = Trigger(step=step, phase=phase)
        assert Trigger.parse(str(trigger)) == trigger
        assert trigger.is_outside_steps == (phase in OUTSIDE_PHASES)

    @pytest.mark.parametrize("phase", OUTSIDE_PHASES)
    def test_a_regroup_needs_no_step(self, phase):
        trigger = Trigger(phase=phase)
        assert str(trigger) == f"phase={phase}"
        assert Trigger.parse(str(trigger)) == trigger

    @given(st.integers(0, 10**9))
    def test_text_of_a_time_round_trips(self, milliseconds):
        trigger = Trigger(at_seconds=milliseconds / 1000)
        assert Trigger.parse(str(trigger)) == trigger

    @given(st.one_of(st.text(max_size=30), st.text("step=phase,time0123 s", max_size=20)))
    def test_any_text_is_read_or_refused(self, text):
        try:
            trigger = Trigger.parse(text)
        except UsageError:
            return
        assert Trigger.parse(str(trigger)) == trigger
