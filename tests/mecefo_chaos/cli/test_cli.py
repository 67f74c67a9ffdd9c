"""The command line without a job: what is refused and how, what is planned, what is printed where."""

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.doctor.finding import Check
from mecefo_chaos.cli.main import run_cli

pytestmark = pytest.mark.unit

KILL = ("kill-node", "--at", "step=10")


def write(name, text):
    path = Path(name)
    path.write_text(text)
    return path


class TestHelp:
    def test_the_command(self, chaos):
        code, out, _ = chaos("--help")
        assert code == 0
        for word in ("run", "plan", "faults", "report", "runs", "schema", "Exit codes", "chaos run kill-node"):
            assert word in out

    @pytest.mark.parametrize("command", ["run", "plan", "faults", "report", "runs", "schema"])
    def test_each_command(self, chaos, command):
        code, out, _ = chaos(command, "--help")
        assert code == 0
        assert f"chaos {command}" in out

    @pytest.mark.parametrize("command", ["report", "replay", "serve", "shrink"])
    def test_the_newest_run_need_not_be_named(self, chaos, command):
        assert f"Usage: chaos {command} [OPTIONS] [RUN]" in chaos(command, "--help")[1]

    def test_version(self, chaos):
        code, out, _ = chaos("--version")
        assert code == 0
        assert "chaos" in out

    def test_it_is_a_module_that_runs_too(self, tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", "mecefo_chaos", "run", "kill-nod"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 4 and "did you mean 'kill-node'" in done.stderr

    def test_it_needs_neither_torch_nor_rich(self):
        code = """
import sys
from mecefo_chaos.cli.main import run_cli
from harness.doctor.finding import Check
assert run_cli(["--help"]) == 0
sys.exit(", ".join({"torch", "rich", "pydantic", "yaml", "jinja2"} & set(sys.modules)) or None)
"""
        root = Path(__file__).resolve().parents[3]
        done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


COLOURED = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self):
        return True


@pytest.mark.parametrize("arguments", [("doctor",), ("report", "latest")])
def test_a_terminal_has_colours_and_whoever_wants_none_has_none(stored_run, monkeypatch, arguments):
    monkeypatch.setattr("harness.backends.examine.examine", lambda *_: iter([Check("torch", "all").ok("is there")]))

    def printed(**environment):
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", Terminal())
            for name, value in {"NO_COLOR": "", "TERM": "xterm-256color", **environment}.items():
                patch.setenv(name, value)
            run_cli(list(arguments))
            return sys.stdout.getvalue()

    assert COLOURED.search(printed())
    assert not COLOURED.search(printed(NO_COLOR="1"))
    assert not COLOURED.search(printed(TERM="dumb"))


class TestPlan:
    def test_it_says_what_would_be_done_and_starts_nothing(self, chaos, tmp_path):
        code, out, err = chaos("run", *KILL, "--on", "node=2", "--gate", "recovery_seconds < 2", "--dry-run")
        assert (code, err) == (0, "")
        for word in (
            "4 nodes x 2 ranks",
            "4 replicas x 2 stages",
            "kill-node on node=2 at step=10",
            "40steps",
            "baseline",
        ):
            assert word in out
        assert "gate: recovery_seconds < 2" in out
        assert list(tmp_path.iterdir()) == []

    def test_it_is_the_dry_run(self, chaos):
        assert chaos("plan", *KILL, "--json") == chaos("run", *KILL, "--dry-run", "--json")

    @pytest.mark.parametrize(
        ("own", "shown"),
        [
            (
                ("slow-rank", "-p", "factor=3", "--for", "3s"),
                "for 3s, with factor=3.0 jitter=0.0 period=0.05s seed=0\n",
            ),
            (("kill-process", "-p", "signal=SIGTERM"), "repaired after 40steps, with signal=SIGTERM\n"),
            (("bit-flip", "-p", "bit=exponent"), "step=10, with where=gradients bit=exponent sticky=false\n"),
            (("raise", "-p", "message=out of memory"), ', with exception=RuntimeError message="out of memory"\n'),
            (("segfault",), "step=10, repaired after 40steps\n"),
        ],
    )
    def test_what_the_fault_was_told(self, chaos, own, shown):
        kind, *parameters = own
        arguments = ("plan", kind, "--at", "step=10", "--on", "rank=1", *parameters)
        code, out, _ = chaos(*arguments)
        assert code == 0
        assert shown.strip() in " ".join(out.split())
        (incident,) = json.loads(chaos(*arguments, "--json")[1])["incidents"]
        for key, value in (pair.split("=") for pair in parameters if "=" in pair):
            assert str(incident["parameters"][key]) in (value, f"{value}.0")

    def test_the_same_seed_gives_the_same_plan(self, chaos):
        plans = {seed: [chaos("plan", *KILL, "--seed", seed, "--json")[1] for _ in range(2)] for seed in range(6)}
        assert all(one == other for one, other in plans.values())
        targets = {json.loads(plan)["incidents"][0]["target"] for plan, _ in plans.values()}
        assert len(targets) > 1

    def test_again_and_again(self, chaos):
        code, out, err = chaos("plan", "kill-process", "--every", "100steps", "--count", "3", "--on", "rank=1")
        assert (code, err) == (0, "")
        for step in (100, 200, 300):
            assert f"kill-process on rank=1 at step={step}, repaired after 40steps" in out
        assert "step=400" not in out
        code, out, _ = chaos("plan", "kill-process", "--rate", "0.5/min", "--seed", "3", "--json")
        plan = json.loads(out)
        assert code == 0
        assert all(incident["is_optional"] for incident in plan["incidents"])
        assert "in the first 600s" in plan["notes"][0]

    def test_a_profile(self, chaos):
        code, out, err = chaos("plan", "--profile", "llama3:5", "--seed", "1")
        assert (code, err) == (0, "")
        assert out.count("incident ") == 5
        assert "8 ranks fail once in 264 days at the rate of llama3; here 5 failures in 560 steps" in out
        code, out, _ = chaos("plan", "--profile", "llama3:5", "--seed", "1", "--json")
        plan = json.loads(out)
        assert plan["experiment"]["name"] == "profile-llama3"
        assert plan["time_compression"]["real_days_per_failure"] == pytest.approx(263.94, abs=0.01)
        assert 0 <= plan["profile_left_out_ratio"] < 1

    def test_a_file_can_be_planned_again_from_its_plan(self, chaos):
        write(
            "two.yaml", "name: two\nfaults:\n  - {kind: kill-node, at: step=5}\n  - {kind: kill-process, at: step=9}\n"
        )
        code, out, _ = chaos("plan", "two.yaml", "--json")
        assert code == 0
        plan = json.loads(out)
        assert [incident["fault"] for incident in plan["incidents"]] == ["kill-node", "kill-process"]
        Path("again.yaml").write_text(json.dumps(plan["experiment"]))
        assert json.loads(chaos("plan", "again.yaml", "--json")[1]) == plan


class TestOneDocument:
    """With --json, standard output is one JSON document and nothing else."""

    def test_faults(self, chaos):
        code, out, err = chaos("faults", "--json")
        assert (code, err) == (0, "")
        kinds = [row["kind"] for row in json.loads(out)]
        assert kinds == sorted(kinds)
        assert {"kill-node", "kill-process"} <= set(kinds)
        # Not the file's name: those who read it group by it.
        assert {row["family"] for row in json.loads(out) if row["kind"].endswith("-link")} == {"isolate", "link"}
        assert {"kind", "scope", "fidelity", "needs", "undo", "summary"} <= set(json.loads(out)[0])

    def test_faults_for_people(self, chaos):
        code, out, _ = chaos("faults")
        assert code == 0
        lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
        for row in json.loads(chaos("faults", "--json")[1]):
            assert row["fidelity"] in lines[row["kind"]]
            assert row["summary"] in " ".join(chaos("faults", row["kind"])[1].split())
        assert "..." not in out.replace("down, ...", "")

    def test_the_table_of_faults_fits_eighty_columns_wherever_it_goes(self, chaos, monkeypatch):
        piped = chaos("faults")[1]
        assert max(map(len, piped.splitlines())) <= 80
        headings = [line for line in piped.splitlines() if re.fullmatch(r"[A-Z][\w ]+", line)]
        assert headings == ["Processes and nodes", "Network", "Checkpoints and snapshots", "GPUs and tensors"]
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert chaos("faults")[1] == piped

    def test_faults_on_a_narrow_terminal(self, chaos, monkeypatch):
        wide = chaos("faults", "slow-link")[1]
        assert max(map(len, wide.splitlines())) > 60
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        narrow = chaos("faults", "slow-link")[1]
        assert max(map(len, narrow.splitlines())) <= 60
        assert narrow.split() == wide.split()

    def test_schema(self, chaos):
        code, out, _ = chaos("schema")
        assert code == 0
        assert json.loads(out)["$schema"].startswith("https://json-schema.org/")

    def test_no_runs(self, chaos):
        code, out, _ = chaos("runs", "--json")
        assert (code, json.loads(out)) == (0, [])
        code, out, err = chaos("runs")
        assert (code, out) == (0, "")
        assert "chaos run" in err

    def test_runs_and_report(self, chaos, stored_run):
        code, out, _ = chaos("runs", "--json")
        assert code == 0
        (listed,) = json.loads(out)
        assert (listed["name"], listed["verdict"]) == ("cut", "cut off")
        code, out, _ = chaos("report", "--json")
        summary = json.loads(out)
        assert (code, summary["exit_code"], summary["verdict"]) == (5, 5, "inconclusive")
        assert summary["status"] == "cut off"
        code, out, _ = chaos("report", "cut")
        assert code == 5
        assert "cut off" in out
        assert listed["reference"] in chaos("runs")[1]


@pytest.fixture
def stored_run(tmp_path):
    """A run that was cut off in the middle of its third line."""
    folder = tmp_path / "chaos-runs" / "cut" / "20260101T000000Z"
    folder.mkdir(parents=True)
    base = {
        "job": "main",
        "source": "conductor",
        "rank": None,
        "node": None,
        "pid": 2**22 + 1,
        "attempt": 1,
        "step": None,
    }
    lines = [
        {**base, "time": 1.0, "monotonic": 1.0, "kind": "run_started", "fields": {"experiment": {"name": "cut"}}},
        {**base, "time": 2.0, "monotonic": 2.0, "kind": "job_started", "fields": {"steps": 5, "num_ranks": 1}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "events.jsonl").write_text(text + text[:50])
    return folder


class TestReport:
    def test_nearest_run(self, chaos, stored_run):
        code, out, err = chaos("report", "cat")
        assert (code, out) == (4, "")
        assert "cut" in err

    @pytest.mark.parametrize("log", ["", "no event\n{}\n"])
    def test_a_log_that_cannot_be_read_is_told_alike_by_every_command(self, chaos, stored_run, log):
        (stored_run / "events.jsonl").write_text(log)
        told = {chaos(*command, "cut") for command in (("report",), ("serve",), ("compare", "cut"), ("replay",))}
        ((code, out, err),) = told
        assert (code, out) == (3, "")
        assert f"no events in it ({len(log.splitlines())} unreadable lines)" in err

    def test_a_run_that_is_not_there_is_told_alike_by_every_command(self, chaos, stored_run):
        told = {chaos(*command, "cat") for command in (("report",), ("serve",), ("compare", "cat"), ("replay",))}
        ((code, out, err),) = told
        assert (code, out) == (4, "")
        assert "there is no run 'cat'" in err

    def test_log_of_events_that_no_run_writes(self, chaos, stored_run):
        log = stored_run / "events.jsonl"
        first, *rest = log.read_text().splitlines()
        log.write_text("\n".join([json.dumps({**json.loads(first), "fields": {}}), *rest]))
        code, out, err = chaos("replay", "cut")
        assert (code, out) == (3, "")
        assert "not such as a run writes" in err

    @pytest.mark.parametrize("error", [KeyError("spans"), OverflowError("too large"), TypeError("float")])
    def test_report_that_breaks_down_of_its_log(self, chaos, stored_run, monkeypatch, error):
        def break_down(*_, **__):
            raise error

        monkeypatch.setattr("harness.report.terminal.render", break_down)
        code, out, err = chaos("report", "cut")
        assert (code, out) == (3, "")
        assert "not such as a run writes" in err
        assert type(error).__name__ in err

    def test_store_that_is_a_file(self, chaos):
        write("file", "in the way")
        for command in ("runs", "report"):
            code, out, err = chaos(command, "--out", "file")
            assert (code, out) == (4, "")
            assert "file" in err

    def test_store_that_cannot_be_read(self, chaos, stored_run, monkeypatch):
        def refuse(_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "iterdir", refuse)
        code, out, err = chaos("runs")
        assert (code, out) == (3, "")
        assert "chaos-runs" in err
        assert "Permission denied" in err


def test_a_mistake_of_ours_shows_its_traceback_and_is_no_failed_gate(capsys, monkeypatch):
    def break_down(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("chaos.experiment.schema.json_schema", break_down)
    assert run_cli(["schema"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" in err
    assert "ZeroDivisionError: ours" in err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_like_those_that_nobody_reads(closed, tmp_path):
    # Whatever is opened must not take their place.
    start = "import os\nfrom mecefo_chaos.cli import main as it\n"
    code = f"{start}it.run_cli = lambda _: os.pipe()[0] < 3 or print('x')\nit.main()"
    root = Path(__file__).resolve().parents[3]
    shell = f"cd {shlex.quote(str(root))} && {shlex.quote(sys.executable)} -c {shlex.quote(code)} {closed}"
    done = subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else "x\n")


def test_interrupted_before_anything(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("chaos.experiment.schema.json_schema", interrupt)
    assert run_cli(["schema"]) == 2
    assert capsys.readouterr().err.strip() == "chaos: interrupted"


def test_interrupted_while_it_is_read_in(tmp_path):
    # As Ctrl-C does that comes in the middle of an import.
    code = "import sys\nimport mecefo_chaos.__main__ as it\nsys.meta_path.insert(0, Stop)\nit.main()"
    stop = "class Stop:\n    def find_spec(*_):\n        raise KeyboardInterrupt\n"
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", stop + code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "chaos: interrupted\n")
