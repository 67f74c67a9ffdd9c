"""The report on a terminal: what happened, what it cost, and the verdict.

It fits 80 columns and says nothing by colour alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from chaos.plain_text import plain
from harness.analysis.contained import PROBLEMS, attempt, could_not
from harness.analysis.words import count, name_seconds, one_line, speed_text
from harness.judging import checkpoint_words
from harness.judging.checkpoint_words import shortened
from harness.judging.facts import unplanned_words
from harness.judging.resume_words import resume_lines, resume_title, samples_line
from harness.judging.summary import IncidentSummary, Summary
from harness.report import attempt_words, wording
from harness.report.curves import Curves, mean_rates, trace
from harness.report.host_words import host_rows
from harness.report.reproduction import reproduction
from harness.report.story import backends_text, lost_words, steps_text
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.reason import Reason

_MAX_WIDTH = 100
_MAX_BAR_CELLS = 24
_MAX_LABEL_CELLS = 44
_VALUE_CELLS = 22
_MAX_CHECKPOINTS = 4
_TOLD_IN_FULL = 4
"""Of more incidents than this, each gets one line."""
_VERDICT_STYLES = {"pass": "bold green", "fail": "bold red", "error": "bold red", "dirty": "bold red"}
_MARK_LETTERS = {"injected": "F", "rejoined": "R"}


def render(
    summary: Summary,
    events: Iterable[Event],
    console: Console,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Print the report of one run. `folder` is where its files are; without it the report does not name them.

    In a CI job's `environment`, the command that repeats the run is one for another machine.
    """
    events = events if isinstance(events, Sequence) else tuple(events)
    problems: list[Reason] = []
    curves = attempt("speed over time", lambda: trace(events), problems, size=len(events)) or Curves((), (), ())
    _Report(summary, curves, console, folder, environment or {}).print([*map(PROBLEMS.text, problems)])


class _Report:
    """One report being printed, section by section."""

    def __init__(
        self,
        summary: Summary,
        curves: Curves,
        console: Console,
        folder: Path | None,
        environment: Mapping[str, str],
    ) -> None:
        self._summary = summary
        self._curves = curves
        self._console = console
        self._folder = folder
        self._environment = environment
        self._width = min(_MAX_WIDTH, console.width)
        self._label_cells = max(10, min(_MAX_LABEL_CELLS, self._width - _VALUE_CELLS))
        self._unicode = console.encoding.lower().startswith("utf")

    def print(self, problems: Sequence[str] = ()) -> None:
        """Everything, in the order in which a reader asks; `problems` are what could not be computed for it."""
        sections = (
            ("verdict", self._verdict),
            ("description", self._what_was_done),
            ("attempts", self._attempts),
            ("recovery", self._recoveries),
            ("speed", self._speed),
            ("restarts", self._restarts),
            ("loss", self._loss),
            ("checkpoints", self._checkpoints),
            ("approximation", self._approximation),
            ("time", self._time),
            ("hosts", self._hosts),
            ("gates", self._gates),
            ("caveats", self._caveats),
        )
        for problem in problems:
            self._item(problem)
        for what, section in sections:
            try:
                section()
            except OSError:
                # Nobody reads it any more.
                raise
            except Exception as error:
                self._item(could_not(what, error))
        self._files()

    def _attempts(self) -> None:
        lines = attempt_words.attempt_lines(self._summary)
        if lines:
            self._head("Attempts of the launcher")
        for line in lines:
            self._item(line)

    def _recoveries(self) -> None:
        if not self._has_many_incidents:
            for incident in self._summary.incidents:
                self._recovery(incident)

    def _verdict(self) -> None:
        verdict = self._summary.verdict
        self._line(
            (f"{self._summary.name or 'run'}: ", "bold"),
            (verdict.upper(), _VERDICT_STYLES.get(verdict, "bold yellow")),
        )
        meaning, reasons = wording.verdict_sentences(self._summary)
        if meaning is not None:
            self._paragraph(meaning)
        for reason in reasons:
            self._item(reason)

    def _what_was_done(self) -> None:
        summary = self._summary
        self._head("What happened")
        emulated = f" on {words}" if (words := wording.emulated_words(summary)) else ""
        strategy = f", takeover strategy {summary.strategy}" if summary.strategy else ""
        # Between CPUs there is nothing else.
        over = f", groups over {backends}" if (backends := backends_text(summary)) not in ("", "gloo") else ""
        seed = "" if summary.seed is None else f", seed {summary.seed}"
        what = f"The command {one_line(summary.command)}" if summary.command else "A training job"
        attempts = f" in {count(summary.attempts, 'attempt')}" if summary.attempts else ""
        repeated, lost = summary.steps_repeated, summary.steps_lost
        is_extra = summary.job_outcome == "completed" and repeated and lost
        again = "" if not is_extra else f" ({'recomputed' if repeated == lost else f'{repeated} of them recomputed'})"
        # Which samples a script uses is not known.
        has_samples = not summary.traits.is_user_script
        samples = f"; samples skipped or used twice: {_known(summary.samples_lost)}" if has_samples else ""
        self._paragraph(
            f"{what} {steps_text(summary)}{attempts}{emulated}{strategy}{over}{seed}. "
            f"{lost_words(summary).capitalize()}: {_known(lost)}{again}{samples}."
        )
        if fruitless := attempt_words.fruitless_words(summary):
            self._paragraph(f"{fruitless}.")
        if world := attempt_words.world_words(summary):
            self._paragraph(f"{world}.")
        if rule := wording.hang_rule_words(summary):
            self._paragraph(rule)
        for loss in summary.unplanned_losses:
            self._paragraph(f"{unplanned_words(loss)}.")
        restored = (incident.state_restored for incident in summary.incidents)
        of_incidents = {(one.at_seconds, one.rung, one.step) for one in restored if one is not None}
        for restore in summary.state_restores:
            if (restore.at_seconds, restore.rung, restore.step) not in of_incidents:
                after = name_seconds(restore.at_seconds)
                self._paragraph(f"{after} after the start: {wording.state_words(restore)}")
        if self._has_many_incidents:
            self._incidents_in_short()
            return
        for incident in summary.incidents:
            self._paragraph(wording.incident_title(incident))
            self._paragraph(wording.effect_words(incident), indent=4)
            if save := wording.save_words(incident):
                self._paragraph(shortened(save, summary.started_in), indent=4)
            if story := wording.story_words(incident):
                self._paragraph(story, indent=4)
            if diagnosis := wording.diagnosis_words(incident):
                self._paragraph(diagnosis, indent=4)
        if not summary.incidents:
            self._paragraph("No fault was injected.")

    @property
    def _has_many_incidents(self) -> bool:
        return len(self._summary.incidents) > _TOLD_IN_FULL

    def _incidents_in_short(self) -> None:
        for incident in self._summary.incidents:
            recovery, failure = wording.recovery_seconds(incident), wording.recovery_words(incident)
            if recovery is not None:
                how = f"recovered in {name_seconds(recovery)}"
            else:
                how = failure or wording.effect_words(incident)
            self._paragraph(f"{wording.incident_title(incident)}: {how}", hanging=2)
        self._paragraph("Phase by phase: report.html in the run's folder, or chaos report --json.")

    def _recovery(self, incident: IncidentSummary) -> None:
        rows = list(wording.phase_rows(incident))
        recovery = wording.recovery_seconds(incident)
        failure = wording.recovery_words(incident)
        if not rows and recovery is None and failure is None:
            return
        self._head(f"Recovery from incident {incident.incident} ({incident.fault})")
        longest = max((seconds for _, seconds in rows), default=0.0)
        for words, seconds in rows:
            self._row(words, name_seconds(seconds), seconds / longest if longest else 0.0)
        if failure:
            self._paragraph(failure)
        if recovery is not None:
            self._row(wording.recovery_label(incident), wording.recovery_text(incident) or "", style="bold")
        for words, seconds in wording.later_rows(incident):
            self._row(words, name_seconds(seconds))
        if timeout := wording.timeout_words(self._summary, incident):
            self._paragraph(timeout)
        if how := wording.how_it_recovered(incident):
            self._paragraph(how)
        if incident.preemption is not None:
            for line in wording.preemption_lines(incident.preemption):
                self._paragraph(line)
        if incident.state_restored is not None:
            self._paragraph(wording.state_words(incident.state_restored))

    def _speed(self) -> None:
        unit, known = wording.speeds(self._summary)
        if not known:
            return
        self._head(f"Training speed ({unit} per second)")
        words = {"before": "before the fault", "during": "during the fault", "after": "after the fault"}
        for key, speed in known.items():
            self._row(words[key], speed_text(speed), speed / (max(known.values()) or 1.0))
        for number, (label, value) in enumerate(wording.drop_rows(self._summary)):
            self._row(label, value, style="" if number else "bold")
        for label, value in wording.baseline_rows(self._summary):
            self._row(label, value)
        self._sparkline()

    def _sparkline(self) -> None:
        cells = self._width - 4
        rates = mean_rates(self._curves.main, cells)
        if len(self._curves.main) < cells // 2 or not rates:
            return
        top = max(rate for _, rate in rates)
        levels = "▁▂▃▄▅▆▇█" if self._unicode else "_.:-=+*#"
        self._line(("  " + "".join(levels[min(7, max(0, int(8 * rate / top)))] for _, rate in rates), "cyan"))
        line = [" "] * cells
        width = rates[1][0] - rates[0][0]
        for mark in self._curves.marks:
            cell = int((mark.seconds - rates[0][0] + width / 2) / width)
            if mark.kind in _MARK_LETTERS and 0 <= cell < cells and line[cell] != _MARK_LETTERS["injected"]:
                line[cell] = _MARK_LETTERS[mark.kind]
        if any(letter != " " for letter in line):
            self._line(("  " + "".join(line).rstrip(), ""))
            meanings = {"F": "F: fault", "R": "R: lost ranks rejoined"}
            told = ", ".join(words for letter, words in meanings.items() if letter in line)
            self._paragraph(f"speed over time ({told})")

    def _restarts(self) -> None:
        if self._summary.resumes:
            self._head("Is it still the same training?")
        for one in self._summary.resumes:
            self._paragraph(f"{resume_title(one)}.")
            for line in resume_lines(one, self._summary):
                self._paragraph(line, indent=4)
        if self._summary.resumes and self._summary.traits.is_user_script:
            self._paragraph(samples_line(self._summary))

    def _loss(self) -> None:
        loss, baseline = self._summary.final_loss, self._summary.baseline_loss
        if loss is None:
            return
        self._head("Loss")
        self._row("final loss of this run", f"{loss:.4f}")
        if baseline is None and self._summary.steps_unknown_because is not None:
            self._paragraph("It is compared with no baseline's: the numbers of the steps are not known.")
            return
        if baseline is None:
            self._paragraph("There is no fault-free baseline to compare with (--baseline-run).")
            return
        self._row("final loss of the fault-free baseline", f"{baseline:.4f}")
        self._row("difference", wording.percent(self._summary.loss_deviation_ratio, 2), style="bold")

    def _checkpoints(self) -> None:
        summary = self._summary
        if not (summary.checkpoints or summary.attempt_loads):
            return
        self._head("Checkpoints")
        saved, usable = summary.checkpoints_saved, summary.newest_usable_step
        newest = "" if usable is None else f"; the newest usable one at the end is of step {usable}"
        self._paragraph(f"{count(saved or 0, 'checkpoint')} saved{newest}.")
        for step, path, size, state in checkpoint_words.rows(summary.checkpoints, _MAX_CHECKPOINTS):
            self._paragraph(f"step {step}: {state} ({shortened(path, summary.started_in)}, {size})", hanging=2)
        for load in summary.attempt_loads:
            self._paragraph(f"{shortened(checkpoint_words.load_text(load), summary.started_in)}.", hanging=2)

    def _approximation(self) -> None:
        if words := wording.approximation_words(self._summary):
            self._head("Approximation")
            self._paragraph(words)

    def _time(self) -> None:
        wall = self._summary.wall_clock_seconds
        if not wall:
            return
        self._head("Where the time went")
        has_shares = wording.shows_goodput(wall)
        for _, words, seconds in wording.time_rows(self._summary):
            share = f" {seconds / wall:>7.1%}" if has_shares else ""
            self._row(words, f"{name_seconds(seconds):>10}{share}", seconds / wall)
        self._row("wall clock", f"{name_seconds(wall):>10}{f' {1:>7.1%}' if has_shares else ''}", style="bold")
        if rest := wording.unaccounted_seconds(self._summary):
            self._paragraph(f"{rest:+.3f} s are not accounted for.")

    def _hosts(self) -> None:
        if not (rows := list(host_rows(self._summary))):
            return
        self._head("Hosts")
        for name, words in rows:
            self._row(name, words)

    def _gates(self) -> None:
        gates = self._summary.gates
        if not gates:
            return
        self._head("Gates (pass criteria)")
        for gate in gates:
            word = wording.gate_word(gate)
            style = {"pass": "green", "FAIL": "bold red"}.get(word, "yellow")
            always = "  always checked" if gate.builtin else ""
            label = f"{one_line(gate.expression):<{self._label_cells - 10}}"
            answer = f"{wording.gate_value(gate)}{always}"
            if len(label) + len(answer) + 9 <= self._width:
                self._line(("  ", ""), (f"{word:<5}", style), (f" {label} {answer}", ""))
            else:
                self._line(("  ", ""), (f"{word:<5}", style), (f" {label}", ""))
                self._paragraph(answer, indent=8)

    def _caveats(self) -> None:
        if caveats := self._summary.caveats:
            self._head("Caveats")
            for caveat in caveats:
                self._item(caveat)

    def _files(self) -> None:
        self._head("Reproduce")
        how = reproduction(self._summary, self._folder, self._environment)
        if how.where:
            self._paragraph(f"{how.where}:")
        # Not wrapped: commands and paths are there to be copied.
        self._line((f"  {how.command}", ""))
        if self._folder is not None:
            self._line((f"  files:   {self._folder}", ""))
            if (page := self._folder / "report.html").exists():
                self._line((f"  report:  {page}", ""))
        if identity := self._summary.experiment_hash:
            self._paragraph(f"experiment hash {identity}: same hash = same experiment")

    def _head(self, text: str) -> None:
        self._line(("", ""))
        for line in textwrap.wrap(text, self._width):
            self._line((line, "bold"))

    def _row(self, label: str, value: str, share: float | None = None, style: str = "") -> None:
        """A label, a value and, where there is room for it, a bar of `share` of the longest one."""
        *before, label = textwrap.wrap(label, self._label_cells) or [""]
        for line in before:
            self._line((f"  {line}", style))
        if 3 + self._label_cells + len(value) > self._width:
            self._line((f"  {label}", style))
            label = ""
        text = f"  {label:<{max(0, min(self._label_cells, self._width - len(value) - 3))}} {value:<11}"
        room = min(_MAX_BAR_CELLS, self._width - len(text) - 1)
        bar = "" if share is None or room < 4 else ("█" if self._unicode else "#") * round(share * room)
        self._line((text, style), (f" {bar}", "cyan"))

    def _item(self, text: object) -> None:
        self._paragraph(f"- {one_line(text)}", hanging=2)

    def _paragraph(self, text: object, indent: int = 2, hanging: int = 0) -> None:
        lines = Text(one_line(text)).wrap(self._console, self._width - indent - hanging)
        for number, line in enumerate(lines):
            self._line((" " * (indent + (hanging if number else 0)) + line.plain.rstrip(), ""))

    def _line(self, *parts: tuple[str, str]) -> None:
        text = Text(overflow="fold")
        for part, style in parts:
            part = plain(part, kept="")
            text.append(part if self._unicode else part.encode("ascii", "backslashreplace").decode(), style)
        text.rstrip()
        self._console.print(text, soft_wrap=True)


def _known(value: object) -> str:
    return "unknown" if value is None else str(value)
