from dataclasses import replace

import pytest

from harness.judging.summarize import summarize
from harness.judging.summary import UNKNOWN
from harness.report.story import about, chronicle, story
from tests.harness import synthetic
from tests.harness.analysis.test_attempts import restarted
from tests.harness.summaries import EMPTY, incident, summary
from tests.harness.synthetic import Fault

pytestmark = pytest.mark.unit


def told(raw):
    return " ".join(story(raw))


def test_a_run_in_sentences():
    text = told(summarize(synthetic.run()))
    for sentence in (
        "The job committed 60 of 60 planned steps; none lost.",
        "kill-node hit node 1 at step 20 (backward); the job detected it after 5 ms and committed its next "
        "step 0.19 s after the fault.",
        " s after the repair started.",
        "% lower than before (40,960 to ",
        "Its final loss differs by 0.00% from that of the fault-free baseline",
    ):
        assert sentence in text


def test_a_speed_that_rose_is_no_negative_drop():
    assert "3.0% higher than before" in told(summary(throughput_drop_ratio=-0.03))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"injected": False, "verified": False}, "kill-node on node 1 at step 20 (backward) was never injected."),
        ({"verified": False}, "was injected on node 1 at step 20 (backward), but its effect could not be verified."),
        ({"recovery_seconds": None, "recovered": False}, "It did not recover"),
    ],
)
def test_what_did_not_happen_is_not_told_as_if_it_had(changes, words):
    text = told(summary(incidents=[incident(**changes)]))
    assert words in text and "committed its next step" not in text


def test_a_job_that_ended_early_did_not_come_off_without_a_loss():
    assert "none lost" not in told(summary(steps_committed=19))


def test_many_faults_are_counted():
    some = [incident(incident=index, verified=index > 0) for index in range(5)]
    text = told(summary(incidents=some))
    assert "5 faults were planned (5 x kill-node); 4 of them were verified." in text
    assert "The job recovered from all of those: median 0.19 s, maximum" in text


def test_of_a_command_it_is_told_how_often_it_was_started():
    text = told(summarize(restarted(samples=4)))
    assert "in 2 attempts of its launcher" in text and "2 of them recomputed" in text


def test_nothing_known_is_nothing_made_up():
    assert story(UNKNOWN) == ["The job committed an unknown number of steps.", "No fault was injected."]
    assert "None" not in told(EMPTY)
    assert about(UNKNOWN, []) == []


def test_what_the_run_was():
    events = synthetic.run()
    assert about(summarize(events), events)[1:] == [
        "8 ranks on 4 nodes",
        "model llama-tiny",
        "4 replicas of 2 stages",
        "takeover strategy ndb",
        "groups over gloo",
        "seed 7",
    ]


def test_a_long_chronicle_is_cut_in_its_middle():
    lines, left_out = chronicle(synthetic.run())
    assert left_out == 0 and any("failure of ranks 2 and 3 detected" in row.words for row in lines)
    faults = [Fault(step=10 + 4 * index, node=index % 4, repair_steps=2) for index in range(40)]
    lines, left_out = chronicle(synthetic.run(steps=200, faults=faults))
    assert len(lines) == 200 and left_out > 0
    assert "completed" in lines[-1].words


def test_the_steps_of_the_rows_go_back_only_where_the_job_does():
    events = synthetic.run(faults=[Fault(), Fault(step=30, node=2, repair_steps=5)], baseline=False)
    lines, _ = chronicle(events)
    steps = [int(row.step) for row in lines if row.step]
    assert steps == sorted(steps)
    assert next(row.step for row in lines if "reconnected" in row.words) == "20", "with which training continues"


def test_of_events_at_one_time_the_earlier_step_comes_first():
    one = synthetic.run(baseline=False)[0]
    at_once = [replace(one, kind="warning", step=step, fields={"message": f"of {step}"}) for step in (500, 499)]
    lines, _ = chronicle([one, *at_once])
    assert [row.step for row in lines if row.words.startswith("warning")] == ["499", "500"]
