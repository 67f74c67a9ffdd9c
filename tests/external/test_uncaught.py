"""The exception that ends a rank, as it is told from inside: whatever the script does with its hooks."""

import errno
import sys

import pytest

from chaos.external.uncaught import injected, record_of
from chaos.in_process.crash import Raise
from tests.external.jobs import run_job

RANK = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "1"}


def raised_in(folder, text, *, environment=RANK, options=()):
    """The events of a script of that text, and the job."""
    (folder / "train.py").write_text(text)
    job = run_job(folder, [sys.executable, *options, "train.py"], environment=environment)
    return job.of("rank_raised"), job


def error_of(text):
    try:
        exec(compile(text, "/home/me/train.py", "exec"), {"__name__": "train"})
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.external
def test_it_is_told_before_torch_is_there_with_its_place_and_cause(tmp_path):
    text = (
        "def load():\n"
        "    raise FileNotFoundError(2, 'No such file or directory', 'step-20')\n"
        "try:\n    load()\nexcept OSError as error:\n    raise RuntimeError('no checkpoint') from error\n"
    )
    (event,), job = raised_in(tmp_path, text)
    assert (event.rank, event.attempt, event.step, event.source) == (1, 2, None, "rank")
    told = event.fields
    assert (told["exception"], told["message"], told["failure"]) == ("RuntimeError", "no checkpoint", "own")
    assert (told["file"].rpartition("/")[2], told["line"], told["is_injected"]) == ("train.py", 6, False)
    (cause,) = told["causes"]
    assert (cause["exception"], cause["line"], cause["link"]) == ("FileNotFoundError", 2, "cause")
    assert job.exit_code == 1
    assert "chaos" not in job.stderr and job.stderr.rstrip().endswith("RuntimeError: no checkpoint")


@pytest.mark.external
@pytest.mark.parametrize(
    ("text", "exception", "line"),
    [
        ("x = = 2\n", "SyntaxError", 1),
        ("\nimport a_module_that_is_not_there\n", "ModuleNotFoundError", 2),
        # Hooks that go on to nobody, as rich's; one that ends the process comes too early only without an optimizer.
        ("import sys\nsys.excepthook = lambda *told: print('mine', file=sys.stderr)\n1 / 0\n", "ZeroDivisionError", 3),
        # One that goes on to ours tells it once.
        (
            "import sys\nold = sys.excepthook\ndef hook(*told):\n    old(*told)\n    old(*told)\n"
            "sys.excepthook = hook\n1 / 0\n",
            "ZeroDivisionError",
            7,
        ),
    ],
)
def test_it_is_told_once(tmp_path, text, exception, line):
    (event,), job = raised_in(tmp_path, text)
    assert (event.fields["exception"], event.fields["line"], job.exit_code) == (exception, line, 1)
    assert "chaos" not in job.stderr.replace(str(tmp_path), "")


@pytest.mark.external
@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("raise SystemExit(3)\n", RANK),
        ("raise KeyboardInterrupt\n", RANK),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass\n", RANK),
        # A launcher, and whatever else the command starts beside its ranks.
        ("1 / 0\n", {}),
        # What a rank has started itself.
        ("1 / 0\n", {**RANK, "CHAOS_RANK_PID": "1"}),
        ("1 / 0\n", {**RANK, "CHAOS_STARTED_PID": "1 0"}),
        ("import os\nif os.fork() == 0:\n    1 / 0\nos.wait()\n", RANK),
    ],
)
def test_what_is_no_rank_or_no_exception_is_not_told(tmp_path, text, environment):
    events, job = raised_in(tmp_path, text, environment=environment)
    assert not events and "chaos" not in job.stderr.replace(str(tmp_path), "")


@pytest.mark.external
def test_a_hook_that_ends_the_process_comes_after_ours_once_there_is_an_optimizer(tmp_path):
    text = (
        "import os, sys, torch\n"
        "def hook(*told):\n    os._exit(7)\nsys.excepthook = hook\n"
        "model = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(1, 9):\n"
        "    model(torch.ones(2)).sum().backward()\n    optimizer.step()\n"
        "    if step == 5:\n        raise ValueError('by itself')\n"
    )
    (event,), job = raised_in(tmp_path, text, environment={"RANK": "0", "WORLD_SIZE": "1"})
    assert job.exit_code == 7
    assert (event.step, event.fields["last_step"], event.fields["message"]) == (5, 5, "by itself")


@pytest.mark.unit
def test_the_exception_of_a_worker_is_the_root_of_the_one_that_is_raised_for_it():
    text = (
        "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/home/me/data.py", line 12, in __getitem__\n    shard.write(row)\n'
        "OSError: [Errno 28] No space left on device\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop\n'
        "    data = fetcher.fetch(index)\n"
        '  File "/home/me/data.py", line 14, in __getitem__\n    raise RuntimeError("shard 3") from error\n'
        "RuntimeError: shard 3\n"
    )
    told = record_of(RuntimeError(text))
    assert [(one["exception"], one["message"], one["line"], one["link"]) for one in told.causes] == [
        ("RuntimeError", "shard 3", 14, "remote"),
        ("OSError", "[Errno 28] No space left on device", 12, "cause"),
    ]


@pytest.mark.unit
def test_what_the_handler_of_a_signal_raises_while_a_rank_is_held_is_not_injected():
    def handler(number, frame):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated. ")

    def hold(crash):
        if crash is None:
            handler(17, None)
        crash.released()

    crash = Raise({"exception": "RuntimeError", "message": "injected"}, None, lambda told: None)
    crash.begin(3, "forward")
    told = []
    for held in (None, crash):
        with pytest.raises(RuntimeError) as raised:
            hold(held)
        told.append(injected(raised.value))
    assert told[0] is None and told[1].is_injected and told[1].message == "injected"


@pytest.mark.unit
def test_what_was_suppressed_is_no_cause_and_what_goes_in_circles_ends():
    told = record_of(error_of("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('v') from None\n"))
    assert told.causes == ()
    told = record_of(error_of("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('v')\n"))
    assert [(one["exception"], one["link"]) for one in told.causes] == [("ZeroDivisionError", "context")]
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert len(record_of(first).causes) == 1


@pytest.mark.unit
def test_a_message_is_bounded_and_a_class_that_has_none_does_no_harm():
    class Strange(Exception):
        def __str__(self):
            raise RuntimeError("no")

    assert record_of(Strange()).message == ""
    told = record_of(ValueError("a" * 100_000 + "the end"))
    assert len(told.message) <= 2000 and told.message.endswith("the end")


@pytest.mark.unit
def test_a_broken_connection_of_the_scripts_own_is_its_own():
    assert record_of(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")).failure == "own"
    assert record_of(TimeoutError("timed out")).failure == "own"
