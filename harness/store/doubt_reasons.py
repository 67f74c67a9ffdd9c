"""Why a log may be incomplete or changed: each code, and its sentence."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.words import count, name_numbers
from mecefo_runtime.system.events import BASELINE_JOB
from mecefo_runtime.system.reason import Made, Reason, Table


def doubt_text(doubt: Reason) -> str:
    """The sentence of a doubt."""
    return LOG_DOUBTS.text(doubt)


def _unreadable(lines: Sequence[int], number: int) -> str:
    named = name_numbers("line", lines)
    which = named if number == len(lines) else f"{named}, and others"
    return f"{count(number, 'line')} of the log cannot be read ({which}), so its content is unknown"


def _not_understood(number: int) -> str:
    return f"{count(number, 'event')} of the log cannot be understood, so their content is unknown"


def _steps_missing(job: str, steps: Sequence[int], number: int) -> str:
    whose = "log of the fault-free baseline" if job == BASELINE_JOB else "log"
    more = f" and {number - len(steps)} more" if number > len(steps) else ""
    which = name_numbers("step", steps)
    return f"the {whose} has no step_committed of {which}{more}, though the same ranks took later steps"


def _gates_contradict(gates: Sequence[str], of_experiment: Sequence[str]) -> str:
    return (
        f"the log contradicts itself: run_started names the gates {_named(gates)}, and its experiment "
        f"{_named(of_experiment)}"
    )


def _file_differs(keys: Sequence[str]) -> str:
    return f"experiment.yaml beside the log is another experiment than the log's: they differ in {', '.join(keys)}"


def _other_run(key: str, of_summary: object, of_log: object) -> str:
    noun = key.replace("_", " ")
    return f"the stored summary is of another run: its {noun} is {of_summary}, the log's {of_log}"


def _other_gates(of_summary: Sequence[str], of_log: Sequence[str]) -> str:
    return f"the stored summary was judged by the gates {_named(of_summary)}, and the log names {_named(of_log)}"


def _named(gates: Sequence[str]) -> str:
    return ", ".join(f"'{gate}'" for gate in gates) or "none"


LOG_DOUBTS = Table(
    {
        "half_a_line": "the log ends within a line",
        "lines_unreadable": Made(
            _unreadable, "{number} lines of the log cannot be read (lines {lines}), so its content is unknown"
        ),
        "line_unreadable": "a line of the log cannot be read",
        "events_not_understood": Made(
            _not_understood, "{number} events of the log cannot be understood, so their content is unknown"
        ),
        "head_missing": "the log has no run_started: its head is missing, and with it the gates that were asked for",
        "several_runs": "the log holds the events of {number} runs, which cannot be told apart",
        "plan_missing": "the log has no incidents_planned, so it is unknown which faults were to be injected",
        "steps_missing": Made(
            _steps_missing, "the log has no step_committed of steps {steps}, though the same ranks took later steps"
        ),
        "end_missing": "the end of the log is missing",
        "no_beginning": "the log does not begin with run_started but with {first}: its lines are not in their order",
        "lines_missing": "the log holds {lines} of the {written} lines that the run wrote: its other lines are missing",
        "lines_added": "the log holds {lines} lines, and the run wrote {written}: the others are not its own",
        "gates_contradict": Made(
            _gates_contradict,
            "the log contradicts itself: run_started names the gates {gates}, and its experiment {of_experiment}",
        ),
        "seeds_contradict": (
            "the log contradicts itself: run_started names the seed {seed}, its experiment {of_experiment}"
        ),
        "hashes_contradict": (
            "the log contradicts itself: the experiment hash is {experiment_hash}, and that of its experiment "
            "{of_experiment}"
        ),
        "experiment_file_differs": Made(
            _file_differs,
            "experiment.yaml beside the log is another experiment than the log's: they differ in {keys}",
        ),
        "summary_of_another_run": Made(
            _other_run, "the stored summary is of another run: its {key} is {of_summary}, the log's {of_log}"
        ),
        "summary_of_other_gates": Made(
            _other_gates, "the stored summary was judged by the gates {of_summary}, and the log names {of_log}"
        ),
    }
)
