"""Leaks, in a real process with a real agent: ended by a limit of its own, and nothing of the limit is left."""

import json
import os
import resource
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from chaos.errors import UsageError
from chaos.faults.base import RunContext
from chaos.faults.process.memory import LeakMemory, LeakParameters
from chaos.host import memory_limit
from chaos.language.quantities import parse_seconds
from chaos.language.sizes import bytes_text, parse_bytes
from chaos.language.target import ResolvedTarget
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.process import ProcessId
from tests.chaos.one_node import older
from tests.chaos.one_rank import OneRank

pytestmark = pytest.mark.unit

SMALL = {"limit": "64MiB", "block": "8MiB"}
LIMIT_BYTES = 64 * 2**20
HARMLESS = "import chaos.in_process.memory as m\nm.LeakMemory.released = lambda self: None"
needs_group = pytest.mark.skipif(
    memory_limit.plan(ProcessId.of(os.getpid()), LIMIT_BYTES, may_group=True).by != "cgroup",
    reason="no memory control group can be made here",
)


@pytest.fixture(autouse=True)
def _no_last_words(monkeypatch):
    # Here the rank is the whole job: after a failed verification nobody else tells of an end.
    monkeypatch.setattr("chaos.injection.executor.LAST_WORDS_SECONDS", 0.05)


@pytest.fixture
def sleeper():
    child = subprocess.Popen(["sleep", "300"])
    yield ProcessId.of(child.pid)
    child.kill()
    child.wait()


def record(folder):
    return json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])["record"]


@needs_group
def test_the_out_of_memory_killer_ends_it(tmp_path):
    run = OneRank(tmp_path, LeakMemory, **SMALL).play()
    evidence = run.evidence()
    (process,) = evidence["processes"]
    assert (process["limited_by"], process["oom_kills"], process["exit"]) == ("cgroup", 1, -9)
    assert LIMIT_BYTES / 2 <= process["grown_bytes"] <= LIMIT_BYTES + 2**20
    assert evidence["fidelity"] == "real"
    assert "out-of-memory killer" in evidence["summary"]
    assert run.watch.last_step == 4
    (limit,) = record(tmp_path)["limits"]
    assert not Path(limit["group"]).exists()


def test_without_a_group_its_allocations_fail(tmp_path):
    run = OneRank(tmp_path, LeakMemory, by="rlimit", **SMALL).play()
    evidence = run.evidence()
    (process,) = evidence["processes"]
    assert (process["limited_by"], process["oom_kills"], process["exit"]) == ("rlimit", None, 1)
    assert LIMIT_BYTES / 2 <= process["grown_bytes"] <= LIMIT_BYTES
    assert evidence["fidelity"] == "shaped"
    assert "MemoryError" in (tmp_path / "logs" / "rank-0.log").read_text()


@pytest.mark.parametrize("by", [pytest.param("cgroup", marks=needs_group), "rlimit"])
def test_a_leak_that_does_not_leak_is_not_verified_and_the_limit_is_lifted(tmp_path, monkeypatch, by):
    monkeypatch.setattr(LeakMemory, "verify_timeout_seconds", 0.1)
    run = OneRank(tmp_path, LeakMemory, by=by, setup=HARMLESS, **SMALL)
    limits = []

    def look():
        limits.append(resource.prlimit(run.process.pid, resource.RLIMIT_DATA))
        return run.watch.last_step > 10

    run.play(then=look)
    assert "not ended by its memory limit within 0.1 s" in run.reason()
    assert limits[-1] == resource.getrlimit(resource.RLIMIT_DATA)
    (limit,) = record(tmp_path)["limits"]
    assert not Path(limit.get("group", "/nowhere")).exists()


def test_an_end_of_something_else_is_not_verified(tmp_path):
    setup = "import chaos.in_process.memory as m, os\nm.LeakMemory.released = lambda self: os._exit(1)"
    run = OneRank(tmp_path, LeakMemory, setup=setup, **SMALL).play()
    assert "when it had grown by only 0 MiB of 64" in run.reason()


def test_what_the_machine_cannot_give_is_not_leaked(tmp_path):
    run = OneRank(tmp_path, LeakMemory, limit="1000000GiB")
    run.play(until="unverified", then=lambda: run.watch.last_step > 10)
    assert "choose a smaller limit" in run.reason()
    assert run.of("injected") == []


@pytest.mark.parametrize(
    ("ranks", "node_memory", "refused"),
    [((1,), None, ""), ((1,), "513MiB", ""), ((1,), "512MiB", "its rank has"), ((0, 1), "1GiB", "its ranks have")],
)
def test_what_a_node_cannot_hold_is_refused_before_the_start(ranks, node_memory, refused):
    job = JobConfig(nodes=2, gpus_per_node=2, data_parallel=2, pipeline=2)
    run = RunContext(
        job.cluster(), node_memory_bytes=node_memory and parse_bytes(node_memory), node_memory_key="containers.memory"
    )
    fault = LeakMemory(LeakParameters())
    if not refused:
        fault.check(ResolvedTarget(ranks=ranks), run)
        return
    with pytest.raises(UsageError, match=rf"{refused} cannot be leaked on node 0, .* {node_memory}.*containers.memory"):
        fault.check(ResolvedTarget(ranks=ranks), run)


def version_1(folder, limit_mib):
    (folder / "memory.limit_in_bytes").write_text(str(limit_mib * 2**20))
    (folder / "memory.usage_in_bytes").write_text(str(100 * 2**20))
    (folder / "memory.stat").write_text(f"cache 1\ntotal_inactive_file {2**20}\ntotal_active_file {2**21}\n")


def version_2(folder, limit_mib):
    (folder / "memory.max").write_text(str(limit_mib * 2**20) if limit_mib else "max")
    (folder / "memory.current").write_text(str(100 * 2**20))
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {2**20}\nactive_file {2**21}\n")


@pytest.mark.parametrize(("write", "no_limit_mib"), [(version_1, 2**43 - 1), (version_2, 0)])
def test_what_a_group_and_those_around_it_have_room_for(tmp_path, monkeypatch, write, no_limit_mib):
    monkeypatch.setattr(memory_limit, "_CGROUP_ROOT", tmp_path)
    home = tmp_path / "pod" / "container"
    home.mkdir(parents=True)
    for folder, limit_mib in ((tmp_path / "pod", 150), (home, no_limit_mib)):
        write(folder, limit_mib)
    monkeypatch.setattr(memory_limit, "group_of", lambda process: home)
    process = ProcessId.of(os.getpid())
    # What is kept of files can be dropped.
    assert memory_limit.room_bytes(process) == {str(tmp_path / "pod"): 53 * 2**20}
    write(home, 120)
    assert memory_limit.room_bytes(process) == {str(tmp_path / "pod"): 53 * 2**20, str(home): 23 * 2**20}
    monkeypatch.setattr(memory_limit, "group_of", lambda process: None)
    assert memory_limit.room_bytes(process) == {}


@pytest.mark.parametrize(("room_mib", "is_refused"), [(79, True), (80, False)])
def test_what_the_groups_around_it_cannot_give_is_not_leaked(tmp_path, monkeypatch, room_mib, is_refused):
    # Of 64 MiB, and of two blocks more.
    monkeypatch.setattr(memory_limit, "room_bytes", lambda process: {"/pod": room_mib * 2**20})
    run = OneRank(tmp_path, LeakMemory, by="rlimit", **SMALL)
    if not is_refused:
        assert run.play().evidence()["processes"]
        return
    run.play(until="unverified", then=lambda: run.watch.last_step > 10)
    assert run.reason().startswith("79 MiB are left to all that is in the control group /pod, and 80 are needed")
    assert run.of("injected") == []


def test_a_recycled_pid_is_not_hit(tmp_path, monkeypatch):
    run = OneRank(tmp_path, LeakMemory, **SMALL)
    recycled = type("Recycled", (), {"of": lambda pid: older(ProcessId.of(pid))})
    monkeypatch.setattr("tests.chaos.one_rank.ProcessId", recycled)
    run.play(until="unverified", then=lambda: run.watch.last_step > 10)
    assert "nothing of rank=0 is running any more" in run.reason()


@pytest.mark.parametrize("may_group", [pytest.param(True, marks=needs_group), False])
class TestLimit:
    def test_undo_needs_the_record_alone_and_can_be_repeated(self, sleeper, may_group):
        before = resource.prlimit(sleeper.pid, resource.RLIMIT_DATA)
        home = Path(f"/proc/{sleeper.pid}/cgroup").read_text()
        planned = memory_limit.plan(sleeper, LIMIT_BYTES, may_group=may_group)
        undo_record = {"limits": [json.loads(json.dumps(planned.to_json()))]}
        # Written before it is imposed: the undo of what was never done.
        assert LeakMemory.undo(undo_record) == LeakMemory.undo(undo_record)
        memory_limit.impose(planned)
        if may_group:
            assert Path(f"/proc/{sleeper.pid}/cgroup").read_text() != home
        else:
            assert resource.prlimit(sleeper.pid, resource.RLIMIT_DATA) != before
        assert LeakMemory.undo(undo_record) == LeakMemory.undo(undo_record)
        assert resource.prlimit(sleeper.pid, resource.RLIMIT_DATA) == before
        assert Path(f"/proc/{sleeper.pid}/cgroup").read_text() == home
        assert sleeper.is_running()

    def test_a_recycled_pid_keeps_its_own_limit(self, sleeper, may_group):
        planned = memory_limit.plan(sleeper, LIMIT_BYTES, may_group=may_group)
        theirs = (2**30, resource.RLIM_INFINITY)
        resource.prlimit(sleeper.pid, resource.RLIMIT_DATA, theirs)
        memory_limit.lift(replace(planned, start_ticks=sleeper.start_ticks - 1))
        assert resource.prlimit(sleeper.pid, resource.RLIMIT_DATA) == theirs


class TestQuantities:
    @pytest.mark.parametrize(
        ("text", "size"), [("512MiB", 2**29), ("1.5GB", 1_500_000_000), ("4096B", 4096), ("1 GiB", 2**30)]
    )
    def test_sizes(self, text, size):
        assert parse_bytes(text) == size

    @pytest.mark.parametrize(
        "text", ["", "12", "12 parsecs", "-1MiB", "0B", "MiB", None, 12, 1.5, True, "1e9B", "9999999GiB"]
    )
    def test_what_is_no_size(self, text):
        with pytest.raises(UsageError):
            parse_bytes(text)

    @given(st.integers(1, 2**53))
    def test_a_size_is_read_as_it_was_written(self, size):
        assert parse_bytes(bytes_text(size)) == size

    @pytest.mark.parametrize("text", ["0s", "5steps", "5", 5, None, "soon"])
    def test_what_is_no_time(self, text):
        with pytest.raises(UsageError):
            parse_seconds(text)

    @pytest.mark.parametrize("parameters", [{"limit": "lots"}, {"block": "0B"}, {"by": "magic"}])
    def test_parameters_are_checked(self, parameters):
        with pytest.raises(ValidationError):
            LeakParameters(**parameters)
