"""Why a command's job failed, from its events: what came first, and is no consequence of something else."""

import pytest

from chaos.external.exception_kind import OWN, PEER, TIMEOUT
from chaos.external.traceback_text import PrintedException
from harness.analysis.command.failure_cause import FailureCause, cause_words, read_cause
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import from_json, to_json
from mecefo_runtime.system.records import parse

pytestmark = pytest.mark.unit

GLOO = "[gloo/transport/tcp/pair.cc:537] Timed out waiting 4000ms"
PLACE = {"file": "/home/me/train.py", "line": 35}


class Story:
    """Records with a clock that goes on by a second with each."""

    def __init__(self):
        self.records, self.at = [], 100.0

    def tell(self, kind, *, rank=None, pid=1, step=None, process_attempt=1, **fields):
        self.at += 1.0
        event = Event(kind, "x", self.at, self.at, pid, process_attempt, rank=rank, step=step, fields=fields)
        self.records.append(parse(event))
        return self

    def attempt(self, number, ranks=(0, 1)):
        self.tell("attempt_started", attempt_number=number, world_size=len(ranks))
        for rank in ranks:
            self.started(number, rank)
        return self

    def started(self, number, rank, pid=None):
        pid = pid or 10 * number + rank
        return self.tell("process_started", role="rank", started_pid=pid, started_rank=rank, rank_attempt=number)

    def raised(self, number, rank, exception, message, failure=OWN, step=35, pid=None, **fields):
        told = {**PLACE, "exception": exception, "message": message, "failure": failure, **fields}
        return self.tell("rank_raised", rank=rank, pid=pid or 10 * number + rank, step=step, **told)

    def exited(self, number, rank, code, pid=None):
        pid = pid or 10 * number + rank
        told = {"role": "rank", "exited_pid": pid, "exited_rank": rank, "rank_attempt": number}
        return self.tell("process_exited", exit=code, **told)

    def injected(self, fault, rank, *, is_loss=True, **parameters):
        told = {"incident": 0, "fault": fault, "is_loss": is_loss, "ranks": [rank], "parameters": parameters}
        return self.tell("injected", step=35, **told)

    def words(self, printed=()):
        cause = read_cause(self.records, printed)
        return None if cause is None else cause_words(cause)


def test_the_first_that_has_a_reason_of_its_own():
    story = Story().attempt(1).raised(1, 0, "RuntimeError", GLOO, TIMEOUT).exited(1, 0, 1)
    assert story.words() == f"rank 0 raised RuntimeError: {GLOO} (train.py:35) at step 35"
    story.raised(1, 1, "ValueError", "by itself").raised(1, 0, "ValueError", "later")
    assert story.words() == "rank 1 raised ValueError: by itself (train.py:35) at step 35"


def test_what_chaos_raised_is_the_reason_though_the_rank_was_ended_before_it_told():
    story = Story().attempt(1).injected("raise", 1, exception="RuntimeError", message="injected")
    story.raised(1, 0, "RuntimeError", GLOO, TIMEOUT).exited(1, 0, 1).exited(1, 1, -15)
    assert story.words() == "rank 1 raised RuntimeError: injected at step 35"
    # Where it did, the place is known; what another rank raised in the meantime was later.
    story.raised(1, 0, "ValueError", "no gradient").raised(1, 1, "RuntimeError", "injected", is_injected=True)
    assert story.words() == "rank 1 raised RuntimeError: injected (train.py:35) at step 35"


def test_what_the_script_has_caught_is_none():
    story = Story().attempt(1).injected("raise", 1, exception="RuntimeError", message="injected")
    story.tell("verified", incident=0, evidence={"handled_ranks": [1]})
    assert story.raised(1, 0, "RuntimeError", GLOO, TIMEOUT).words().startswith("rank 0 raised RuntimeError: [gloo")


def test_the_rank_that_a_fault_took_is_the_reason_of_what_its_peers_miss():
    story = Story().attempt(1).injected("kill-process", 1).exited(1, 1, -9)
    story.raised(1, 0, "RuntimeError", "[gloo/transport/tcp/pair.cc:537] Connection closed by peer", PEER)
    assert story.words() == "rank 1 was killed by SIGKILL at step 35 (incident 0, kill-process)"
    # Torchrun ends the other ranks' sessions, and they may fail of that in their own way.
    dead_worker = "DataLoader worker (pid 7) is killed by signal: Terminated. "
    story.raised(1, 0, "RuntimeError", dead_worker)
    assert story.words() == "rank 1 was killed by SIGKILL at step 35 (incident 0, kill-process)"
    # But not of what a later attempt dies of.
    story.attempt(2).raised(2, 0, "FileExistsError", "[Errno 17] File exists: 'step-20'", step=20).exited(2, 0, 1)
    assert story.words().startswith("rank 0 raised FileExistsError: [Errno 17] File exists: 'step-20' (train.py:35)")


def test_ranks_that_trained_on_without_the_lost_one_end_of_something_else():
    story = Story().attempt(1).injected("kill-process", 1).exited(1, 1, -9).raised(1, 0, "ValueError", "x", step=50)
    assert story.words() == "rank 0 raised ValueError: x (train.py:35) at step 50"


def test_an_older_process_of_a_rank_is_not_asked():
    """Replica groups are started again one by one, in one attempt of the job."""
    story = Story().attempt(1).raised(1, 0, "ValueError", "got over").exited(1, 0, 1).started(1, 0, pid=99)
    assert story.words() is None
    assert (
        story.raised(1, 0, "KeyError", "'x'", pid=99).words() == "rank 0 raised KeyError: 'x' (train.py:35) at step 35"
    )


def test_one_that_came_before_any_greeting_counts():
    story = Story().raised(1, 0, "SyntaxError", "invalid syntax (train.py, line 35)", step=None)
    assert story.words() == "rank 0 raised SyntaxError: invalid syntax (train.py, line 35)"


def test_an_attempt_that_came_to_nothing_else_is_one():
    story = Story().attempt(1).injected("kill-process", 1).exited(1, 1, -9)
    assert story.words().startswith("rank 1 was killed")
    story.raised(2, 0, "EOFError", "Ran out of input", step=None, process_attempt=2)
    assert story.words() == "rank 0 raised EOFError: Ran out of input (train.py:35)"


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ({0: -15, 1: -11}, "rank 1 was killed by SIGSEGV"),
        ({1: -6, 0: 3}, "rank 0 ended with exit code 3"),
        ({1: -6}, "rank 1 was killed by SIGABRT"),
        ({1: -15}, "rank 1 was killed by SIGTERM"),
        ({0: 0, 1: None}, None),
    ],
)
def test_how_ranks_ended_is_asked_where_none_told_why(codes, words):
    story = Story().attempt(1)
    for rank, code in codes.items():
        story.exited(1, rank, code)
    assert story.words() == words


def test_the_log_is_asked_where_no_rank_told_of_anything():
    printed = [PrintedException("ValueError", "in the log", "/home/me/train.py", 3)]
    story = Story().attempt(1).exited(1, 0, 1)
    assert story.words(printed) == "ValueError: in the log (train.py:3)"
    assert story.raised(1, 0, "RuntimeError", GLOO, TIMEOUT).words(printed).startswith("rank 0 raised RuntimeError")


def test_the_root_is_told_beside_it():
    causes = [
        {"exception": "RuntimeError", "message": "shard 3", "file": None, "line": None, "link": "remote"},
        {"exception": "OSError", "message": "[Errno 28] No space left on device", **PLACE, "link": "cause"},
    ]
    message = "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n ..."
    words = Story().attempt(1).raised(1, 0, "RuntimeError", message, causes=causes).words()
    assert words == (
        "rank 0 raised RuntimeError: Caught RuntimeError in DataLoader worker process 0 (train.py:35) at step 35, "
        "caused by OSError: [Errno 28] No space left on device (train.py:35)"
    )


def test_what_a_rank_says_does_no_harm():
    story = Story().attempt(1).raised(1, 0, "V\x1b[31m", "a\nb" + "c" * 9000, causes=[{"message": ["no"]}])
    assert "\x1b" not in story.words() and "\n" not in story.words() and len(story.words()) < 500


def test_it_is_read_back_as_it_was_written():
    cause = read_cause(Story().attempt(1).raised(1, 0, "ValueError", "x").records)
    assert from_json(FailureCause, to_json(cause)) == cause
    with pytest.raises(ValueError, match="code"):
        from_json(FailureCause, {"rank": 1})


def test_an_exception_that_a_rank_caught_and_printed_before_it_was_ended_comes_before_the_time_out_of_another():
    """It cleans up for longer than the others wait, and its launcher ends it with them."""
    story = Story().attempt(1).raised(1, 0, "RuntimeError", GLOO, TIMEOUT).exited(1, 0, 1).exited(1, 1, -15)
    printed = [PrintedException("KeyError", "'labels'", "/home/me/train.py", 18)]
    assert story.words(printed) == "KeyError: 'labels' (train.py:18)"


def test_what_an_earlier_attempt_printed_is_not_the_reason_of_a_later_time_out():
    story = Story().attempt(1).raised(1, 1, "KeyError", "'labels'").exited(1, 1, 1).exited(1, 0, -15)
    story.attempt(2).raised(2, 0, "RuntimeError", GLOO, TIMEOUT).exited(2, 0, 1).exited(2, 1, -15)
    printed = [PrintedException("KeyError", "'labels'", "/home/me/train.py", 18)]
    assert story.words(printed) == f"rank 0 raised RuntimeError: {GLOO} (train.py:35) at step 35"
