import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.judging.summarize import summarize
from harness.judging.summary import UNKNOWN
from harness.report.html import render, time_parts
from tests.harness import synthetic
from tests.harness.summaries import EMPTY, incident, summary
from tests.harness.synthetic import Fault

pytestmark = pytest.mark.unit

VOID = {"meta", "br", "link", "img", "input", "hr"}


NONSENSE = {"layout": [1], "ranks": "x", "incident": {}, "epoch": [], "committed_monotonic": "soon", "incidents": 3}


class Page(HTMLParser):
    """Fails on tags that do not nest; keeps tags, text by tag, and attributes."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))


def page(raw=None, events=None, **options):
    told = incident(evidence="2 processes are gone, by SIGKILL")
    return Page(
        render(
            summary(incidents=[told]) if raw is None else raw, synthetic.run() if events is None else events, **options
        )
    )


def test_is_well_formed_and_says_it_all():
    shown = page()
    for words in (
        "pass",
        "kill-node on node 1 at step 20 (backward)",
        "Verified: 2 processes are gone, by SIGKILL.",
        "state transferred",
        "ranks 2 and 3 rejoined the job",
        "Training speed",
        "40,960 tokens/s",
        "Loss",
        "fault-free baseline",
        "The layers of the model that each rank",
        "rank 7",
        "Where the time went",
        "throughput_drop <= 30%",
        "26.76%",
        "Only 60 steps were trained.",
        "badput_regroup_seconds",
        "failure of ranks 2 and 3",
        "chaos run experiment.yaml",
    ):
        assert words in shown.text, words


def test_needs_no_network_and_no_script():
    shown = page()
    assert not {"script", "link", "img", "iframe", "object"} & set(shown.tags)
    links = [value for name, value in shown.attributes if name in ("src", "href", "xlink:href")]
    assert links and all(link.startswith("#") for link in links)
    assert {link[1:] for link in links} <= {value for name, value in shown.attributes if name == "id"}
    html = render(summary(), synthetic.run())
    html = html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "http:" not in html and "https:" not in html and "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_the_contents_have_the_names_of_the_sections():
    html = render(summary(), synthetic.run())
    (contents,) = re.findall(r"<nav.*?</nav>", html, re.DOTALL)
    links = re.findall(r'href="#([\w-]+)">([^<]+)</a>', contents)
    sections = re.findall(r'<section id="([\w-]+)">\s*<h2>([^<]+)</h2>', html)
    assert links == sections and len(sections) == 10


def test_has_dark_print_and_phone():
    html = render(summary(), [])
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert 'name="viewport"' in html


def test_the_files_of_the_run_are_linked_from_where_the_page_is():
    there = Path("out/a b/1")
    beside = render(summary(), [], folder=there)
    assert 'href="./events.jsonl"' in beside
    elsewhere = render(summary(), [], folder=there, page_folder=Path("out"))
    assert 'href="./a%20b/1/events.jsonl"' in elsewhere
    hostile = render(summary(), [], folder=Path("javascript:alert(1)"), page_folder=Path())
    assert 'href="javascript' not in hostile


def test_every_colour_that_is_used_is_defined_in_light_and_dark():
    html = render(summary(), [])
    used = set(re.findall(r"var\((--[\w]+)\)", html))
    blocks = re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert used <= set(re.findall(r"(--\w+):", block))


def test_every_class_of_a_figure_has_a_style():
    html = render(summary(), synthetic.run(faults=[Fault(), Fault(step=24, node=2)]))
    style, body = html.split("</style>")
    used = {name for value in re.findall(r'class="([^"]+)"', body) for name in value.split()}
    figures = {name for name in used if re.match(r"(band|part|curve|mark|cause|rule|sign|key)-", name)}
    assert {
        "band-stalled",
        "band-active",
        "part-gone",
        "curve-main",
        "curve-twin",
        "rule-fault",
        "sign-back",
    } <= figures
    # A pattern, not a colour.
    unstyled = {name for name in figures - {"part-degraded"} if f".{name}" not in style}
    assert unstyled == set()


def test_what_the_run_says_cannot_become_markup():
    evil = "<script>alert(1)</script>\"'&\x00\x1b[31m\ud800"
    shown = page(
        summary(
            name=evil,
            reasons=[evil],
            caveats=[evil],
            strategy=evil,
            incidents=[incident(target=evil, evidence=evil, fault=evil)],
            gates=[{"expression": evil, "value": None, "passed": None}],
            badput_seconds={evil: 2.0},
        ),
        folder=Path("a<b"),
    )
    assert "script" not in shown.tags
    assert shown.text.count("<script>alert(1)</script>") >= 6
    html = render(summary(name=evil), [])
    html.encode("utf-8")
    assert "\x00" not in html and "\x1b" not in html


def test_what_the_run_says_cannot_reorder_the_page():
    evil = "a\u202eb\u2066c\u200bd"
    html = render(
        summary(
            name=evil,
            reasons=[evil],
            caveats=[evil],
            incidents=[incident(target=evil, evidence=evil, fault=evil)],
            gates=[{"expression": evil, "value": None, "passed": None}],
        ),
        [synthetic.shifted(event, evidence=evil, reason=evil) for event in synthetic.run()],
        folder=Path(evil),
    )
    assert html.count("a b c d") >= 6
    assert not set(html) & {"\u202e", "\u2066", "\u200b"}


def test_curves_stay_within_their_figure():
    num_points = 0
    for picture in pictures(render(summary(), synthetic.run())):
        width, height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', picture).groups())
        for line in re.findall(r'points="([^"]+)"', picture):
            for x, y in (map(float, pair.split(",")) for pair in line.split()):
                num_points += 1
                assert 0 <= x <= width and 0 <= y <= height
    assert num_points > 400


def test_a_long_run_stays_a_small_page():
    html = render(summary(), synthetic.run(steps=5000, faults=[Fault(step=2000)]))
    assert len(html) < 150_000


def test_no_baseline_and_no_recovery_are_said():
    dead = incident(recovery_seconds=None, recovered=False, phases_seconds={"verify": 0.003})
    events = synthetic.run(baseline=False, faults=[Fault(recovers=False)])
    shown = page(summary(baseline_loss=None, incidents=[dead]), events)
    assert "There is no fault-free baseline" in shown.text
    assert "It did not recover" in shown.text


def test_time_that_does_not_add_up_is_said():
    assert "do not add up: +1.000 s" in page(summary(productive_seconds=5.0)).text


@pytest.mark.parametrize("raw", [EMPTY, replace(UNKNOWN, verdict="error"), UNKNOWN])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_with_next_to_nothing_is_still_a_page(raw, steps):
    events = [e for e in synthetic.run(steps=1, faults=[], baseline=False) if steps or e.kind != "step_committed"]
    assert "No fault was injected." in page(raw, events).text
    assert "No fault was injected." in page(raw, []).text


def pictures(html):
    return re.findall(r"<svg .*?</svg>", html, re.DOTALL)


def test_every_picture_says_in_words_what_it_shows():
    html = render(summary(), synthetic.run())
    assert len(pictures(html)) == 10, "five pictures, each for a screen and for a phone"
    for picture in pictures(html):
        title, description = re.search(r'aria-labelledby="(\S+) (\S+)"', picture).groups()
        assert re.search(rf'<title id="{title}">[^<]+</title><desc id="{description}">[^<]+</desc>', picture)
    ids = [value for name, value in Page(html).attributes if name == "id"]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"faults": []},
        {"faults": [Fault(recovers=False)], "job_fails": True},
        {"cut_off_after_step": 25},
        {"faults": [Fault(), Fault(step=30, node=2)]},
    ],
)
def test_the_bar_of_the_time_adds_up_to_the_total(knobs):
    events = synthetic.run(**knobs)
    told = summarize(events)
    parts = time_parts(told)
    assert sum(part.seconds for part in parts) == pytest.approx(told.wall_clock_seconds)
    bar = next(picture for picture in pictures(render(told, events)) if 'id="time-860-t"' in picture)
    assert sum(map(float, re.findall(r'width="([\d.]+)"', bar))) == pytest.approx(860, abs=0.1)


def test_the_first_thing_said_is_the_verdict_and_why():
    failed = {"expression": "goodput >= 95%", "value": 0.75, "passed": False}
    raw = summary(verdict="fail", gates=[failed], reasons=["gate 'goodput >= 95%' failed: goodput_ratio is 75.00%"])
    head = page(raw).text.split("Contents")[0]
    assert head.index("fail") < head.index("gate failed") < head.index("goodput_ratio is 75.00%.")
    assert "0 of 1" in head
    other = page(summary(verdict="fail", reasons=["the training loss is not finite from step 3 on"])).text
    assert "No gate failed, but" in other


def test_many_incidents_come_as_a_table_first():
    faults = [Fault(step=10 + 4 * index, node=index % 4, repair_steps=2) for index in range(30)]
    events = synthetic.run(steps=200, faults=faults)
    html = render(summarize(events), events)
    shown = Page(html)
    assert shown.tags.count("details") == 32, "one each, all figures, the order of things"
    assert "30 faults were planned (30 x kill-node); all of them were verified." in shown.text
    assert len(html) < 600_000


def test_a_loss_that_is_no_number_is_drawn_as_such():
    events = [
        synthetic.shifted(e, loss=float("nan")) if e.kind == "step_committed" and (e.step or 0) > 30 else e
        for e in synthetic.run(baseline=False)
    ]
    picture = next(p for p in pictures(render(summarize(events), events)) if 'id="loss-860-t"' in p)
    assert "not finite in 30 steps, first in step 31" in picture
    assert "mark-bad" in picture and "nan" not in picture.replace("not finite", "")


@pytest.mark.parametrize(
    "kind", ["injected", "layout", "step_committed", "detected", "job_started", "incidents_planned"]
)
def test_events_that_no_run_writes_cost_a_part_of_the_page_and_not_the_page(kind):
    events = [synthetic.shifted(e, **NONSENSE) if e.kind == kind else e for e in synthetic.run()]
    shown = page(summarize(events), events)
    told = ("Where the time went", "A part of this page is missing", "of the log cannot be understood")
    assert any(words in shown.text for words in told)


def test_a_log_without_a_beginning_knows_no_seed():
    events = [e for e in synthetic.run() if e.kind not in ("run_started", "job_started")]
    assert "None" not in page(summarize(events), events).text


def test_one_event_is_one_event():
    events = synthetic.run(steps=1, faults=[], baseline=False)[:3]
    assert "1 event " in page(EMPTY, events).text


def test_a_job_that_stood_still_is_drawn_as_standing_still():
    events = synthetic.run(faults=[Fault(recovers=False)], job_fails=True)
    picture = next(p for p in pictures(render(summarize(events), events)) if 'id="speed-over-time-860-t"' in p)
    (curve,) = re.findall(r'points="([^"]+)" class="curve-main"', picture)[:1]
    ground = max(float(pair.split(",")[1]) for pair in curve.split())
    assert [pair.split(",")[1] for pair in curve.split()][-2:] == [f"{ground:.1f}"] * 2
    assert float(curve.split()[-1].split(",")[0]) == 850.0, "to the end"


def test_a_fault_in_a_step_that_was_never_committed_is_on_the_picture():
    events = synthetic.run(faults=[Fault(recovers=False)], job_fails=True)
    for picture in pictures(render(summarize(events), events)):
        width = float(re.search(r'viewBox="0 0 (\d+)', picture)[1])
        assert all(float(at) <= width for at in re.findall(r'<line x1="([\d.]+)"', picture))


def loss_pictures(loss_of_step):
    """The loss over 200 steps for a screen and for a phone; `loss_of_step` says what differs from the twin's."""
    events = [
        synthetic.shifted(e, loss=loss_of_step.get(e.step, e.fields["loss"]))
        if e.kind == "step_committed" and e.job == "main"
        else e
        for e in synthetic.run(steps=200)
    ]
    html = render(summarize(events), events)
    return [p for p in pictures(html) if 'id="loss-' in p]


@pytest.mark.parametrize("loss", [1e12, 400.0, -1e6])
def test_a_loss_out_of_range_is_marked_where_it_is_with_its_value(loss):
    noise = {step: synthetic.loss_of(step) * (1 + 2e-4 * (-1) ** step) for step in range(20, 201)}
    for picture in loss_pictures(noise | {150: loss}):
        sign, way = ("above", "up") if loss > 0 else ("below", "down")
        assert len(re.findall(f'class="sign-{sign}"', picture)) == 4, "in both panels and in the legend of each"
        assert f"{sign} the scale, {way} to {loss:,.3g}<" in picture
        assert f">{loss:,.3g}</text>" in picture


@pytest.mark.parametrize("percent", [0.44, -3.0, 40.0])
def test_the_difference_from_the_baseline_is_never_drawn_smaller_than_it_is(percent):
    few = {step: synthetic.loss_of(step) * (1 + percent / 100) for step in (40, 150, 151)}
    noise = {step: synthetic.loss_of(step) * (1 + 2e-4 * (-1) ** step) for step in range(20, 201)}
    for picture in loss_pictures(noise | few):
        panel = picture[picture.index("difference from the baseline") :]
        marked = [float(text) for text in re.findall(r">(-?[\d.]+)%</text>", panel)]
        assert max(abs(value) for value in marked) >= 0.8 * abs(percent), "an axis that far, or an arrow with the value"
