"""`chaos validate`: what is told of which file, and what a file may be."""

import json
import os

import pytest

pytestmark = pytest.mark.unit

GOOD = "name: good\nfaults:\n- {kind: kill-node, at: step=5}\ngates: [recovery_seconds < 5]\n"
BAD = "name: bad\njob: {stepz: 5}\nfaults:\n- {kind: kill-nod, at: step=5}\ngates: [a < 1]\n"


def test_valid_files_are_told_with_what_is_in_them(chaos, tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD)
    assert chaos("validate", "good.yaml") == (0, "good.yaml: valid: 1 fault, 1 incident, 1 gate\n", "")


def test_every_error_of_every_file_has_its_line(chaos, tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(BAD)
    code, out, err = chaos("validate", "good.yaml", "bad.yaml", "missing.yaml")
    assert (code, err) == (4, "")
    valid, *errors, missing = out.splitlines()
    assert valid.startswith("good.yaml: valid")
    assert [line.split(" ")[0] for line in errors] == ["bad.yaml:2:", "bad.yaml:4:", "bad.yaml:5:"]
    assert "did you mean 'steps'?" in errors[0] and "did you mean 'kill-node'?" in errors[1]
    assert missing == "missing.yaml: cannot read the file: No such file or directory"


def test_as_json(chaos, tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(BAD)
    code, out, _ = chaos("validate", "--json", "good.yaml", "bad.yaml")
    good, bad = json.loads(out)
    assert (code, good) == (4, {"file": "good.yaml", "valid": True, "errors": []})
    assert [(error["line"], error["key"]) for error in bad["errors"]] == [
        (2, "job.stepz"),
        (4, "faults[0].kind"),
        (5, "gates[0]"),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(range(256)), "not"),
        (b"a: b\n" * 100_000, "too large"),
        (b"", "empty"),
        (b"name: x\njob:\n\tsteps: 5\n", "x.yaml:3: not YAML: a tab where only spaces may stand"),
    ],
    ids=["binary", "huge", "empty", "tab"],
)
def test_what_is_no_experiment(chaos, tmp_path, content, words):
    (tmp_path / "x.yaml").write_bytes(content)
    code, out, err = chaos("validate", "x.yaml")
    assert (code, err, out.count("\n")) == (4, "", 1)
    assert out.startswith("x.yaml:") and words in out


def test_what_is_no_file(chaos, tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    code, out, _ = chaos("validate", "pipe.yaml", "/dev/zero", ".", "", "kill-node")
    assert code == 4
    assert [line.partition(": ")[0] for line in out.splitlines()] == ["pipe.yaml", "/dev/zero", ".", "''", "kill-node"]


def test_what_another_machine_may_have_is_not_asked_of_this_one(chaos, tmp_path, monkeypatch):
    monkeypatch.setattr("harness.node.node.ThisMachine.why_no_networks", lambda self: "there are no networks")
    of_a_cluster = "job: {nodes: 500, model: 7b, data: elsewhere.txt}\nnetwork: namespaces\n"
    (tmp_path / "big.yaml").write_text(f"{of_a_cluster}name: x\nfaults:\n- {{kind: drop-link, at: step=5, for: 3s}}\n")
    assert chaos("validate", "big.yaml")[0] == 0
    assert chaos("run", "big.yaml", "--dry-run")[0] == 4


def test_a_job_of_a_command_needs_no_program_here(chaos, tmp_path):
    job = "job: {runtime: command, command: [no-such-program, train.py]}\n"
    (tmp_path / "own.yaml").write_text(f"{job}name: x\nfaults:\n- {{kind: raise, at: step=5}}\n")
    assert chaos("validate", "own.yaml")[0] == 0
    assert "no-such-program" in chaos("run", "own.yaml", "--dry-run")[2]


def test_a_github_workflow_gets_annotations(chaos, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (tmp_path / "bad.yaml").write_text(BAD)
    err = chaos("validate", "bad.yaml")[2]
    assert err.splitlines()[0].startswith("::error file=bad.yaml,line=2,title=chaos%3A usage error::job.stepz: unknown")
