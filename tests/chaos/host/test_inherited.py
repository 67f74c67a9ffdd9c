"""Limits, and the signal of children that end: each is tried in a process that has them from its parent."""

import errno
import os
import resource
import signal
import subprocess
import sys

import pytest

from chaos.host import inherited

pytestmark = pytest.mark.unit

HARD = 4096


def said_with(soft, hard, code, which=resource.RLIMIT_NOFILE, children=signal.SIG_DFL):
    """What `code` prints in a process with these limits."""

    def prepare():
        resource.setrlimit(which, (soft, hard))
        signal.signal(signal.SIGCHLD, children)

    done = subprocess.run(
        [sys.executable, "-c", f"import os, resource, subprocess\nfrom chaos.host import inherited\n{code}"],
        preexec_fn=prepare,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_soft_limit_is_raised_as_far_as_the_user_allows():
    code = f"""
print(inherited.allow_open_files(40), *resource.getrlimit(resource.RLIMIT_NOFILE))
print(*inherited.open_file_limits())
inherited.allow_open_files({HARD})
print(*resource.getrlimit(resource.RLIMIT_NOFILE), *inherited.open_file_limits())
inherited.give_back_open_files(inherited.open_file_limits()[0])
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    expected = f"None 80 {HARD} 24 {HARD} {HARD} {HARD} 24 {HARD} 24 {HARD}"
    assert said_with(24, HARD, code) == expected.split()


def test_what_suffices_is_left_alone():
    code = "print(inherited.allow_open_files(24), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    assert said_with(24, HARD, code) == ["None", "24", str(HARD)]


def test_beyond_the_hard_limit_nothing_is_changed():
    code = "print(inherited.allow_open_files(40), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    assert said_with(24, 30, code) == ["30", "24", "30"]


def test_exit_codes_of_children_are_kept_where_they_were_ignored():
    code = """
inherited.hear_of_children()
print(subprocess.run(["sh", "-c", "exit 3"]).returncode, inherited.children_were_ignored())
"""
    assert said_with(HARD, HARD, code, children=signal.SIG_IGN) == ["3", "True"]
    assert said_with(HARD, HARD, code) == ["3", "False"]


def test_an_own_handler_stays():
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        handler = signal.getsignal(signal.SIGCHLD)
        inherited.hear_of_children()
        assert signal.getsignal(signal.SIGCHLD) is handler
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_file_that_may_not_grow_is_no_full_disk(tmp_path):
    code = f"""
try:
    with open({str(tmp_path / "f")!r}, "wb", buffering=0) as file:
        file.write(bytes(1000))
        file.write(bytes(1000))
except OSError as error:
    print(inherited.why(error, "buy another disk"))
"""
    said = " ".join(said_with(1000, 1000, code, resource.RLIMIT_FSIZE))
    assert "1000 bytes" in said and "ulimit -f" in said
    assert "disk" not in said and "space" not in said


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, ("ulimit -n",)),
        (errno.EAGAIN, ("no more processes",)),
        (errno.ENOSPC, ("free some space, or look elsewhere",)),
        (errno.EACCES, ("Permission denied: look elsewhere",)),
    ],
)
def test_what_to_do_is_said(number, words):
    said = inherited.why(OSError(number, os.strerror(number)), "look elsewhere")
    assert all(word in said for word in words)
    assert inherited.is_limit(OSError(number, "")) == (number in (errno.EMFILE, errno.EAGAIN))


def test_a_thread_too_many_is_a_limit():
    assert inherited.is_limit(RuntimeError("can't start new thread"))
    assert "no more processes" in inherited.why_limit(RuntimeError("can't start new thread"))
    assert not inherited.is_limit(RuntimeError("another mistake"))


def test_processes_are_counted_against_the_limit_of_a_user(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (10_000_000, 10_000_000))
    monkeypatch.setattr(inherited, "_has_no_process_limit", lambda: False)
    assert inherited.processes_refused(1000) is None
    free, limit = inherited.processes_refused(10_000_000)
    # This process is one of them.
    assert limit == 10_000_000 and 0 < free < limit


def test_root_has_no_limit_of_processes(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1, 1))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert inherited.processes_refused(1000) is None
