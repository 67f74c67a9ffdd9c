"""Whether a run gets networks of its own, and what is said where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.errors import UsageError
from chaos.experiment.reading import from_mapping
from harness.network.machine import wants_networks, why_no_networks
from harness.node.node import ThisMachine
from harness.run import preparation

pytestmark = pytest.mark.unit

DROP = {"name": "n", "faults": [{"kind": "drop-link", "on": "link=0-2", "at": {"step": 5}}]}


@pytest.fixture(autouse=True)
def fresh():
    why_no_networks.cache_clear()
    yield
    why_no_networks.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch):
    """A machine with the programs that are asked for, as scripts, and no others."""

    def make(**scripts: str) -> None:
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("chaos.host.links.firewall._SYSTEM_FOLDERS", ())

    return make


@pytest.mark.parametrize(
    ("network", "needs", "wanted"),
    [
        ("auto", [("own-runtime",), ("links",)], True),
        ("auto", [("own-runtime",), ()], False),
        ("auto", [], False),
        ("namespaces", [], True),
        ("loopback", [], False),
    ],
)
def test_networks_are_made_where_a_fault_needs_links_or_the_user_says_so(network, needs, wanted):
    assert wants_networks(from_mapping({"name": "n", "network": network}), needs) is wanted


def test_programs_that_are_missing_are_named(machine):
    machine(unshare="exit 0", nsenter="exit 0")
    reason = why_no_networks()
    assert reason is not None and "iptables is not installed" in reason and "install" in reason


def test_a_kernel_that_refuses_is_quoted_with_what_would_help(machine):
    refusal = "echo unshare: unshare failed: Operation not permitted >&2; exit 1"
    machine(unshare=refusal, nsenter="exit 0", iptables="exit 0")
    reason = why_no_networks()
    assert reason is not None
    assert "Operation not permitted" in reason and "kernel.unprivileged_userns_clone=1" in reason


def test_a_machine_that_allows_it_has_nothing_against_it(machine):
    machine(unshare="exit 0", nsenter="exit 0", iptables="exit 0")
    assert why_no_networks() is None


def test_a_fault_of_links_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(ThisMachine, "why_no_networks", lambda self: "users may not do that")
    with pytest.raises(
        UsageError, match=r"drop-link needs ranks with networks of their own, and users may not do that"
    ):
        preparation.prepare(from_mapping(DROP))


def test_on_the_loopback_it_is_refused_whatever_the_machine_allows(monkeypatch):
    monkeypatch.setattr(ThisMachine, "why_no_networks", lambda self: None)
    with pytest.raises(UsageError, match=r"with network: loopback they share one"):
        preparation.prepare(from_mapping({**DROP, "network": "loopback"}))
    assert preparation.prepare(from_mapping(DROP))


def test_networks_that_are_asked_for_and_impossible_are_refused(monkeypatch):
    monkeypatch.setattr(ThisMachine, "why_no_networks", lambda self: "users may not do that")
    with pytest.raises(UsageError, match="users may not do that") as refused:
        preparation.prepare(from_mapping({"name": "n", "network": "namespaces"}))
    assert refused.value.key == "network"


def test_nothing_is_tried_when_nothing_needs_it(monkeypatch):
    def never(self) -> str:
        raise AssertionError("tried")

    monkeypatch.setattr(ThisMachine, "why_no_networks", never)
    assert preparation.prepare(from_mapping({"name": "n"}))
