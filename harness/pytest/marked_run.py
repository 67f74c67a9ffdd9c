"""The run of a test that is marked with `chaos`: from the marker to the experiment, its process and its verdict."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from chaos.errors import UsageError, nearest, shown
from chaos.experiment.command_job import CommandJob
from chaos.experiment.experiment import Experiment, to_yaml
from chaos.experiment.fault_spec import FAULT_KEYS
from chaos.experiment.job import Job
from chaos.experiment.reading import from_options
from chaos.experiment.terms import OPTIONS_OF_PARTS
from chaos.host import python_module
from chaos.host.run_files import EVENTS_FILE, SUMMARY_FILE
from harness.analysis.words import one_line
from harness.judging.early_end import check_gates
from harness.judging.gates import GateError
from harness.judging.summary import Summary, read_summary
from harness.report import wording
from harness.report.reproduction import reproduction
from harness.store.log import read_events
from harness.store.runs import safe_name
from mecefo_runtime.system.events import Event

DEFAULT_OUT = "chaos-runs"
MARKER = "@pytest.mark.chaos"
# Of a run that is told to end: it undoes what is active, stops its processes, and judges itself.
END_SECONDS = 60.0
_LOG_LINES = 20
_WIDTH = "100"
_DEFAULTS = ("backend", "nodes", "gpus_per_node", "steps", "seed", "strategy")
"""What `--resilience-...` says where the marker does not."""
_OWN = ("fault", "experiment", "check", "gate", "param", "for_")
_EXIT_USAGE = UsageError.exit_code
_OPTION = re.compile(r"(?<!\S)--([a-z][a-z-]*)")


class MarkedRun:
    """A run and its result. Before it was made, its figures are not available."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._summary: Mapping[str, Any] = {}
        self._report = ""

    @property
    def folder(self) -> Path:
        """Where its files are: events.jsonl, summary.json, report.html, junit.xml."""
        if self._folder is None:
            raise RuntimeError("the run is made when the test is called, after its fixtures: it has no figures yet")
        return self._folder

    @property
    def summary(self) -> Mapping[str, Any]:
        """Its summary.json."""
        assert self.folder
        return self._summary

    @property
    def verdict(self) -> str:
        """One word: pass, fail, halted, error, inconclusive, dirty."""
        return str(self.summary["verdict"])

    @property
    def reasons(self) -> Sequence[str]:
        """The sentences of the verdict."""
        return list(self.summary["reasons"])

    @property
    def incidents(self) -> Sequence[Mapping[str, Any]]:
        """Each planned fault with its figures."""
        return list(self.summary["incidents"])

    @property
    def report(self) -> str:
        """What `chaos run` printed."""
        assert self.folder
        return self._report

    def events(self) -> list[Event]:
        """The event log."""
        return list(read_events(self.folder / EVENTS_FILE)[0])

    def make(self, item: pytest.Item, started_in: Path) -> None:
        """Make the run that `item` is marked with, and fail the test of what the run fails of, unless `check=False`.

        Relative paths start at `started_in`.
        """
        said = said_by(item)
        experiment = experiment_of(item, said)
        out = started_in / (item.config.getoption("resilience_out") or DEFAULT_OUT)
        timeout_seconds = float(item.config.getoption("resilience_timeout"))
        try:
            out.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(out, item.config.getoption("resilience_overlap")):
                self._run(item, experiment, out, started_in, timeout_seconds)
        except OSError as error:
            pytest.fail(f"the run could not be made in {out}: {error.strerror}", pytrace=False)
        item.add_report_section("call", "chaos run", self._report)
        figures = read_summary(self.summary)
        item.user_properties.extend(_properties(figures, self.folder))
        if said.get("check", True) and self.verdict != "pass":
            pytest.fail(_failure(figures, self.folder), pytrace=False)

    def _run(
        self, item: pytest.Item, experiment: Experiment, out: Path, started_in: Path, timeout_seconds: float
    ) -> None:
        before = set(_runs_of(out, experiment.name))
        with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
            file = Path(scratch) / "experiment.yaml"
            file.write_text(to_yaml(experiment), encoding="utf-8")
            exit_code, self._report, log = _chaos(["run", str(file), "--out", str(out)], started_in, timeout_seconds)
        tail = "\n".join(log.splitlines()[-_LOG_LINES:])
        if exit_code == _EXIT_USAGE:
            _refuse(item, tail.removeprefix("chaos: "))
        new = sorted(set(_runs_of(out, experiment.name)) - before)
        if not new or not (new[-1] / SUMMARY_FILE).is_file():
            pytest.fail(f"chaos run ended with exit code {exit_code}, without a verdict:\n{tail}", pytrace=False)
        self._folder = new[-1]
        self._summary = json.loads((self._folder / SUMMARY_FILE).read_text(encoding="utf-8"))


def said_by(item: pytest.Item) -> dict[str, Any]:
    """What the markers of a test say together: the nearest one wins, gates add up."""
    said: dict[str, Any] = {}
    gates: list[Any] = []
    for marker in reversed(list(item.iter_markers("chaos"))):
        own = dict(marker.kwargs)
        if len(marker.args) > 1 or (marker.args and "fault" in own):
            _refuse(item, "give one fault without a name, and everything else as NAME=VALUE")
        if marker.args:
            own["fault"] = marker.args[0]
        gate = own.pop("gate", [])
        gates += gate if isinstance(gate, list | tuple) else [gate]
        said = {**said, **own}
    return {**said, "gate": gates}


def experiment_of(item: pytest.Item, said: Mapping[str, Any]) -> Experiment:
    """The experiment that the markers and the command line describe; a mistake in them fails the test."""
    known = _known()
    for key in said:
        if key not in known:
            guess = nearest(key, known)
            _refuse(item, f"there is no {key}{f'; did you mean {guess}?' if guess else ''}")
    if not isinstance(said.get("check", True), bool):
        _refuse(item, f"check must be True or False, not {shown(said['check'])}")
    if "fault" in said and "experiment" in said:
        _refuse(item, "it has both a fault and an experiment")
    subject = said.get("fault")
    if "experiment" in said:
        beside = item.path.parent / str(said["experiment"])
        subject = str(beside if beside.is_file() else said["experiment"])
    options = {key: value for key, value in said.items() if key not in _OWN and value is not None}
    if "for_" in said:
        options["for"] = said["for_"]
    if said["gate"]:
        options["gates"] = said["gate"]
    if "param" in said:
        options["parameters"] = _pairs(item, said["param"])
    for key in _DEFAULTS:
        default = item.config.getoption(f"resilience_{key}")
        if default is not None:
            options.setdefault(key, default)
    experiment = _read(None if subject is None else str(subject), options)
    if isinstance(experiment, str):
        _refuse(item, experiment)
    return experiment.model_copy(update={"name": _name(item)})


def _read(subject: str | None, options: Mapping[str, Any]) -> Experiment | str:
    """The experiment, or what is wrong with it."""
    try:
        experiment = from_options(subject, options)
        check_gates(experiment.gates)
    except UsageError as error:
        return "; ".join(_sentence(problem) for problem in error.problems or (error,))
    except GateError as error:
        return f"gate: {error}"
    return experiment


def _known() -> Collection[str]:
    fields = {*Experiment.model_fields, *Job.model_fields, *CommandJob.model_fields, *FAULT_KEYS}
    fields -= {"name", "faults", "job", "gates", "limits", "kind", "runtime", "for", "parameters"}
    beside = (*OPTIONS_OF_PARTS, "command", "abort_on_fail")
    return sorted({*fields, *_OWN, *beside})


def _pairs(item: pytest.Item, parameters: object) -> list[str]:
    if not isinstance(parameters, Mapping):
        _refuse(item, f"param is a mapping, such as {{'delay': '50ms'}}, not {shown(parameters)}")
    return [f"{key}={value}" for key, value in parameters.items()]


def _sentence(problem: UsageError) -> str:
    """A violation about an option of the command line, as one about a keyword of the marker."""
    key = (problem.key or "").removeprefix("--").strip().lower()
    key = key.replace("-", "_") if key.replace("-", "").isalpha() else key
    guess = f" (did you mean {problem.suggestion!r}?)" if problem.suggestion else ""
    where = "".join(f"{part}:" for part in (problem.path, problem.line) if part) + (" " if problem.path else "")
    # Advice names options, too, which are keywords here.
    message = _OPTION.sub(lambda option: option[1].replace("-", "_"), problem.message)
    return f"{where}{f'{key}: ' if key else ''}{message}{guess}"


def location_of(item: pytest.Item) -> str:
    """`tests/test_x.py:12`: the file and line of a test, from where pytest was started."""
    path, line, _ = item.reportinfo()
    shown_path = os.path.relpath(path, item.config.invocation_params.dir)
    return shown_path if line is None else f"{shown_path}:{line + 1}"


def _refuse(item: pytest.Item, sentence: str) -> NoReturn:
    pytest.fail(f"{location_of(item)}: {MARKER}: {sentence}", pytrace=False)


def _name(item: pytest.Item) -> str:
    """The name of the experiment, and so the folder of its runs: that of the test, with its module."""
    return one_line(f"{item.path.stem}-{item.name}")[:100]


def _runs_of(out: Path, name: str) -> Iterator[Path]:
    with suppress(OSError):
        yield from (folder for folder in (out / safe_name(name)).iterdir() if folder.is_dir())


@contextmanager
def _one_at_a_time(out: Path, may_overlap: bool) -> Iterator[None]:
    """Wait until no other worker has a run in `out`: each of them ends in time, and the kernel unlocks for the dead."""
    if may_overlap:
        yield
        return
    with (out / ".pytest.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _chaos(arguments: Sequence[str], started_in: Path, timeout_seconds: float) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of one `chaos`; it is ended in order when we are."""
    environment = {**os.environ, "COLUMNS": _WIDTH, "NO_COLOR": "1"}
    process = subprocess.Popen(
        python_module.command("chaos", *arguments, "--no-github"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=started_in,
        env=environment,
        encoding="utf-8",
        errors="replace",
    )
    try:
        report, log = process.communicate(timeout=timeout_seconds)
        return process.returncode, report, log
    except subprocess.TimeoutExpired:
        log = _end(process)
    except BaseException:
        _end(process)
        raise
    # Out here, or pytest would tell of the other exception first.
    tail = "\n".join(log.splitlines()[-_LOG_LINES:])
    pytest.fail(f"chaos run took longer than {timeout_seconds:g} s and was stopped:\n{tail}", pytrace=False)


def _end(process: subprocess.Popen[str]) -> str:
    """End a run in order, by force only where that does not help; returns what it said on standard error."""
    for end in (process.terminate, process.kill):
        end()
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=END_SECONDS)[1]
    return ""


def _properties(summary: Summary, folder: Path) -> Iterator[tuple[str, object]]:
    yield "chaos_verdict", summary.verdict
    yield "chaos_run", str(folder)
    yield "chaos_experiment_hash", str(summary.experiment_hash)
    for gate in summary.gates:
        yield f"chaos_gate: {gate.expression}", f"{wording.gate_word(gate)}: {wording.gate_value(gate)}"
    for incident in summary.incidents:
        seconds = wording.recovery_seconds(incident)
        if seconds is not None:
            yield f"chaos_recovery_seconds_{incident.incident}", seconds


def _failure(summary: Summary, folder: Path) -> str:
    """What the report says of a run that did not pass, in a few lines."""
    verdict, reasons = summary.verdict.upper(), summary.reasons
    how = reproduction(summary, folder, os.environ)
    lines = [
        f"chaos run: {verdict}: {reasons[0] if reasons else wording.headline(summary)}",
        *(f"- {reason}" for reason in reasons[1:]),
        f"report: {folder / 'report.html'}",
        f"again{f' {how.where}' if how.where else ''}: {how.command}",
    ]
    return "\n".join(lines)
