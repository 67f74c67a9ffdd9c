"""Whatever a command prints fits the terminal, at 60, 80 and 120 columns.

The rule: no line is wider than the terminal, as a terminal counts cells (two for a wide character, none for a
combining one). What may be wider, because it is to be copied or read by a program: a word, such as a path; a command,
alone on its line or in backquotes; JSON, YAML and completion scripts; an error with its file and line; and in a pipe
the list of runs, which has a line for each. Messages on standard error are one line each, for the logs of CI.
"""

import re
import unicodedata
from dataclasses import replace

import pytest

from chaos.faults import registry
from chaos.host.terminal import text_columns, wrap_text
from chaos.undo.heal import Healed
from harness.comparison.figures import DECIDING
from harness.comparison.rounds import REFUSED
from harness.comparison.sample import Run
from harness.comparison.text import against_lines, set_lines
from harness.comparison.verdicts import judge_against, judge_comparison
from harness.doctor.finding import Check
from mecefo_chaos.cli.calibrate import _told as calibrated
from mecefo_chaos.cli.doctor import _told as examined
from mecefo_chaos.cli.heal import _told as healed
from mecefo_chaos.cli.main import run_cli
from mecefo_chaos.studies.forecast.text import to_text
from mecefo_runtime.prediction.named_devices import named_device
from tests.harness import synthetic
from tests.harness.comparison.samples import run, run_set, sample
from tests.harness.synthetic import Fault
from tests.mecefo_chaos.studies.papers import checks

pytestmark = pytest.mark.unit

WIDTHS = (60, 80, 120)
WIDE_NAME = "実験" * 12
LONG_PATH = "/a/folder/with/a/name/that/is/longer/than/any/terminal/in/this/test/" + "x" * 80
WORD = re.compile(r"(?:`[^`]*`|[^ ])+")
COMMAND = re.compile(r"\s*(chaos|python3? -m|docker|pip) ")
COMMANDS = (
    ("faults",),
    *(("faults", kind) for kind in registry()),
    ("gates",),
    ("gates", "recovery", "throughput_drop < 40%", "throughput min after >= 5tokens/s"),
    ("plan", "kill-node", "--at", "step=500", "--gate", "recovery_seconds p95 < 5s"),
    ("plan", "kill-process", "--at", "step=30", "--", "python", "train.py", *["--a-long-option=value"] * 9),
    ("heal", "--dry-run"),
    ("runs",),
    ("report",),
)
NOT_KNOWN = Check("GPUs in containers", "--backend docker with ranks on CUDA devices", ("docker",))


def cells(text):
    """As a terminal counts them (Unicode Standard Annex 11, wcwidth)."""
    none = sum(unicodedata.category(char) in ("Mn", "Me", "Cf") for char in text)
    return len(text) - none + sum(unicodedata.east_asian_width(char) in "WF" for char in text)


def too_wide(text, width):
    """The lines of `text` that break the rule."""
    wrong = []
    for line in re.sub("\x1b\\[[0-9;]*m", "", text).splitlines():
        longest = max((cells(word) for word in WORD.findall(line)), default=0)
        is_word = len(line) - len(line.lstrip()) + longest > width
        if cells(line) > width and not is_word and not COMMAND.match(line):
            wrong.append(line)
    return wrong


@pytest.fixture(autouse=True, params=WIDTHS)
def width(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder with a store of runs: one whose name is wide, and one with many incidents that failed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    faults = [Fault(step=10 + 8 * index, node=index % 4, repair_steps=3) for index in range(6)]
    logs = {
        "wide": synthetic.run(name=WIDE_NAME, gates=["recovery_seconds p95 < 5ms", "throughput_drop <= 90%"]),
        "many": synthetic.run(faults=faults, steps=120, job_fails=True, gates=["recovery_seconds max < 1ms"]),
    }
    for number, (name, events) in enumerate(logs.items()):
        folder = tmp_path / "chaos-runs" / name / f"20260101T00000{number}Z"
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_text("".join(event.to_json() + "\n" for event in events))
    return ["wide", "many"]


def test_the_rule_finds_what_breaks_it():
    assert too_wide("a b " * 20, 60) == ["a b " * 20]
    assert too_wide("実 " * 25, 60) == ["実 " * 25], "two cells each"
    assert not too_wide("e\u0301 " * 30, 60), "a combining character takes none"
    assert not too_wide(f"  files: {LONG_PATH}\nchaos run x {'y ' * 60}\nsee `chaos {'run ' * 30}`", 60)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_fit(command, width, capsys, runs, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    run_cli(list(command))
    out = capsys.readouterr().out
    assert out and too_wide(out, width) == []


def test_reports_fit(width, capsys, runs):
    for name in runs:
        run_cli(["report", name])
        out = capsys.readouterr().out
        assert "Reproduce" in out and too_wide(out, width) == []


def test_comparisons_fit(width):
    samples = [
        sample(0.3, 0.4, 12345.6, label="mecefo"),
        replace(sample(0.0, label="checkpoint"), runs=[Run(REFUSED, error="give a repair, " * 9)]),
        sample(4.0, 3.0, 5.0, label="mecefo:spares=1,redundancy=3,and=more"),
        replace(sample(1.0, label=WIDE_NAME), runs=[replace(run("inconclusive"), reasons=("not verified " * 9,))]),
    ]
    found = run_set(*samples)
    assert too_wide("\n".join(set_lines(found, judge_comparison(found), LONG_PATH, width=width)), width) == []
    for now, base in ((samples[0], samples[2]), (sample(1.0), sample(2.0)), (sample(1.0, 1.1), sample(2.0, 2.1))):
        against = judge_against([now], [replace(base, label=now.label)], DECIDING, 0.05)
        assert too_wide("\n".join(against_lines(against, "this run", LONG_PATH, width)), width) == []


def test_a_forecast_fits(width):
    assert too_wide(to_text(checks.forecast(), width), width) == []


@pytest.mark.parametrize("paper", checks.PAPERS)
def test_papers_fit(paper, width):
    text = checks.PAPERS[paper]().text(width)
    assert len(text.splitlines()) > 50 and too_wide(text, width) == []


def test_findings_of_the_machine_fit(width):
    for finding in (
        NOT_KNOWN.ok("a word " * 30),
        NOT_KNOWN.wrong(f"it is not as it should be, {LONG_PATH} is " * 3, "do this, " * 20 + "or `chaos doctor`"),
    ):
        assert too_wide(examined(finding), width) == []


def test_what_was_healed_and_measured_fits(width):
    undone = {"incident": 0, "fault": "fill-disk", "paths": [LONG_PATH], "pids": [1], "evidence": {"undone": "a " * 90}}
    one = Healed("r", LONG_PATH, undone=[undone], problems=("something of a length that takes two lines " * 4,))
    for text in (healed(one, False), calibrated(named_device("a100-7b"))):
        assert too_wide(wrap_text(text, text_columns()), width) == []
