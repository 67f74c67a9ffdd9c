"""Whether /proc is the process table in which this process finds others by their numbers."""

import os

import pytest

from chaos.host.process_table import why_no_process_table

pytestmark = pytest.mark.unit


@pytest.fixture
def proc(tmp_path):
    """A /proc of which `self` is what the test makes it."""
    (tmp_path / "uptime").touch()
    return tmp_path


def look(proc, pid, status):
    """The reason where this process is `pid` in that /proc and its status has these lines."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "status").write_text(status)
    (proc / "self").symlink_to(str(pid))
    return said(proc)


def said(proc):
    """Reason and remedy, as one text."""
    lack = why_no_process_table(proc)
    return lack and ": ".join(lack)


def test_here_processes_are_found():
    assert why_no_process_table() is None


def test_own_table(proc):
    assert look(proc, os.getpid(), f"Name:\tpython\nNSpid:\t{os.getpid()}\n") is None


def test_own_table_of_a_kernel_without_names(proc):
    assert look(proc, os.getpid(), "Name:\tpython\n") is None


def test_foreign_table_of_a_kernel_without_names(proc):
    assert "another PID namespace" in look(proc, os.getpid() + 1, "Name:\tpython\n")


def test_table_of_the_namespace_above(proc):
    pid = os.getpid()
    assert "another PID namespace" in look(proc, pid + 1, f"NSpid:\t{pid + 1}\t{pid}\n")


def test_table_of_the_namespace_above_that_has_the_same_number(proc):
    pid = os.getpid()
    assert "another PID namespace" in look(proc, pid, f"NSpid:\t{pid}\t{pid}\n")


def test_table_in_which_this_process_is_not(proc):
    (proc / "self").symlink_to("gone")
    assert "another PID namespace" in said(proc)


def test_no_table(tmp_path):
    reason = said(tmp_path)
    assert "not mounted" in reason and "mount -t proc" in reason
