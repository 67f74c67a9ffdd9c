"""One cell: `chaos run FAULT ... --json -- COMMAND` as anybody calls it, and what came of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.frameworks.cases import Fault, Framework
from benchmarks.frameworks.own_log import (
    are_replicas_equal,
    injected_at,
    last_step,
    read_stamps,
    recovery_seconds,
    steps_repeated,
)
from harness.judging.caveat_reasons import caveat_text
from harness.judging.summary import Summary, read_summary
from harness.judging.verdict import GATE_FAILED, GATE_UNDECIDED, LOSS_NOT_FINITE

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_SECONDS, END_TIMEOUT_SECONDS = 240.0, 60.0
EXIT_ENVIRONMENT = 3
# Apart by more than this, the run and the script's own record disagree.
MAX_RECOVERY_DIFFERENCE_SECONDS = 0.1
# What the columns of a cell, or the words before, say already.
_SAID_ALREADY = ("passed", GATE_FAILED, GATE_UNDECIDED, LOSS_NOT_FINITE)
"""Codes of reasons that another figure of the cell shows."""
_OF_REPLICAS = ("replicas_unknown", "replicas_differed", "replicas_compared_early")
"""Codes of caveats that a cell repeats."""
_REPLICAS_DIFFER = "replicas_differ"
_EXCEPTION = re.compile(r"\w+(?:Error|Exception): [^|;\n]*")
_WHO = re.compile(r"^incident \d+ \([^)]*\)[:,]? ")


@dataclass(frozen=True, slots=True)
class Round:
    """One run. `own_*` is by the script's own record; None where nobody knows, or it never happened.

    `last_step` is the last that the script says it was done with. `error` says why there is no summary.
    """

    verdict: str
    exit_code: int
    what: str
    attempts: int | None = None
    steps_lost: int | None = None
    own_steps_lost: int | None = None
    recovery_seconds: float | None = None
    own_recovery_seconds: float | None = None
    last_step: int | None = None
    own_replicas_equal: bool | None = None
    reasons: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    reason_codes: tuple[str, ...] = ()
    error: str | None = None

    @property
    def disagreements(self) -> list[str]:
        """Where the run says something else than the script."""
        found = []
        if self.error is None and self.steps_lost != self.own_steps_lost:
            found.append(f"steps lost: {self.steps_lost}, by the script's own record {self.own_steps_lost}")
        said, own = self.recovery_seconds, self.own_recovery_seconds
        if (self.error is None and (said is None) != (own is None)) or (
            said is not None and own is not None and abs(said - own) > MAX_RECOVERY_DIFFERENCE_SECONDS
        ):
            found.append(f"recovery: {_seconds(said)}, by the script's own record {_seconds(own)}")
        if self.verdict == "pass" and self.own_replicas_equal is False:
            found.append("pass, though the replicas' parameters differ at the end")
        if self.own_replicas_equal and _REPLICAS_DIFFER in self.reason_codes:
            found.append("replicas are said to differ, though their parameters are equal at the end")
        return found

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "disagreements": self.disagreements}


def measure(framework: Framework, fault: Fault, out: Path) -> Round:
    """Run one cell, its checkpoints and the run in `out`."""
    folder = out / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    place = ["--at", fault.at, "--on", framework.victim]
    options = [*place, *framework.options, *fault.options, "--json", "--out", str(out / "runs")]
    command = [sys.executable, "-m", "mecefo_chaos", "run", fault.kind, *options, "--", *framework.command(folder)]
    environment = {key: value for key, value in os.environ.items() if key != "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"}
    environment |= {
        "OMP_NUM_THREADS": "1",
        # Torchft's lighthouse and torchrun are beside the Python that has them.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "LIGHTHOUSE_PORT": str(_free_port()),
        # DeepSpeed compiles at its first start, under a lock; not where others do, and once for all its faults.
        "TORCH_EXTENSIONS_DIR": str(out.parent / "torch_extensions"),
        **framework.environment,
    }
    try:
        exit_code, told, said = _run(command, environment)
    except subprocess.TimeoutExpired:
        reason = f"did not end within {RUN_TIMEOUT_SECONDS:.0f} s"
        return Round("no result", -signal.SIGINT, reason, error=reason)
    try:
        summary = read_summary(json.loads(told))
    except (ValueError, TypeError):
        reason = why_not_run(said)
        return Round("error", exit_code, reason, error=reason)
    if summary.exit_code == EXIT_ENVIRONMENT:
        reason = why_not_run("\n".join(summary.reasons))
        return Round(summary.verdict, summary.exit_code, reason, error=reason)
    return read_round(summary, out / "runs/latest/events.jsonl", folder)


def read_round(summary: Summary, log: Path, folder: Path) -> Round:
    """The figures of a run, and those of the script's own record in `folder`."""
    stamps = read_stamps(folder)
    with log.open(encoding="utf-8") as lines:
        injected_seconds = injected_at(map(json.loads, lines))
    incident = summary.incidents[0] if summary.incidents else None
    return Round(
        verdict=summary.verdict,
        exit_code=summary.exit_code,
        what=what_happened(summary),
        attempts=summary.attempts,
        steps_lost=summary.steps_lost,
        own_steps_lost=steps_repeated(stamps),
        recovery_seconds=None if incident is None else incident.recovery_seconds,
        own_recovery_seconds=None if injected_seconds is None else recovery_seconds(stamps, injected_seconds),
        last_step=last_step(stamps),
        own_replicas_equal=are_replicas_equal(stamps),
        reasons=tuple(summary.reasons),
        caveats=tuple(summary.caveats),
        reason_codes=tuple(reason.code for reason in summary.reason_codes),
    )


def what_happened(summary: Summary) -> str:
    """The summary in a few words: how the job continued, how it ended, and what was wrong with it."""
    incident = summary.incidents[0] if summary.incidents else None
    parts = []
    if incident is None or not incident.injected:
        parts.append("the fault did not come")
    elif incident.recovered is False:
        parts.append("made no step after it")
    elif incident.recovery_attempt is not None and incident.recovery_attempt != incident.attempt:
        parts.append(f"started again, on from step {incident.recovery_step}")
    elif incident.recovered:
        parts.append("went on in the same processes")
    if summary.first_non_finite_loss_step is not None:
        parts.append(f"loss not finite from step {summary.first_non_finite_loss_step} on")
    drop = summary.throughput_drop_ratio
    if incident is not None and incident.fault == "slow-rank" and drop is not None:
        parts.append(f"{drop:.0%} slower")
    if summary.job_outcome not in (None, "completed"):
        parts.append(f"the job {summary.job_outcome}")
    others = summary.reasons_without(lambda reason: reason.code in _SAID_ALREADY)
    parts += [_WHO.sub("", sentence) for _, sentence in others]
    parts += [caveat_text(caveat) for caveat in summary.caveat_codes if caveat.code in _OF_REPLICAS]
    return "; ".join(part.rstrip(".") for part in parts)


def why_not_run(said: str) -> str:
    """The last exception that is named in what was said, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named: list[str] = _EXCEPTION.findall(said)
    return [*(lines or ["nothing was said"]), *named][-1].strip()


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        told, said = process.communicate(timeout=RUN_TIMEOUT_SECONDS)
    except BaseException:
        # It heals and ends what it started.
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=END_TIMEOUT_SECONDS)
        finally:
            process.kill()
        raise
    return process.returncode, told, said


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.3f} s"
