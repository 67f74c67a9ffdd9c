import asyncio
import io
import random
import re
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.live.lines import HOLD_SECONDS, PlainView
from harness.live.live import LiveView, Screen, open_view
from harness.live.progress import RunProgress
from mecefo_runtime.system.events import Event
from tests.examples import FEW
from tests.harness import synthetic
from tests.harness.synthetic import Fault, shifted

pytestmark = pytest.mark.unit


def plain(events):
    stream = io.StringIO()
    with PlainView(stream) as view:
        for event in events:
            view.feed(event)
    return stream.getvalue().splitlines()


def live(events, *, width=100, height=40, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    view = LiveView(Console(file=file, force_terminal=True, width=width, height=height), clock=lambda: 1010.0)
    for event in events:
        view.feed(event)
    return view


def until(events, kind):
    """The events up to and with the first of a kind."""
    index = next(index for index, event in enumerate(events) if event.kind == kind)
    return events[: index + 1]


def assert_ordered(lines):
    """That neither the times nor the steps run backwards."""
    columns = [(float(line.split("s ")[0]), int(([*line.split("step "), "0"])[1].split()[0])) for line in lines]
    assert columns
    assert columns == sorted(columns)


def _without_steps(events):
    """As of a command, of which nobody knows how many steps it takes."""
    return [replace(e, fields={**e.fields, "steps": None}) if e.kind == "job_started" else e for e in events]


class TestPlainView:
    def test_tells_the_story_in_order(self):
        lines = plain(synthetic.run())
        story = [
            "planned: kill-node on node 1 at step 20 (backward)",
            "job started: 8 ranks, 60 steps",
            "held in the backward phase",
            "kill-node applied to node 1",
            "verified: node 1 killed, process exit of ranks 2 and 3",
            "failure of ranks 2 and 3",
            "layers redistributed over 6 ranks",
            "recovered from kill-node on node 1 in 0.19 s",
            "repair: node 1 with ranks 2 and 3 restarts",
            "ranks 2 and 3 rejoined the job",
            "job completed with 60 steps committed",
            "fault-free baseline: job completed with 60 steps committed",
        ]
        where = [next(i for i, line in enumerate(lines) if words in line) for words in story]
        assert where == sorted(where)

    def test_every_line_has_the_time_since_the_start_and_the_step(self):
        (line,) = [line for line in plain(synthetic.run()) if "killed" in line]
        assert line.split()[:3] == ["3.1s", "step", "20"]

    def test_a_line_for_every_tenth_of_the_steps(self):
        lines = [line for line in plain(synthetic.run(faults=[], baseline=False)) if "% done" in line]
        assert [line.split("% done")[0].split()[-1] for line in lines] == [str(n) for n in range(10, 101, 10)]
        assert all("40,960 tokens/s, loss " in line for line in lines)

    def test_lines_of_the_fault_free_baseline_say_so_where_the_number_of_steps_is_not_known(self):
        told = [line.split(maxsplit=3)[3] for line in plain(_without_steps(synthetic.run())) if "steps done" in line]
        assert {line.split(" done")[0] for line in told} >= {"32 steps", "fault-free baseline: 32 steps"}

    def test_the_time_left_is_estimated(self):
        lines = [line for line in plain(synthetic.run(faults=[], baseline=False)) if "% done" in line]
        left = [int(match[1]) for line in lines[:-1] if (match := re.search(r", about (\d+) s left", line))]
        assert len(left) == 9 and left == sorted(left, reverse=True)
        assert "left" not in lines[-1]

    def test_a_baseline_at_another_pace_has_no_speed_beside_the_jobs(self):
        events = synthetic.run(faults=[])
        unpaced = [
            replace(event, fields={**event.fields, "dilation_ratio": 1.0 if event.job == "main" else 8.0})
            if event.kind == "job_started"
            else event
            for event in events
        ]
        for told, has_speed in ((events, True), (unpaced, False)):
            lines = [line for line in plain(told) if "fault-free baseline: 50% done" in line]
            assert len(lines) == 1 and ("tokens/s" in lines[0]) == has_speed and "loss " in lines[0]

    def test_few_steps_are_told_once_each(self):
        lines = [line for line in plain(synthetic.run(steps=3, faults=[], baseline=False)) if "% done" in line]
        assert [line.split("% done")[0].split()[-1] for line in lines] == ["33", "67", "100"]

    def test_the_step_column_never_runs_backwards(self):
        lines = plain(synthetic.run(baseline=False))
        steps = [int(line.split()[2]) for line in lines if line.split()[1] == "step"]
        assert steps == sorted(steps)

    def test_an_effect_not_seen_is_said_and_no_recovery_is_claimed(self):
        text = "\n".join(plain(synthetic.run(faults=[Fault(verified=False)])))
        assert "the fault could NOT be verified: its processes are still there" in text
        assert "recovered" not in text
        assert "killed" not in text

    @pytest.mark.parametrize("seed", range(5))
    def test_lines_are_in_the_order_in_which_things_happened_although_their_events_are_not(self, seed):
        rng = random.Random(seed)
        events = synthetic.run(baseline=False)
        late = sorted(events, key=lambda event: event.monotonic_seconds + rng.random() * HOLD_SECONDS)
        assert late != events
        lines = plain(late)
        assert_ordered(lines)
        assert len(lines) >= len(plain(events)) - 2, "of two events that say the same the later one may be told"

    def test_in_a_run_a_line_waits_for_what_happened_before_it_and_no_longer(self):
        events = synthetic.run(baseline=False)
        repair = next(i for i, event in enumerate(events) if event.kind == "repair_started")
        recovered = next(i for i, event in enumerate(events) if event.kind == "step_committed" and event.step == 20)
        stream = io.StringIO()

        async def follow():
            with PlainView(stream) as view:
                for event in [*events[:recovered], events[repair], events[recovered]]:
                    view.feed(event)
                assert "recovered" not in stream.getvalue()
                # Nothing more comes, as of a job that stands still, and it is told all the same.
                while "repair:" not in stream.getvalue():
                    await asyncio.sleep(0.01)

        asyncio.run(asyncio.wait_for(follow(), 60.0))
        lines = stream.getvalue().splitlines()
        assert_ordered(lines)
        assert "recovered" in lines[-2] and "repair:" in lines[-1]

    def test_a_step_in_flight_that_still_commits_is_no_recovery(self):
        events = synthetic.run(baseline=False)
        injected = next(e for e in events if e.kind == "injected")
        began_before = [
            synthetic.shifted(e, began_monotonic=injected.monotonic_seconds - 0.01) if e.step == 20 else e
            for e in events
        ]
        told = [line for line in plain(began_before) if "recovered" in line]
        assert [line.split()[2] for line in told] == ["21"]

    def test_a_step_that_was_left_out_as_rejected_is_no_recovery(self):
        events = [
            synthetic.shifted(e, skipped=True) if e.kind == "step_committed" and e.step in (20, 21, 22) else e
            for e in synthetic.run(baseline=False)
        ]
        told = [line for line in plain(events) if "recovered" in line]
        assert [line.split()[2] for line in told] == ["23"]

    def test_what_cannot_be_encoded_or_steers_a_terminal_is_told_harmlessly(self):
        raw = io.BytesIO()
        events = synthetic.run(baseline=False)
        warning = synthetic.shifted(next(e for e in events if e.kind == "verified"), evidence="a\x1b[31m\nb\u2713")
        view = PlainView(io.TextIOWrapper(raw, encoding="ascii"))
        with view:
            view.feed(warning)
            view.message("caf\u00e9\x07")
        assert raw.getvalue().decode("ascii").splitlines()[-1] == "caf\\xe9"
        assert b"a [31m b\\u2713" in raw.getvalue()

    def test_what_reorders_a_line_is_shown(self):
        evil = "a\u202e\u200b\x1bb"
        events = [
            shifted(event, **{key: evil for key, value in event.fields.items() if isinstance(value, str)})
            for event in synthetic.run()
        ]
        for told in ("\n".join(plain(events)), live(events).render().plain):
            assert "a\\u202e" in told or "a   b" in told
            assert not set(told) & {"\u202e", "\u200b", "\x1b"}

    def test_a_reader_that_has_gone_does_not_stop_the_run(self):
        class Gone(io.StringIO):
            writes = 0

            def write(self, text):
                self.writes += 1
                raise BrokenPipeError

        stream = Gone()
        with PlainView(stream) as view:
            for event in synthetic.run():
                view.feed(event)
        assert stream.writes == 1
        closed = io.StringIO()
        closed.close()
        with PlainView(closed) as view:
            view.message("nobody hears this")


class TestLiveView:
    def test_shows_who_holds_which_layers(self):
        text = live(until(synthetic.run(), "regrouped")).render().plain
        assert "rank 0: layers 0-1" in text
        assert "rank 1: layers 2-3" in text
        assert "GONE" not in text

    def test_marks_the_lost_and_the_degraded(self):
        events = synthetic.run()
        regrouped = [i for i, e in enumerate(events) if e.kind == "regrouped"][1]
        text = live(events[: regrouped + 1]).render().plain
        assert "rank 2: GONE" in text
        assert "~0,1,2,3" in text
        assert "approximated" in text

    def test_after_the_rejoin_all_is_as_before(self):
        text = live(synthetic.run()).render().plain
        assert "GONE" not in text
        assert "~" not in text
        assert "kill-node on node 1 at step 20: recovered in 0.19 s, rejoined" in text

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            ("incidents_planned", "armed"),
            ("held", "target held"),
            ("injected", "applied, not yet verified"),
            ("verified", "verified"),
            ("detected", "failure detected"),
        ],
    )
    def test_an_incident_is_shown_at_every_stage(self, kind, words):
        text = live(until(synthetic.run(), kind)).render().plain
        assert f"kill-node on node 1 at step 20: {words}" in text

    def test_the_speed_is_set_against_the_one_before_the_fault(self):
        text = live(synthetic.run(baseline=False, cut_off_after_step=30)).render().plain
        assert "32,768 tokens/s (-20% against 40,960 before the fault)" in text

    def test_the_warm_up_of_a_job_that_goes_on_from_a_checkpoint_is_left_out(self):
        events = [replace(e, step=e.step and e.step + 40) for e in synthetic.run(baseline=False, cut_off_after_step=30)]
        slow = [shifted(e, tokens=1) if e.kind == "step_committed" and e.step in range(41, 46) else e for e in events]
        few = [e for e in slow if e.kind != "step_committed" or (e.step or 0) <= 52 or (e.step or 0) > 60]
        assert "against 40,960 before the fault" in live(few).render().plain

    def test_the_baseline_has_its_own_bar(self):
        assert "baseline" not in live(synthetic.run(baseline=False)).render().plain
        assert "60/60 steps, completed" in live(synthetic.run()).render().plain.split("baseline")[1]

    def test_fits_a_small_and_an_ascii_terminal(self):
        view = live(synthetic.run(), width=60, height=12, encoding="ascii")
        text = view.render().plain
        text.encode("ascii")
        assert "training  ####" in text

    def test_many_nodes_are_cut_down_to_the_troubled_ones(self):
        progress = RunProgress()
        ranks = [rank for rank in range(128) if rank not in (100, 101)]
        started = {"num_ranks": 128, "nodes": 64, "steps": 10}
        for kind, fields in (
            ("job_started", started),
            ("regrouped", {"members": ranks}),
            ("detected", {"lost": [100, 101]}),
        ):
            progress.feed(Event(kind, "coordinator", 1.0, 1.0, 1, fields=fields))
        text = Screen(progress, 80, 24).draw(0.0, []).plain
        assert "node 50" in text
        assert "and 63 nodes more" in text
        assert len(text.splitlines()) < 24

    def test_draws_on_a_terminal_and_leaves_the_last_screen(self):
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=100, height=40, color_system=None)
        with LiveView(console) as view:
            for event in synthetic.run():
                view.feed(event)
            view.message("the report follows")
        assert "60/60 steps, completed" in file.getvalue()
        assert "the report follows" in file.getvalue()

    def test_can_be_drawn_while_it_is_fed(self):
        view, failures = live([]), []
        done, drawn = threading.Event(), threading.Event()

        def draw():
            try:
                while not done.is_set():
                    view.render()
                    drawn.set()
            except Exception as error:
                failures.append(error)
                drawn.set()

        thread = threading.Thread(target=draw)
        thread.start()
        events = synthetic.run(faults=[Fault(), Fault(step=25, node=2)])
        for number, event in enumerate(events):
            # Now and then a picture is drawn in between, however quick this thread is.
            if number % 10 == 0:
                drawn.clear()
                assert drawn.wait(timeout=120)
            view.feed(event)
        done.set()
        thread.join(timeout=120)
        assert failures == []

    def test_nothing_fed_is_still_a_screen(self):
        assert "waiting for the job" in live([]).render().plain


class TestAnyOrder:
    @FEW
    @given(st.randoms(use_true_random=False))
    def test_events_in_any_order_break_no_view(self, rng: random.Random):
        events = synthetic.run(faults=[Fault(), Fault(node=2, during_regroup=True)], residue=[1])
        rng.shuffle(events)
        assert plain(events)
        assert live(events).render().plain

    @pytest.mark.parametrize(
        "kind", sorted({e.kind for e in synthetic.run(ended="halted", residue=[1])} | {"job_failed"})
    )
    def test_an_event_without_its_fields_breaks_no_view(self, kind):
        bare = Event(kind=kind, source="rank", time_seconds=1.0, monotonic_seconds=1.0, pid=1)
        plain([bare])
        assert live([bare]).render().plain


class TestOpenView:
    def test_lines_where_there_is_no_terminal(self):
        assert isinstance(open_view(io.StringIO()), PlainView)

    def test_a_screen_on_a_terminal_unless_lines_are_wanted(self, monkeypatch):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        terminal = io.StringIO()
        terminal.isatty = lambda: True
        assert isinstance(open_view(terminal), LiveView)
        assert isinstance(open_view(terminal, plain=True), PlainView)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(open_view(terminal), PlainView)
