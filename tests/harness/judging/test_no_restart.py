"""A command that dies of a fault names what would have started it again, where its launcher is known."""

import pytest

from tests.harness.analysis.test_attempts import KILLED, Log
from tests.harness.summaries import summarized

pytestmark = pytest.mark.unit

TORCHRUN = "Its launcher was allowed no restart: `torchrun --max-restarts 1 ...` starts the ranks again"
ACCELERATE = "Its launcher was allowed no restart: `accelerate launch --max_restarts 1 ...` starts the ranks again"


def died(*, launcher="torchrun", num=None, limit=None, attempts=1, exit_code=1, world_size=2, pids=(), has_fault=True):
    """Of a fault in the last attempt; `pids` are the processes that the fault ended."""
    log = Log()
    log.events[-1].fields["launcher"] = launcher
    log.tell("process_started", role="launcher", started_pid=7)
    for number in range(1, attempts + 1):
        log.attempt(number)
        log.events[-3].fields.update(num_restarts=num, max_restarts=limit, world_size=world_size)
        log.steps(number, KILLED * number, KILLED * number + 9)
    if has_fault:
        log.kill(attempts)
        log.events[-4].fields["processes"] = [{"pid": pid} for pid in pids]
    log.tell("job_failed", reason="it died", exit=exit_code)
    return summarized(log.end("failed"))["reasons"][0]


@pytest.mark.parametrize(
    ("knobs", "cure"),
    [
        ({"num": 0, "limit": 0}, f". {TORCHRUN}"),
        ({"num": 0, "limit": 0, "launcher": "accelerate"}, f". {ACCELERATE}"),
        # A shell script whose text is not known runs torchrun.
        ({"num": 0, "limit": 0, "launcher": None}, f". {TORCHRUN}"),
        ({"num": 1, "limit": 1, "attempts": 2}, ". Its launcher had used up its 1 restart (--max-restarts 1)"),
        (
            {"num": 3, "limit": 3, "attempts": 4, "launcher": "accelerate"},
            ". Its launcher had used up its 3 restarts (--max_restarts 3)",
        ),
        # A restart was left, or the launcher is not known.
        ({"num": 0, "limit": 2}, ""),
        ({"num": None, "limit": None}, ""),
        ({"launcher": "mpirun"}, ""),
        ({"launcher": None}, ""),
        # It stood still, and did not end.
        ({"num": 0, "limit": 0, "exit_code": None}, ""),
        # A loop around Python starts it again.
        ({"launcher": "python", "world_size": 1, "attempts": 2}, ""),
    ],
)
def test_the_cure_is_named_where_it_is_known(knobs, cure):
    assert died(**knobs) == f"the job did not survive: it died{cure}"


def test_plain_python_is_put_under_a_launcher_and_a_script_that_starts_its_ranks_under_a_supervisor():
    alone, spawning = (died(launcher="python", world_size=ranks) for ranks in (1, 2))
    assert "without a launcher: `torchrun --max-restarts 1 ...`, or a supervisor" in alone
    assert "without a launcher: a supervisor" in spawning


@pytest.mark.parametrize(
    ("launcher", "limit", "cure"),
    [
        ("torchrun", 1, ". A supervisor (a shell loop, systemd, a scheduler that requeues) would"),
        ("python", None, ". `torchrun --max-restarts 1 ...`, or a supervisor (a shell loop, systemd, a scheduler that "
         "requeues), would"),
    ],
)  # fmt: skip
def test_the_restarts_of_a_launcher_do_not_help_where_the_fault_ended_it(launcher, limit, cure):
    reason = died(launcher=launcher, num=limit, limit=limit, exit_code=-9, pids=(7,), world_size=1)
    assert reason.endswith(f"ended the command's own process, and nothing started it again{cure}")


def test_a_job_that_fails_without_a_fault_is_given_no_cure():
    assert died(num=0, limit=0, has_fault=False) == "the job failed by itself, before any fault was injected: it died"
