"""Crashes from within, in a real process with a real agent: it ended of what was asked for, and of nothing else."""

import signal

import pytest
from pydantic import ValidationError

from chaos.faults.process.crash import Abort, Exit, Raise, RaiseParameters, Segfault
from mecefo_runtime.system.process import ProcessId
from tests.chaos.one_node import older
from tests.chaos.one_rank import OneRank

pytestmark = pytest.mark.unit

CRASHES = [
    (Segfault, {}, -signal.SIGSEGV, "read from address 0"),
    (Abort, {}, -signal.SIGABRT, "abort()"),
    (Exit, {"code": 42}, 42, "_exit(42)"),
    (Raise, {"exception": "OverflowError", "message": "too much"}, 1, "OverflowError: too much"),
    (Raise, {"exception": "json.decoder.JSONDecodeError"}, None, "cannot be made here"),
]
each_crash = pytest.mark.parametrize(
    ("fault", "parameters", "code", "words"), CRASHES[:4], ids=[crash[0].kind for crash in CRASHES[:4]]
)
# What the effect is to do at the release is left out.
HARMLESS = """
from chaos.in_process import crash
for effect in (crash.Segfault, crash.Abort, crash.Exit, crash.Raise):
    effect.released = lambda self: None
"""
CATCH = """
def around(step, phase):
    try:
        agent.announce(step, phase)
    except OverflowError:
        pass
"""


@pytest.fixture(autouse=True)
def _no_last_words(monkeypatch):
    # Here the rank is the whole job: after a failed verification nobody else tells of an end.
    monkeypatch.setattr("chaos.injection.executor.LAST_WORDS_SECONDS", 0.05)


@each_crash
def test_it_ends_of_what_was_asked_for(tmp_path, fault, parameters, code, words):
    run = OneRank(tmp_path, fault, **parameters).play()
    evidence = run.evidence()
    assert words in evidence["summary"]
    assert [process["exit"] for process in evidence["processes"]] == [code]
    (held,), (injected,) = run.of("held"), run.of("injected")
    assert (held["step"], held["phase"], injected["step"]) == (5, "backward", 5)
    assert run.watch.last_step == 4, "it did not end at its trigger"
    kinds = [kind for kind, _ in run.events]
    assert kinds.index("released") < kinds.index("verified"), "it cannot crash while it is held"


@each_crash
def test_an_effect_that_does_nothing_is_not_verified(tmp_path, monkeypatch, fault, parameters, code, words):
    monkeypatch.setattr(fault, "verify_timeout_seconds", 0.1)
    run = OneRank(tmp_path, fault, setup=HARMLESS, **parameters)
    run.play(then=lambda: run.watch.last_step > 10)
    assert "still running after 0.1 s" in run.reason()


def test_another_end_is_not_verified(tmp_path):
    setup = "import chaos.in_process.crash as c\nc.Segfault.released = c.Abort.released"
    run = OneRank(tmp_path, Segfault, setup=setup).play()
    assert "ended, but not by a read from address 0" in run.reason()
    assert "SIGABRT" in run.reason()


def test_an_exception_that_the_script_catches_was_raised_and_handled(tmp_path):
    run = OneRank(tmp_path, Raise, setup=CATCH, exception="OverflowError")
    run.play(then=lambda: run.watch.last_step > 10)
    evidence = run.evidence()
    assert evidence["handled_ranks"] == [0]
    assert "and the script caught it: rank 0 continued with " in evidence["summary"]


@pytest.mark.parametrize("code", [0, 7])
def test_an_exception_upon_which_the_script_ends_in_its_own_way_is_seen_in_its_log(tmp_path, code):
    setup = (
        "import os, sys\n"
        "def end(kind, error, trace):\n"
        "    print(f'{kind.__name__}: {error}', file=sys.stderr, flush=True)\n"
        f"    os._exit({code})\n"
        "sys.excepthook = end\n"
    )
    evidence = OneRank(tmp_path, Raise, setup=setup).play().evidence()
    assert f"exit code {code}, and the log has 'RuntimeError: injected by chaos'" in evidence["summary"]


def test_another_exception_is_not_verified(tmp_path):
    setup = (
        "def around(step, phase):\n    agent.announce(step, phase)\n    assert (step, phase) != (5, 'backward'), 'ours'"
    )
    harmless = "import chaos.in_process.crash as c\nc.Raise.released = lambda self: None\n"
    run = OneRank(tmp_path, Raise, setup=harmless + setup).play()
    assert "its log does not name RuntimeError('injected by chaos')" in run.reason()


def test_an_exception_that_cannot_be_made_is_refused(tmp_path):
    fault, parameters, _, words = CRASHES[4]
    run = OneRank(tmp_path, fault, **parameters)
    run.play(then=lambda: run.watch.last_step > 10)
    assert words in run.reason()
    assert run.of("injected") == []


def test_what_was_not_let_go_is_taken_back(tmp_path, monkeypatch):
    async def fail(self, act, context):
        await type(self).__mro__[1].apply(self, act, context)
        raise ZeroDivisionError

    broken = type("Broken", (Segfault,), {"apply": fail})
    run = OneRank(tmp_path, broken)
    with pytest.raises(ZeroDivisionError):
        run.play(until="released", then=lambda: run.watch.last_step > 10)
    assert run.watch.last_step > 10, "it crashed all the same"


@pytest.mark.parametrize("fault", [Segfault, Abort, Exit, Raise])
def test_a_recycled_pid_is_not_hit(tmp_path, fault, monkeypatch):
    run = OneRank(tmp_path, fault)
    monkeypatch.setattr(
        "tests.chaos.one_rank.ProcessId", type("Recycled", (), {"of": lambda pid: older(ProcessId.of(pid))})
    )
    run.play(until="unverified", then=lambda: run.watch.last_step > 10)
    assert "nothing of rank=0 is running any more" in run.reason()


@pytest.mark.parametrize("name", ["RuntimeError", "MemoryError", "torch.distributed.DistBackendError"])
def test_exceptions_have_names(name):
    assert RaiseParameters(exception=name).exception == name


@pytest.mark.parametrize("name", ["RuntimeErorr", "print", "SystemExit", "a b", "", "os.", "1.x"])
def test_what_is_no_exception_is_refused(name):
    with pytest.raises(ValidationError, match="exception"):
        RaiseParameters(exception=name)
