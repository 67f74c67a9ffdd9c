"""The code on the pages about extending, executed as it stands there."""

import importlib
import subprocess
import sys
import uuid
from dataclasses import dataclass, replace

import pytest
from hypothesis import given

from chaos.undo import residue
from chaos.undo.residue import auditors, left_behind, look
from chaos.undo.residue.base import AuditScope
from harness.judging import gates
from harness.judging.summary import Summary, unknown
from mecefo_runtime import planners
from tests.harness import synthetic
from tests.integration.runs import run_chaos
from tests.manual.documents import ROOT, Document, blocks
from tests.mecefo_runtime.planners import test_planners_contract as contract


def code_of(page):
    """The one Python block of a page."""
    document = Document(page, (ROOT / "docs/how-to/extending" / page).read_text())
    (block,) = (block for block in blocks(document) if block.language == "python")
    return block.text


def executed(page):
    names = {"__name__": "page"}
    exec(compile(code_of(page), page, "exec"), names)
    return names


@pytest.mark.unit
@pytest.mark.parametrize("page", ["planner", "auditor", "gate", "backend"])
def test_the_code_is_written_as_ours_is(page, tmp_path):
    path = tmp_path / f"{page}.py"
    path.write_text(code_of(f"{page}.md"))
    for command in (["check"], ["format", "--diff"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), "--no-cache", path]
        done = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


# ---- a planner ----


@pytest.fixture
def rest(tmp_path, monkeypatch):
    """The page's planner, where planners are found."""
    (tmp_path / "rest.py").write_text(code_of("planner.md"))
    monkeypatch.setattr(planners, "__path__", [*planners.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    return planners.find("rest")


@pytest.mark.unit
@pytest.mark.parametrize(
    "test",
    [
        contract.test_a_layout_is_sound_and_runs_on_the_living,
        contract.test_the_same_survivors_give_the_same_layout,
        contract.test_with_everybody_alive_it_is_the_configured_layout,
        contract.test_without_survivors_there_is_no_layout,
        contract.test_any_single_survivor_carries_on,
    ],
)
def test_the_planner_keeps_the_contract(rest, test):
    test(name="rest")


@pytest.mark.unit
def test_the_planner_lets_a_hit_replica_rest(rest):
    @given(situation=contract.situations())
    def holds(situation):
        cluster = situation.cluster
        hit = {cluster.cell_of(rank)[0] for rank in range(cluster.num_ranks) if rank not in situation.alive}
        resting = hit if len(hit) < cluster.data_parallel else set()
        assert not resting & {replica.replica for replica in rest(situation).replicas}

    holds()


FIND_IT = """
import importlib.abc, importlib.util, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "mecefo_runtime.planners":
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            spec.submodule_search_locations.append({folder!r})
            return spec
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.nightly
@pytest.mark.integration
def test_the_planner_runs_a_job(tmp_path):
    folder = tmp_path / "planners"
    folder.mkdir()
    (folder / "rest.py").write_text(code_of("planner.md"))
    arguments = "kill-process --on rank=2 --at step=10 --repair 10steps --steps 40 --strategy rest --nodes 2 --no-twin"
    run = run_chaos(tmp_path / "run", *arguments.split(), patch=FIND_IT.format(folder=str(folder)))
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    layouts = [event.fields for event in run.events if event.kind == "layout" and event.fields["reason"] == "loss"]
    assert layouts and all(len(fields["layout"]["replicas"]) == 1 for fields in layouts)


# ---- an auditor ----


@pytest.mark.unit
def test_the_auditor_finds_what_is_left(tmp_path, monkeypatch):
    (tmp_path / "shared_memory.py").write_text(code_of("auditor.md"))
    monkeypatch.setattr(residue, "__path__", [*residue.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    auditors.cache_clear()
    try:
        shared = tmp_path / "shm"
        shared.mkdir()
        monkeypatch.setattr(importlib.import_module("chaos.undo.residue.shared_memory"), "FOLDER", shared)
        # What carries its name is looked for on the whole machine.
        run = uuid.uuid4().hex
        ground = AuditScope(run, (), tmp_path / "ledger.jsonl")
        before = look(ground)
        assert "shared memory" in before
        (shared / f"mecefo-chaos-{run}").touch()
        (shared / "mecefo-chaos-of-somebody-else").touch()
        after = look(ground)
        found = [left for left in left_behind(before, after) if left["kind"] == "shared memory"]
        assert found == [{"kind": "shared memory", "what": str(shared / f"mecefo-chaos-{run}")}]
        (shared / f"mecefo-chaos-{run}").unlink()
        assert left_behind(before, look(ground)) == []
    finally:
        auditors.cache_clear()


# ---- a gate ----


@dataclass(frozen=True)
class WithTransfer(Summary):
    largest_transfer_bytes: int | None = None


@pytest.mark.unit
def test_the_metric_decides(monkeypatch):
    page = executed("gate.md")
    events = synthetic.run()
    sizes = [e.fields["transfer_bytes"] for e in events if e.kind == "regrouped" and e.fields["reason"] != "start"]
    measured = page["largest_transfer_bytes"](events)
    assert measured == max(sizes) > 0
    metric = page["LARGEST_TRANSFER"]
    monkeypatch.setattr(gates, "find", lambda name: metric if name == metric.name else None)
    summary = replace(unknown(WithTransfer), job_outcome="completed", largest_transfer_bytes=measured)
    passed = {
        limit: gates.evaluate(gates.Gate.parse(f"largest_transfer_bytes < {limit}"), summary).passed
        for limit in (measured, measured + 1)
    }
    assert passed == {measured: False, measured + 1: True}


@pytest.mark.unit
def test_the_metric_of_nothing_is_not_zero():
    page = executed("gate.md")
    assert page["largest_transfer_bytes"]([]) is None
    gate = gates.Gate("x", page["LARGEST_TRANSFER"], "max", "<", 1.0)
    assert gates.evaluate(gate, replace(unknown(WithTransfer), job_outcome="completed")).passed is None
