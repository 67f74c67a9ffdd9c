"""What `chaos compare` and `chaos run --repeat --baseline` refuse, before anything runs."""

from __future__ import annotations

import csv

import pytest

from harness.judging.metrics import METRICS
from harness.run.execute import write_reports
from harness.store.runs import new_run_folder
from mecefo_chaos.cli.main import run_cli
from tests.harness import synthetic

pytestmark = pytest.mark.unit

KILL = ("kill-node", "--at", "step=5")


@pytest.fixture
def chaos(tmp_path, monkeypatch, capsys):
    """Runs the command line with its store in a folder of its own; returns (exit code, output, violations)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run_cli([*arguments, "--out", str(tmp_path / "out")])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def stored(tmp_path):
    folder = new_run_folder(tmp_path / "out", "synthetic")
    (folder / "events.jsonl").write_text("".join(f"{event.to_json()}\n" for event in synthetic.run()))
    write_reports(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --strategies and an experiment, or a run and its reference"),
        (("latest",), "give --strategies and an experiment"),
        (("--strategies", "mecefo,exacd", *KILL), "there is no strategy 'exacd'"),
        (("--strategies", "mecefo,exacd", *KILL), "did you mean 'exact'"),
        (("--strategies", "mecefo,mecefo", *KILL), "each of them once"),
        (("--strategies", "mecefo:spare=1", *KILL), "did you mean 'spares'"),
        (("--strategies", "mecefo,mecefo:spares=one", *KILL), "write a whole number: spares=1"),
        (("--strategies", "mecefo:spede", *KILL), "did you mean 'speed'"),
        (("--strategies", "mecefo:speed,exact:speed", *KILL), "exact has no quality; mecefo and mecefo+spare have one"),
        (("--strategies", "mecefo:speed:quality=0.5", *KILL), "'mecefo:speed:quality=0.5': each setting once"),
        (("--strategies", "mecefo:quality=2", *KILL), "must be auto, speed, exact or a share from 0 to 1"),
        (("--strategies", "mecefo:redundancy=2", *KILL), "must be left out with the strategy mecefo"),
        (("--strategies", "", *KILL), "there is no strategy ''"),
        (
            ("--strategies", "mecefo", *KILL, "--strategy", "ndb"),
            "--strategy: it has no meaning with --strategies: leave it out",
        ),
        (("--strategies", "mecefo", *KILL, "--tolerance", "5%"), "--tolerance: it has no meaning"),
        (("--strategies", "mecefo", "kill-nod", "--at", "step=5"), "there is no fault 'kill-nod'"),
        (("--strategies", "checkpoint", *KILL, "--repair", "none"), "would wait for ever"),
        (
            ("--strategies", "ndb", *KILL, "--checkpoint-every", "9", "--checkpoint-folder", "x"),
            "resume from the checkpoints of another",
        ),
        (("latest", "latest", "--steps", "5"), "--steps: stored runs are compared"),
        (("nothing", "nothing"), "holds no runs yet"),
    ],
)
def test_mistakes_are_told_before_anything_runs(chaos, tmp_path, arguments, words):
    code, out, err = chaos("compare", *arguments)
    assert (code, out) == (4, "")
    assert words in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--figure", "recovry"), "did you mean 'recovery'"),
        (("--figure", "twin_loss"), "neither better nor worse"),
        (("--tolerance", "-3"), "is no tolerance"),
        (("--tolerance", "lots"), "is no tolerance"),
        (("--tolerance", "inf"), "is no tolerance"),
        (("--tolerance", "nan"), "is no tolerance"),
    ],
)
def test_mistakes_about_figures(chaos, stored, options, words):
    code, _, err = chaos("compare", stored, stored, *options)
    assert code == 4
    assert words in err


def test_a_run_beside_itself(chaos, stored):
    code, out, _ = chaos("compare", stored, "latest")
    assert code == 0, out
    assert "steps_lost" in out and "within noise" in out


def test_the_runs_as_csv(chaos, stored, tmp_path):
    file = tmp_path / "runs.csv"
    code, _, err = chaos("compare", stored, "latest", "--csv", str(file))
    assert code == 0, err
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["set"] for row in rows] == [stored, "latest"]
    assert METRICS.keys() <= rows[0].keys()
    assert (rows[0]["verdict"], rows[0]["usable"], float(rows[0]["steps_lost"])) == ("pass", "1", 0)
    assert rows[0]["label"] == "ndb"


def test_a_single_slower_run_cannot_be_told_from_chance(chaos, stored, tmp_path):
    folder = new_run_folder(tmp_path / "out", "slower")
    events = synthetic.run(degraded_step_seconds=0.2)
    (folder / "events.jsonl").write_text("".join(f"{event.to_json()}\n" for event in events))
    code, out, _ = chaos("compare", str(folder), stored)
    assert code == 5, out
    assert "--repeat 3 on both sides" in " ".join(out.split())


@pytest.mark.parametrize(
    "options", [("--baseline", "nothing"), ("--repeat", "0"), ("--repeat", "2", "--junit", "nowhere/x.xml")]
)
def test_run_refuses_at_once(chaos, tmp_path, options):
    assert chaos("run", *KILL, *options)[0] == 4
    assert not (tmp_path / "out").exists()
