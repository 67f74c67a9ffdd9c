"""Names that do not resolve in a rank: which lookups are met, what the fault makes of the rank's word, and of none."""

import asyncio
import json
import os
import socket
import threading
import time
from contextlib import contextmanager
from socket import getaddrinfo as imported_before
from types import SimpleNamespace

import pytest

from chaos.errors import EffectNotSeen, UsageError
from chaos.faults.base import FaultContext, OwnedProcess
from chaos.faults.network.name import EFFECT, NameParameters, UnresolvedName
from chaos.faults.watch import Watch
from chaos.in_process import names
from chaos.language.target import ResolvedTarget
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

DELAY_SECONDS = 0.05


@contextmanager
def active(name="*", *, delay=0.0, error="EAI_AGAIN"):
    """What the effect has told while it is active."""
    told = []
    arguments = {"name": name, "delay_seconds": delay, "error": error}
    effect = names.UnresolvedName(arguments, None, told.append)
    effect.begin(3, "forward")
    try:
        yield told
    finally:
        effect.lift()


def outcome(look_up=socket.getaddrinfo, *arguments):
    """The code of the error of a lookup; None: it resolved."""
    try:
        look_up(*(arguments or ("localhost", 80)))
    except socket.gaierror as error:
        return error.errno
    return None


@pytest.mark.parametrize("error", ["EAI_AGAIN", "EAI_NONAME"])
def test_lookups_fail_as_asked_however_python_code_makes_them_and_succeed_again(error):
    code = getattr(socket, error)
    with active("localhost", error=error) as told:
        assert outcome() == outcome(imported_before) == code
        assert outcome(socket.gethostbyname, "LOCALHOST") == outcome(socket.gethostbyname_ex, "localhost") == code
        assert outcome(socket.getaddrinfo, b"localhost", 80) == code
        with pytest.raises(socket.gaierror):
            socket.create_connection(("localhost", 9), timeout=1)
        codes = []
        thread = threading.Thread(target=lambda: codes.append(outcome()))
        thread.start()
        thread.join()
        assert codes == [code]
    assert (outcome(), outcome(socket.gethostbyname, "localhost")) == (None, None)
    assert [(one["name"], one["call"], one["error"]) for one in told] == [("localhost", "getaddrinfo", error)]
    assert json.loads(json.dumps(told)) == told


def test_addresses_and_what_hosts_has_are_no_lookups_of_a_pattern(monkeypatch, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 db.internal db # more.internal\n")
    monkeypatch.setattr(names, "HOSTS_FILE", hosts)
    asked = []

    def affected(pattern, *hosts):
        arguments = {"name": pattern, "delay_seconds": 0.0, "error": "EAI_AGAIN"}
        effect = names.UnresolvedName(arguments, None, asked.append)
        found = []
        for host in hosts:
            try:
                effect.meets("getaddrinfo", host)
            except socket.gaierror:
                found.append(host)
        return found

    hosts = ("127.0.0.1", "::1", "fe80::1%eth0", "", None, "localhost", "db.internal", "more.internal", "Hub.Co")
    assert affected("*", *hosts) == ["more.internal", "Hub.Co"]
    assert affected("*.internal", *hosts) == ["more.internal"]
    assert affected("db.internal", *hosts) == ["db.internal"]
    assert affected("HUB.co", *hosts) == ["Hub.Co"]


def test_a_late_name_resolves_after_its_delay_and_one_with_an_error_does_not():
    with active("localhost", delay=DELAY_SECONDS, error=None) as told:
        began = time.monotonic()
        assert outcome() is None
        assert time.monotonic() - began >= DELAY_SECONDS <= told[0]["waited_seconds"]
    with active("localhost", delay=DELAY_SECONDS) as told:
        assert outcome() == socket.EAI_AGAIN
    assert told[0]["waited_seconds"] >= DELAY_SECONDS


def test_a_forked_worker_in_which_nobody_could_lift_it_is_not_affected(monkeypatch):
    with active("localhost") as told:
        monkeypatch.setattr(names, "os", SimpleNamespace(getpid=lambda: os.getpid() + 1))
        assert (outcome(), told) == (None, [])
        monkeypatch.undo()
        assert outcome() == socket.EAI_AGAIN


class Inside:
    """A rank's agent with one word of its effect, or none."""

    def __init__(self, told):
        self._told = told
        self.begun, self.lifted = [], []

    async def begin(self, rank, effect, arguments):
        self.begun.append((rank, effect, json.loads(json.dumps(arguments))))
        return 5, {}

    async def report(self, rank, handle, timeout_seconds):
        if self._told is None:
            raise EffectNotSeen("nothing", code="no_report")
        return self._told

    async def lift(self, rank, handle, timeout_seconds):
        self.lifted.append((rank, handle))
        return {}


class Ranks:
    def rank_processes(self, ranks):
        return tuple(OwnedProcess("rank", ProcessId.of(os.getpid()), rank=rank, node=0) for rank in ranks)


def play(told, **parameters):
    """(evidence or the error, why it is unseen, the rank's side) of one incident on rank 1."""
    fault = UnresolvedName(NameParameters.model_validate(parameters))
    inside = Inside(told)
    context = FaultContext(processes=Ranks(), inside=inside, watch=Watch(), run_folder=None)

    async def run():
        act = fault.prepare(ResolvedTarget(ranks=(1,)), context)
        await fault.apply(act, context)
        try:
            found = await fault.verify(act, context, 0.1)
        except EffectNotSeen as error:
            found = error
        why = fault.why_unseen(act, context)
        await fault.lift(act, context)
        fault.undo(json.loads(json.dumps(dict(act.undo_record))))
        return found, why

    return *asyncio.run(run()), inside


def told_of(*, waited=0.0, error="EAI_AGAIN"):
    return {
        "name": "hub.co",
        "call": "getaddrinfo",
        "asked_seconds": 0.0,
        "waited_seconds": waited,
        "error": error,
    }


def test_a_lookup_of_the_rank_is_the_evidence():
    evidence, why, inside = play(told_of(), name="hub.co")
    assert why is None and inside.lifted == [(1, 5)]
    (rank,) = evidence["ranks"]
    assert (rank["rank"], rank["name"], rank["error"]) == (1, "hub.co", "EAI_AGAIN")
    ((_, effect, arguments),) = inside.begun
    assert effect == EFFECT
    assert (arguments["name"], arguments["delay_seconds"], arguments["error"]) == ("hub.co", 0.0, "EAI_AGAIN")


def test_with_a_delay_names_resolve_unless_an_error_is_named():
    *_, inside = play(told_of(waited=2.0, error=None), delay="2s")
    assert (inside.begun[0][2]["delay_seconds"], inside.begun[0][2]["error"]) == (2.0, None)
    *_, inside = play(told_of(waited=2.0, error="EAI_NONAME"), delay="2s", error="EAI_NONAME")
    assert inside.begun[0][2]["error"] == "EAI_NONAME"


def test_without_a_lookup_it_is_not_seen_and_says_why():
    error, why, inside = play(None, name="hub.co")
    assert error.code == "no_report" and inside.lifted == [(1, 5)]
    assert why is not None and "hub.co" in why


@pytest.mark.parametrize(
    ("told", "parameters", "code"),
    [
        (told_of(waited=0.1, error=None), {"delay": "2s"}, "lookup_not_late"),
        (told_of(error=None), {}, "lookup_not_seen"),
        ({"other": 1}, {}, "lookup_not_seen"),
    ],
)
def test_a_word_that_is_no_such_lookup_is_no_evidence(told, parameters, code):
    error, why, _ = play(told, **parameters)
    assert error.code == code and why is not None


def test_a_delay_that_no_resolver_has_is_refused():
    with pytest.raises(UsageError):
        NameParameters.model_validate({"delay": "11min"})
