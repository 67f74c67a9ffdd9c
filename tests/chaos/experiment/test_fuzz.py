"""Damaged experiment files: each is planned, or refused in one message, and soon."""

import time
from collections import Counter

import pytest

from chaos.experiment.experiment import to_yaml
from chaos.experiment.reading import load
from mecefo_chaos.cli.main import run_cli
from tests.chaos.damage import SOUND, damaged

# CPU time of this thread, so that a busy machine does not count: what a file of the largest size allowed may take.
MAX_CPU_SECONDS = 10.0
MAX_MESSAGE_CHARACTERS = 20_000


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """Plans the content of a file; returns the exit code, after all that must hold of any was checked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("All happy families are alike. " * 200)
    path, again = tmp_path / "e.yaml", tmp_path / "again.yaml"

    def run(content):
        path.write_bytes(content)
        began = time.thread_time()
        code = run_cli(["plan", "e.yaml"])
        seconds = time.thread_time() - began
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert code in (0, 4), err
        if code == 4:
            assert err.startswith("chaos: ")
            assert sum(line.startswith("chaos: ") for line in err.splitlines()) == 1
            assert all(line.isprintable() for line in err[:-1].split("\n")), repr(err)
            assert len(err) < MAX_MESSAGE_CHARACTERS
            assert out == ""
        else:
            assert err == ""
            assert out
            # What is written down of it is the same experiment.
            again.write_text(to_yaml(load(path)))
            assert (run_cli(["plan", "again.yaml"]), *capsys.readouterr()) == (0, out, "")
        assert seconds < MAX_CPU_SECONDS
        return code

    return run


def fuzz(plan, seeds):
    counts = Counter()
    for seed in seeds:
        how, content = damaged(seed)
        try:
            counts[how, plan(content)] += 1
        except BaseException as error:
            error.add_note(f"damaged({seed}), {how}: {content[:2000]!r}")
            raise
    return counts


@pytest.mark.unit
@pytest.mark.parametrize("text", SOUND)
def test_what_is_not_damaged_is_planned(plan, text):
    assert plan(text.encode()) == 0


@pytest.mark.unit
def test_damaged_files_are_planned_or_refused(plan):
    counts = fuzz(plan, range(300))
    assert sum(count for (_, code), count in counts.items() if code == 4) > 150
    assert sum(count for (_, code), count in counts.items() if code == 0) > 20


@pytest.mark.nightly
def test_ten_thousand_damaged_files_are_planned_or_refused(plan):
    counts = fuzz(plan, range(1000, 11_000))
    assert {how for how, _ in counts} >= {"bytes_of", "words_of", "values_of", "deep", "alias_bomb"}
