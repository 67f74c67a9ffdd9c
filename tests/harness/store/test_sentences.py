"""Sentences of logs without codes are translated, each to its code, and stay as they were written."""

import pytest

from chaos.refusals import refusal_text
from harness.store.log import parse_line
from harness.store.sentences import with_code
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.records import parse
from tests import stored

pytestmark = pytest.mark.unit

NOT_FIRED = [
    ("no_snapshot", "no snapshot of step 20 or a later one was copied by rank=2 before the job ended"),
    ("no_snapshot", "no snapshot of step 20 or a later one was encoded on the nodes of rank=2 before the job ended"),
    (
        "began_behind",
        "the job began at step 51, behind step=20: it went on from a checkpoint of its own; --reset 'rm -rf ...' "
        "removes it before each start; of a command in containers, remove it yourself",
    ),
    ("rank_absent", "rank=2 was not in the job when the job reached step=5"),
    ("rank_absent", "rank=2 was not in the job, or not observed, when the job reached step=5"),
    (
        "rank_absent_or_no_phase",
        "rank=2 was not in the job when the job reached step=5,phase=backward, or has no such phase in that step",
    ),
    (
        "phase_in_other_steps",
        "rank 0 has no checkpoint phase in step 25; it came in steps 20 and 40: write --at step=20",
    ),
    ("phase_in_other_steps", "ranks 0 and 1 have no checkpoint phase in step 25; it came every 20 steps from 20 to 80"),
    (
        "phase_on_other_ranks",
        "rank 1 saves no checkpoint; rank 0 does, in steps 20 and 40: write --on rank=0",
    ),
    ("phase_on_other_ranks", "ranks 1 and 2 have no forward phase; rank 0 has, in step 3"),
    ("phase_never_came", "no snapshot phase came in the job; the phases seen are forward, backward and optimizer"),
    ("job_ended_before", "the job ended before rank=2 came to step=700"),
    ("job_ended_before", "the job ended before step=700"),
    ("max_nodes", "2 nodes would be affected at once, more than max_nodes 1"),
    ("max_ranks", "4 ranks would be affected at once, more than max_ranks 3"),
    ("min_healthy", "3 of 8 ranks would be healthy, less than min_healthy 0.5"),
    (
        "exclusive",
        "incident 0 (pause-process) is still active on rank 3, and only one fault at a time can change whether a "
        "process runs",
    ),
]
REFUSED = [
    ("no_checkpoints", "the job writes no checkpoints: give it --checkpoint-every 20"),
    ("part_delivered", "node 1's snapshot of step 5: bit 3 of byte 8 flipped: the process still delivers it"),
    ("still_running", "still running after 5 s: rank 1 (pid 77)"),
    ("still_running", "still running after 5 s: rank 1 (pid 77); rank 1 was held in step 20"),
    ("nothing_running", "nothing of rank=3 is running any more"),
    ("chaos_itself", "the target is chaos itself"),
    ("link_carries_traffic", "link 0-1 still carries traffic: 3 of 5 probes came back"),
    ("run_ended_before_verified", "the run ended before its effect was verified"),
    ("too_few_steps", "only 3 steps were committed since, of 8 needed to judge"),
    (
        "no_complete_checkpoint",
        "there is no complete checkpoint in /x/c yet: choose a step some way after the first that writes one",
    ),
    ("unverified", "whatever another version has said of it"),
]  # fmt: skip
FAILED = [
    ("stalled", None, "no step was committed for 60 s after step 30; --stall-timeout waits longer"),
    ("never_began", None, "in 300 s no step was committed"),
    ("all_nodes_gone", None, "all nodes were gone before the first step; see their logs"),
    ("ranks_missing", None, "ranks [2, 3] did not come back within 60 s; see their logs"),
    ("command_killed", -9, "the command was killed by SIGKILL"),
    ("command_failed", 1, "rank 1 raised RuntimeError: injected (train.py:35); the command ended with exit code 1"),
    ("no_rank_completed", 0, "rank 0 ended with exit code 1; the command ended with exit code 0, but none of its ranks "
     "completed; see logs/command.log"),
    ("job_failed", None, "no replica can be made whole"),
]  # fmt: skip


def told(kind, **fields):
    return with_code(Event(kind, "x", 0.0, 0.0, 1, fields=fields)).fields["why"]


@pytest.mark.parametrize(("code", "sentence"), NOT_FIRED)
def test_why_an_incident_did_not_fire(code, sentence):
    assert told("not_due", incident=0, reason=sentence) == {"code": code, "sentence": sentence}
    never = Reason.from_dict(told("unverified", incident=0, reason=f"never fired: {sentence}"))
    assert (never.code, never.get("why").code, refusal_text(never)) == ("never_fired", code, f"never fired: {sentence}")
    refused = Reason.from_dict(told("unverified", incident=0, reason=f"not fired: {sentence}"))
    assert (refused.code, refused.get("why").code) == ("not_allowed", code)


@pytest.mark.parametrize(("code", "sentence"), REFUSED)
def test_why_one_was_not_verified(code, sentence):
    assert told("unverified", incident=0, reason=sentence) == {"code": code, "sentence": sentence}


@pytest.mark.parametrize(("code", "exit_code", "sentence"), FAILED)
def test_why_a_job_failed(code, exit_code, sentence):
    assert told("job_failed", reason=sentence, exit=exit_code) == {"code": code, "sentence": sentence}


def test_the_code_that_a_log_has_is_kept():
    assert told("unverified", incident=0, reason="said otherwise", code="wide")["code"] == "wide"
    never = told("unverified", incident=0, reason="never fired: said otherwise", code="rank_absent")
    assert never["why"]["code"] == "rank_absent"


@pytest.mark.parametrize(
    "event",
    [
        Event("unverified", "x", 0.0, 0.0, 1, fields={"incident": 0, "why": {"code": "own"}, "reason": "said"}),
        Event("unverified", "x", 0.0, 0.0, 1, fields={"incident": 0, "reason": None}),
        Event("regrouped", "x", 0.0, 0.0, 1, fields={"reason": "loss"}),
    ],
)
def test_all_other_events_stay_as_they_are(event):
    assert with_code(event) is event


def test_a_line_of_a_log_is_translated_as_it_is_read():
    raw = Event("not_due", "x", 0.0, 0.0, 1, fields={"incident": 3, "reason": "the job ended before step=700"})
    record = parse(parse_line(raw.to_json().encode() + b"\n"))
    assert record.because == Reason("job_ended_before", sentence="the job ended before step=700")
    assert record.is_after_the_end


def test_every_sentence_of_the_stored_runs_has_its_code(tmp_path):
    codes = set()
    for name in stored.stored(stored.RUNS):
        stored.unpack_run(name, tmp_path / name)
        for line in (tmp_path / name / "events.jsonl").read_bytes().splitlines():
            event = parse_line(line)
            if event is not None and event.kind in ("unverified", "not_due", "job_failed"):
                codes.add((event.kind, event.fields["why"]["code"], event.fields["reason"]))
    assert codes
    assert [one for one in codes if one[0] == one[1]] == []
