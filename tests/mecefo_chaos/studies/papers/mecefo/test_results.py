"""Results on disk: whole or not at all, of this format or refused, and what is missing is what is run next."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from chaos.errors import UsageError
from mecefo_chaos.studies.papers.mecefo import running
from mecefo_chaos.studies.papers.mecefo.gates import wanted_gates
from mecefo_chaos.studies.papers.mecefo.results import merged, read_results, result_file, shipped_results, write_result
from mecefo_chaos.studies.papers.mecefo.running import chosen_cells, missing, wanted_runs
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, cells, twin_of
from tests.mecefo_chaos.studies.papers.mecefo.log import FREE_SECONDS, Log, struck_log
from tests.mecefo_chaos.studies.papers.mecefo.made import FREE_SECONDS as TWIN_SECONDS
from tests.mecefo_chaos.studies.papers.mecefo.made import cell_of, result_of, results_of, run_of

pytestmark = pytest.mark.unit


def test_a_result_is_read_as_it_was_written(tmp_path):
    results = [result_of(run_of(cell_of(), 1)), result_of(run_of(cell_of(), None))]
    for result in results:
        write_result(tmp_path, result)
    read = read_results(tmp_path)
    assert {key: replace(result, twin_step_seconds=None) for key, result in read.items()} == {
        result.key: result for result in results
    }
    assert read[cell_of(), 1].twin_step_seconds == TWIN_SECONDS and read[cell_of(), None].twin_step_seconds is None
    assert read_results(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "chaos set 1"}', '{"format": "chaos paper mecefo 1"}'])
def test_a_file_of_another_format_is_refused_by_name(text, tmp_path):
    path = result_file(tmp_path, cell_of(), 1)
    path.write_text(text)
    with pytest.raises(UsageError, match="no result of an emulated run") as refused:
        read_results(tmp_path)
    assert refused.value.path == str(path)


def test_a_result_of_another_version_is_refused(tmp_path):
    write_result(tmp_path, result_of(run_of(cell_of(), 1)))
    path = result_file(tmp_path, cell_of(), 1)
    values = json.loads(path.read_text())
    values["run"]["colour"] = "red"
    path.write_text(json.dumps(values))
    with pytest.raises(UsageError, match="colour"):
        read_results(tmp_path)


def test_own_results_take_the_place_of_those_that_came_along():
    ours, other = cell_of("4x8"), cell_of("8x4")
    shipped = results_of(*(run_of(cell, seed) for cell in (ours, other) for seed in (1, 2)))
    own = results_of(run_of(ours, 7))
    assert set(merged(own, shipped)) == {(ours, 7), (other, 1), (other, 2)}
    busy = results_of(run_of(ours, 7, overrun_ratio=0.5))
    assert set(merged(busy, shipped)) == {(ours, 7), *shipped}, "a run that does not count takes nobody's place"


def test_shipped_runs_keep_their_twin_beside_a_twin_of_the_user():
    shipped = results_of(run_of(cell_of(), None), run_of(cell_of(), 1))
    twin = replace(run_of(cell_of(), None), free_step_seconds=9.0)
    own = results_of(twin, run_of(cell_of(method="mecefo"), 1))
    found = merged(own, shipped)
    assert found[cell_of(), 1].twin_step_seconds == TWIN_SECONDS
    assert found[cell_of(method="mecefo"), 1].twin_step_seconds == 9.0


def test_those_that_came_along_are_of_cells_that_are_told():
    for cell, _ in shipped_results():
        assert METHODS[cell.method].strategy is not None
        assert cell in cells() or cell == twin_of(cell) or cell.is_exposed


def test_only_what_has_no_usable_result_is_run():
    runs = wanted_runs(2, "7b,high,4x8,m8,mecefo-speed")
    cell = cell_of()
    assert runs == ((cell, None), (cell, 1), (cell, 2))
    done = results_of(run_of(cell, None), run_of(cell, 1), run_of(cell, 2, overrun_ratio=0.5))
    assert missing(runs, done) == ((cell, 2),)
    assert missing(runs, {}) == runs


def test_what_the_gates_ask_for_is_run_by_default_each_after_its_twin():
    runs = wanted_runs(5, None)
    for gate in wanted_gates():
        assert {seed for cell, seed in runs if cell == gate.cell} >= {1, 2, 3, 4, 5}
    for index, (cell, seed) in enumerate(runs):
        assert seed is None or (twin_of(cell), None) in runs[:index]


def fake_execute(ended_after: int, num_overruns: int = 2):
    """Makes the logs of such runs, and is interrupted after so many of them."""
    made: list[str] = []
    scales: list[object] = []

    def execute(experiment, out, stream):
        folder = out / experiment.name / f"20261123T00000{len(made)}Z"
        folder.mkdir(parents=True)
        log = Log()
        log.commit(*[FREE_SECONDS] * 5)
        events = log.end(num_overruns=num_overruns) if experiment.name.endswith("twin") else struck_log()
        (folder / "events.jsonl").write_text("".join(event.to_json() + "\n" for event in events))
        is_over = len(made) >= ended_after
        made.append(experiment.name)
        scales.append(experiment.job.time_scale)
        return SimpleNamespace(status="interrupted" if is_over else "complete"), folder

    return execute, made, scales


def test_what_is_cut_off_goes_on_with_what_is_missing(tmp_path, monkeypatch):
    runs = wanted_runs(3, "7b,high,4x8,m8,mecefo-speed")
    execute, made, _ = fake_execute(ended_after=2)
    monkeypatch.setattr(running, "execute", execute)
    # Of each run it would be measured several times.
    monkeypatch.setattr("mecefo_runtime.training.carrying.smallest_time_scale", lambda config, num_cores: 30.0)
    with pytest.raises(KeyboardInterrupt):
        running.emulate(runs, tmp_path, io.StringIO())
    assert len(made) == 3 and set(read_results(tmp_path)) == set(runs[:2])
    left = missing(runs, read_results(tmp_path))
    assert left == runs[2:]
    again, made, _ = fake_execute(ended_after=9)
    monkeypatch.setattr(running, "execute", again)
    # As after a while: no two runs have one folder.
    shutil.rmtree(tmp_path / "runs")
    running.emulate(left, tmp_path, told := io.StringIO())
    assert [name[-5:] for name in made] == ["seed2", "seed3"]
    assert "run 1 of 2: 7b-high-4x8-m8-hidden-mecefo-speed, seed 2; about" in told.getvalue()
    assert missing(runs, read_results(tmp_path)) == ()


def test_a_machine_that_is_too_busy_gets_a_second_try_that_is_slower(tmp_path, monkeypatch):
    execute, made, scales = fake_execute(ended_after=9, num_overruns=7)
    monkeypatch.setattr(running, "execute", execute)
    running.emulate([(cell_of(), None)], tmp_path, told := io.StringIO(), 1.5)
    # The log says 2.
    assert len(made) == 2 and scales == [1.5, 4.0]
    assert "7.0% of the compute segments took longer" in told.getvalue()
    assert missing([(cell_of(), None)], read_results(tmp_path)) == ((cell_of(), None),)


def test_words_that_name_nothing_are_refused_with_the_nearest():
    with pytest.raises(UsageError) as refused:
        chosen_cells("7b,mecefo-papr")
    assert refused.value.suggestion == "mecefo-paper"
    with pytest.raises(UsageError, match="bamboo-like cannot be run"):
        chosen_cells("7b,bamboo-like")
    assert [cell.method for cell in chosen_cells("8x4,7b,exact")] == ["exact"]
