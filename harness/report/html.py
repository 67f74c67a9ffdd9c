"""The report as one HTML file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from markupsafe import Markup

from harness.analysis.contained import PROBLEMS, attempt, could_not
from harness.analysis.words import count, name_seconds, speed_text, target_text
from harness.judging import checkpoint_words
from harness.judging.resume_words import resume_lines, resume_title, samples_line
from harness.judging.summary import GateResult, IncidentSummary, Summary
from harness.report import attempt_words, bars, charts, history, speed, tables, wording
from harness.report.bars import Part
from harness.report.curves import Curves, trace
from harness.report.deciding import Deciding, deciding
from harness.report.drawing import both_widths
from harness.report.history import History, Way
from harness.report.host_words import host_rows
from harness.report.reproduction import reproduction
from harness.report.story import about, chronicle, lost_words, steps_text, story
from harness.report.templates import template
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.reason import Reason

_T = TypeVar("_T")
_TEMPLATE = "report.html.j2"
_MANY_INCIDENTS = 2
"""With more of them, one has to be opened to be seen in full, and a table comes first."""
_FEW_REASONS = 6


def render(
    summary: Summary,
    events: Iterable[Event],
    *,
    folder: Path | None = None,
    page_folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """The whole page.

    `folder` is where the run's files are, for the links to them and the command that repeats it; the page itself is in
    `page_folder`, or beside them. In a CI job's `environment`, that command is one for another machine.
    """
    events = events if isinstance(events, Sequence) else tuple(events)
    broken = _Broken(len(events))
    curves = _attempt("curves", lambda: trace(events), broken) or Curves((), (), ())
    past = _attempt("history", lambda: history.read(events), broken) or History()
    decided = {
        g.expression: _attempt("gates", partial(deciding, g, summary, events), broken) or [] for g in summary.gates
    }
    also = {number for ones in decided.values() for one in ones for number in one.events}
    told, left_out = _attempt("chronicle", lambda: chronicle(events, also), broken) or ([], 0)
    unit, speeds = wording.speeds(summary)
    baseline = wording.comparable_baseline(summary)
    incidents = [_incident(index, one, past, broken) for index, one in enumerate(summary.incidents)]
    meaning, said = wording.verdict_sentences(summary)
    reasons = [_sentence(reason) for reason in said]
    return template(Path(__file__).parent, _TEMPLATE).render(
        summary=summary,
        name=summary.name or "run",
        verdict=summary.verdict,
        meaning=meaning,
        reasons=reasons[:_FEW_REASONS],
        more_reasons=reasons[_FEW_REASONS:],
        about=_attempt("facts", lambda: about(summary, events), broken) or [],
        story=_attempt("story", lambda: story(summary), broken) or [],
        tiles=_attempt("tiles", lambda: _tiles(summary), broken) or [],
        incidents=incidents,
        has_many_incidents=len(incidents) > _MANY_INCIDENTS,
        unit=unit,
        speeds={key: speed_text(speed) for key, speed in speeds.items()},
        drop_rows=list(wording.drop_rows(summary)),
        baseline_rows=list(wording.baseline_rows(summary)),
        speed_chart=_drawn("speed over time", lambda w: speed.speed_over_time(curves, past, w, baseline), broken),
        loss_chart=_drawn("loss", lambda w: charts.loss_by_step(curves, past, w), broken),
        has_baseline=bool(curves.baseline),
        ranks_chart=_drawn("ranks", lambda w: bars.ranks_over_time(curves, past, w), broken),
        has_degraded=any(piece.degraded for lane in curves.lanes.values() for piece in lane),
        has_layout=summary.traits.has_layout,
        times=_attempt("times", lambda: _times(summary, broken), broken),
        unaccounted_seconds=wording.unaccounted_seconds(summary),
        gates=[_gate(gate, decided.get(gate.expression, [])) for gate in summary.gates],
        attempts=_attempt("attempts", lambda: attempt_words.attempt_rows(summary), broken) or [],
        run_figures=_attempt("figures", lambda: tables.figures_of_the_run(summary), broken) or [],
        resumes=_attempt("restarts", lambda: list(_resumes(summary)), broken) or [],
        samples=samples_line(summary) if summary.resumes and summary.traits.is_user_script else None,
        checkpoints=_attempt("checkpoints", lambda: checkpoint_words.rows(summary.checkpoints), broken) or [],
        loads=_attempt("loads", lambda: list(map(checkpoint_words.load_text, summary.attempt_loads)), broken) or [],
        hosts=_attempt("hosts", lambda: list(host_rows(summary)), broken) or [],
        incident_figures=_attempt("figures", lambda: tables.figures_of_the_incidents(summary), broken) or [],
        chronicle=told,
        chronicle_head=count(len(told) + left_out, "event"),
        num_left_out=left_out,
        repeat=reproduction(summary, folder, environment),
        folder=folder,
        files=tables.files(folder, page_folder),
        broken=broken.said,
    )


def _gate(gate: GateResult, decided: Sequence[Deciding]) -> dict[str, Any]:
    return {
        "expression": gate.expression,
        "value": wording.gate_value(gate),
        "word": wording.gate_word(gate),
        "builtin": gate.builtin,
        "reason": gate.reason or "",
        "decided": decided,
    }


class _Broken:
    """What could not be computed; `size` is that of the log, by which its analyses are bounded."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reasons: list[Reason] = []

    @property
    def said(self) -> list[str]:
        """In sentences."""
        return [*map(PROBLEMS.text, self.reasons)]


def page(
    summary: Summary,
    events: Iterable[Event],
    *,
    folder: Path | None = None,
    page_folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """`render`; of a page that cannot be made the verdict alone."""
    try:
        return render(summary, events, folder=folder, page_folder=page_folder, environment=environment)
    except Exception as error:
        return _without_a_page(summary, error)


def _without_a_page(summary: Summary, error: Exception) -> str:
    said = [could_not("page", error), *summary.reasons]
    items = Markup("").join(Markup("<li>{}</li>").format(sentence) for sentence in said)
    title = Markup("{}: {}").format(summary.name or "run", summary.verdict)
    return str(
        Markup('<!doctype html><meta charset="utf-8"><title>{0}</title><h1>{0}</h1><ul>{1}</ul>\n').format(title, items)
    )


def time_parts(summary: Summary) -> list[Part]:
    """How the wall clock was spent, as the parts of a bar."""
    return [Part(words, seconds, f"cause cause-{key}") for key, words, seconds in wording.time_rows(summary)]


def _attempt(what: str, compute: Callable[[], _T], broken: _Broken) -> _T | None:
    """The result of `compute`; None and a line in `broken` where it cannot be computed."""
    return attempt(what, compute, broken.reasons, size=broken.size)


def _drawn(what: str, draw: Callable[[int], Markup], broken: _Broken) -> Markup:
    """A picture for a screen or paper and one for a phone, of which the style sheet shows one."""
    return _attempt(what, lambda: both_widths(draw), broken) or Markup("")


def _tiles(summary: Summary) -> list[tuple[str, str, str]]:
    """(figure, what it is, half a sentence of what that means), only for what was measured."""
    recoveries = [(s, i.recovery_steps) for i in summary.incidents if (s := wording.recovery_seconds(i)) is not None]
    tiles: list[tuple[str, str, str]] = []
    gates = summary.gates
    if gates:
        hold = sum(gate.passed is True for gate in gates)
        tiles.append((f"{hold} of {len(gates)}", "gates passed", "pass criteria of this run"))
    if recoveries:
        worst = "the longest, " if len(recoveries) > 1 else ""
        seconds, steps = max(recoveries, key=lambda recovery: recovery[0])
        usual = f"; {words}" if (words := wording.usual_steps(steps)) else ""
        tiles.append((name_seconds(seconds), "recovery", f"{worst}from the fault to the next committed step{usual}"))
    if summary.throughput_drop_ratio is not None:
        change = f"{-summary.throughput_drop_ratio:+.1%}".replace("-", "\N{MINUS SIGN}")
        noise = summary.throughput_noise_ratio
        said = "baseline noise not measurable" if noise is None else f"baseline noise {wording.percent(noise)}"
        tiles.append((change, "speed", f"during the fault, compared with before; {said}"))
    if summary.steps_lost is not None:
        lost, again, label = summary.steps_lost, summary.steps_repeated, lost_words(summary)
        done = "recomputed" if again == lost else f"{again} of them recomputed"
        what = f"{done}; " if again and lost and "again" not in label else ""
        tiles.append((str(lost), label, f"{what}{steps_text(summary)}"))
    if summary.loss_deviation_ratio is not None:
        deviation = wording.percent(summary.loss_deviation_ratio, 2)
        tiles.append((deviation, "loss deviation", "from the fault-free baseline"))
    if summary.goodput_ratio is not None:
        tiles.append((wording.percent(summary.goodput_ratio), "goodput", "share of the time spent on training"))
    return tiles


def _incident(index: int, incident: IncidentSummary, past: History, broken: _Broken) -> dict[str, Any]:
    number = incident.incident
    way = past.ways.get(number, Way((), ())) if incident.verified else Way((), ())
    return {
        "number": number,
        "title": _sentence(wording.incident_title(incident)),
        "fault": incident.fault,
        "target": target_text(incident.target),
        "when": wording.moment(incident),
        "verified": incident.verified,
        "effect": _sentence(wording.effect_words(incident)),
        "within": [
            _sentence(words) for words in (wording.save_words(incident), wording.story_words(incident)) if words
        ],
        "short_effect": "verified" if incident.verified else "NOT verified" if incident.injected else "not injected",
        "diagnosis": _sentence(wording.diagnosis_words(incident) or ""),
        "bar": _drawn(f"incident {number}", lambda width: bars.recovery(f"recovery-{index}", way, width), broken),
        "parts": [(key, words, name_seconds(seconds)) for key, words, seconds in way.parts],
        "milestones": _milestones(way),
        "recovery": wording.recovery_text(incident),
        "short_recovery": name_seconds(wording.recovery_seconds(incident)),
        "how": wording.how_it_recovered(incident),
        "state": None if incident.state_restored is None else wording.state_words(incident.state_restored),
        "failure": wording.recovery_words(incident),
        "time": _own_time(incident),
        "back": wording.rejoin_words(incident) or "-",
    }


def _own_time(incident: IncidentSummary) -> str:
    """What the time went to that an incident answers for; it adds up."""
    if not incident.wall_clock_seconds:
        return ""
    rows = [f"{name_seconds(seconds)} {words}" for _, words, seconds in wording.time_rows(incident) if seconds]
    seconds = name_seconds(incident.wall_clock_seconds)
    return f"{seconds} of the job's time count for this incident, up to the next one or to the end: {', '.join(rows)}."


def _milestones(way: Way) -> Sequence[tuple[str, str]]:
    return [
        ("0" if milestone.kind == "injected" else f"+{name_seconds(milestone.seconds)}", milestone.words)
        for milestone in way.milestones
    ]


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _times(summary: Summary, broken: _Broken) -> dict[str, Any] | None:
    wall = summary.wall_clock_seconds
    if not wall:
        return None
    parts = time_parts(summary)
    title = "How the wall clock was spent"
    return {
        "bar": _drawn("time", lambda width: bars.stacked_bar("time", parts, title, width), broken),
        "rows": [(part.css, part.words, name_seconds(part.seconds), f"{part.seconds / wall:.1%}") for part in parts],
        "wall": name_seconds(wall),
    }


def _resumes(summary: Summary) -> Iterator[tuple[str, list[str], bool]]:
    """Of each comparison its title, its lines, and whether it found another training."""
    for one in summary.resumes:
        yield resume_title(one), resume_lines(one, summary), bool(one.judged)
