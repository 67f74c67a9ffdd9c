"""The report of a set: as text, as a plot, as a page; whatever the figures and the names are."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.comparison.figures import DECIDING
from harness.comparison.page import PAGE_FILE, PLOT_FILE, render, write_pages
from harness.comparison.plot import plot
from harness.comparison.rounds import REFUSED
from harness.comparison.sample import Run
from harness.comparison.text import against_lines, headline, notes, set_lines
from harness.comparison.verdicts import judge_against, judge_comparison, judge_repetition
from tests.harness.comparison.samples import EXPERIMENT, run, run_set, sample

pytestmark = pytest.mark.unit


def text(found, **options):
    return "\n".join(set_lines(found, judge_comparison(found), "/sets/1", **options))


def test_every_strategy_has_its_median_range_and_bar():
    shown = text(run_set(sample(0.3, 0.4, 0.5), sample(4.0, 3.0, 5.0, label="checkpoint")))
    assert "mecefo            0.40 s   0.30 s to 0.50 s         3 ██" in shown
    assert f"checkpoint        4.00 s   3.00 s to 5.00 s         3 {'█' * 19}{'░' * 5}" in shown
    assert "forked from a process that has torch imported" in shown.replace("\n    ", " ")


def test_without_unicode_there_are_other_bars():
    assert text(run_set(sample(0.3)), unicode=False).isascii()


def test_it_fits_a_terminal():
    lines = text(run_set(sample(0.3, 0.4), sample(4.0, 3.0, label="checkpoint"))).splitlines()
    assert max(map(len, lines)) <= 80


def test_what_failed_is_a_row_that_says_so():
    refused = replace(sample(0.0, label="checkpoint"), runs=[Run(REFUSED, error="give a repair")])
    died = replace(sample(0.0, label="ndb"), runs=[Run("error", error="the disk is full"), run("halted")])
    shown = text(run_set(sample(0.3, 0.2), refused, died))
    assert "checkpoint: cannot be run" in shown and shown.count("give a repair") == 1
    assert "1: no run" in shown and shown.count("the disk is full") == 1
    assert "ndb: 0 of 2 pass" in shown


@pytest.mark.parametrize("kind", ["comparison", "repetition"])
def test_the_reason_of_a_run_stands_once(kind):
    bad = replace(run("inconclusive"), reasons=("not verified",), round=1)
    failed = replace(run("fail", but_gates="pass"), reasons=("gate 'x' failed",), round=2)
    found = replace(run_set(replace(sample(0.0), runs=[bad, failed]), kind=kind))
    verdict = judge_comparison(found) if kind == "comparison" else judge_repetition(found)
    shown = "\n".join(set_lines(found, verdict, "/sets/1"))
    # A failed gate of one run is no reason of the set's verdict.
    assert (shown.count("not verified"), shown.count("gate 'x' failed")) == (1, 1)
    assert "2: fail" in shown


def test_a_comparison_is_complete_or_partial_not_passed():
    found = run_set(sample(1.0))
    assert headline(found, judge_comparison(found)) == "complete"
    partial = replace(found, status="partial")
    assert headline(partial, judge_comparison(partial)) == "halted, partial"
    again = replace(found, kind="repetition")
    assert headline(again, judge_repetition(again)) == "pass"


def test_interrupted_it_says_what_ran_and_explains_nothing_that_did_not():
    restarts = replace(sample(0.0, label="checkpoint"), runs=[])
    found = replace(
        run_set(sample(0.3, label="exact"), replace(sample(0.0, label="ndb"), runs=[run("halted")]), restarts),
        status="partial",
        num_rounds=2,
    )
    verdict = judge_comparison(found)
    assert (verdict.verdict, verdict.exit_code) == ("halted", 2)
    assert "interrupted: of 2 rounds, exact ran 1, ndb ran none, checkpoint ran none" in verdict.reasons
    shown = text(found)
    assert "Not every round was run: of 2 rounds, exact ran 1" in shown
    assert "checkpoint: not run" in shown and "checkpoint: not run" in render(found, verdict)
    assert "forked" not in shown and "Every round" not in shown
    halfway = replace(found, samples=[sample(0.3, label="exact"), replace(restarts, runs=[run("halted")])])
    assert not any("forked" in note for note in notes(halfway))


def test_of_who_starts_again_it_is_said_from_what():
    def said(label, **job):
        found = sample(0.3, label=label, experiment={**EXPERIMENT, "job": {"strategy": label, **job}})
        return next(note for note in notes(run_set(found)) if "forked" in note)

    snapshots, checkpoint = {"every": 1, "protection": "xor"}, {"every_steps": 20}
    assert "the newest of its checkpoints (every 20 steps)." in said("checkpoint", checkpoint=checkpoint)
    in_memory = "snapshots in the nodes' memory (every step, protection xor)"
    assert f"the newest of its {in_memory}." in said("reft", snapshots=snapshots)
    both = said("reft", snapshots={**snapshots, "every": "auto"}, checkpoint=checkpoint)
    assert "(at the cheapest interval, protection xor) and checkpoints (every 20 steps)." in both


def test_a_set_that_broke_down_was_not_interrupted():
    full = replace(sample(0.0, label="ndb"), runs=[Run("error", error="the disk is full")])
    verdict = judge_comparison(replace(run_set(sample(0.3), full), status="partial", num_rounds=2))
    assert verdict.exit_code == 3
    assert verdict.reasons[-1] == "ended early: of 2 rounds, mecefo ran 1, ndb ran none"


def test_a_strategy_that_is_refused_was_in_no_round():
    refused = replace(sample(0.0, label="checkpoint"), runs=[Run(REFUSED, error="give a repair")])
    said = notes(run_set(sample(0.3), refused))
    assert said == ["Every round ran mecefo in turn, with the same seed and the same faults."]


def test_dilation_is_said_and_no_restart_where_there_was_none():
    assert not any("restart" in note for note in notes(run_set(sample(1.0))))
    assert any("Time dilation 8" in note for note in notes(run_set(sample(1.0, machine={"dilation": 8.0}))))


def test_a_machine_that_was_too_busy_is_said():
    busy = replace(sample(1.0), runs=[replace(run(), dilation_overrun_ratio=0.31)])
    assert any("up to 31% longer" in note for note in notes(run_set(busy)))
    assert not any("busy" in note for note in notes(run_set(sample(1.0))))


def test_a_baseline_is_shown_figure_by_figure():
    found = judge_against([sample(2.0, 2.0, 2.0)], [sample(1.0, 1.0, 1.0)], ["recovery_seconds"], 0.05)
    lines = list(against_lines(found, "now", "before"))
    assert lines[0] == "now against before: FAIL"
    assert any(line.split() == ["recovery_seconds", "2.00", "s", "1.00", "s", "0", "ms", "worse"] for line in lines)


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6), max_size=4), min_size=1, max_size=4),
    st.text(max_size=12),
    st.sampled_from(["recovery_seconds", "throughput_drop_ratio", "steps_lost"]),
)
def test_the_plot_is_sound_for_any_figures_and_names(figures, label, name):
    samples = [sample(*values, label=f"{label}{index}", name=name) for index, values in enumerate(figures)]
    root = ElementTree.fromstring(plot(run_set(*samples)))
    dots = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(dots) == sum(map(len, figures))
    width = float(root.attrib["viewBox"].split()[2])
    assert all(0 <= float(dot.attrib["cx"]) <= width for dot in dots)


def test_the_page_has_all_and_takes_no_markup_from_names(tmp_path):
    found = run_set(sample(0.3, 0.5), replace(sample(4.0, label="<b>"), runs=[Run("error", error="<script>")]))
    page = render(found, judge_comparison(found))
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert '<a href="../../x/1/report.html">pass</a>' in page
    assert "0.40 s" in page
    write_pages(found, judge_comparison(found), tmp_path)
    assert (tmp_path / PAGE_FILE).read_text() == page
    ElementTree.parse(tmp_path / PLOT_FILE)


def test_of_single_runs_both_figures_stand_beside_each_other_and_one_sentence_above_them():
    now = replace(sample(0.0), runs=[run(recovery_seconds=2.0, wall_clock_seconds=9.0, steps_lost=0.0)])
    base = replace(sample(0.0), runs=[run(recovery_seconds=1.0, wall_clock_seconds=7.0, steps_lost=0.0)])
    lines = list(against_lines(judge_against([now], [base], DECIDING, 0.05), "now", "before"))
    assert max(map(len, lines)) <= 80
    assert "cannot tell" not in "\n".join(lines)
    assert " ".join(" ".join(lines).split()).count("one run on each side") == 1
    rows = [line.split() for line in lines]
    assert ["recovery_seconds", "2.00", "s", "1.00", "s", "-"] in rows
    assert ["wall_clock_seconds", "9.00", "s", "7.00", "s", "-"] in rows
    assert ["steps_lost", "0", "0", "0", "within", "noise"] in rows
