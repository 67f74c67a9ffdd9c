import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.report.html import render
from tests.harness import synthetic
from tests.harness.summaries import EMPTY, incident, summary
from tests.harness.synthetic import Fault

pytestmark = pytest.mark.unit

VOID = {"meta", "br", "link", "img", "input", "hr"}


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
        "Effect seen: 2 processes are gone, by SIGKILL.",
        "model state moved",
        "Training speed",
        "40,960 tokens/s",
        "Loss",
        "fault-free twin",
        "Who held which layers",
        "rank 7",
        "Where the time went",
        "throughput_drop <= 30%",
        "26.76%",
        "Only 60 steps were trained.",
        "chaos run experiment.yaml",
    ):
        assert words in shown.text, words


def test_needs_no_network_and_no_script():
    shown = page()
    assert not {"script", "link", "img", "iframe", "object"} & set(shown.tags)
    assert not [value for name, value in shown.attributes if name in ("src", "href", "xlink:href")]
    html = render(summary(), synthetic.run())
    assert "http:" not in html and "https:" not in html and "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_has_dark_print_and_phone():
    html = render(summary(), [])
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert 'name="viewport"' in html


def test_every_colour_that_is_used_is_defined_in_light_dark_and_print():
    html = render(summary(), [])
    used = set(re.findall(r"var\((--[\w]+)\)", html))
    blocks = re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        assert used <= set(re.findall(r"(--\w+):", block))


def test_every_class_of_a_figure_has_a_style():
    html = render(summary(), synthetic.run(faults=[Fault(), Fault(step=24, node=2)]))
    style, body = html.split("</style>")
    used = {name for value in re.findall(r'class="([^"]+)"', body) for name in value.split()}
    figures = {name for name in used if re.match(r"(band|part|curve|mark|phase)-", name)}
    assert {"band-stopped", "part-degraded", "part-gone", "curve-main", "curve-twin", "mark-injected"} <= figures
    unstyled = {name for name in figures if f".{name}" not in style and not name.startswith("mark-")}
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


def test_curves_stay_within_their_figure():
    html = render(summary(), synthetic.run())
    points = [
        tuple(map(float, pair.split(","))) for line in re.findall(r'points="([^"]+)"', html) for pair in line.split()
    ]
    assert len(points) > 100
    assert all(64 <= x <= 848 and 34 <= y <= 216 for x, y in points)


def test_a_long_run_stays_a_small_page():
    html = render(summary(), synthetic.run(steps=5000, faults=[Fault(step=2000)]))
    assert len(html) < 80_000


def test_no_twin_and_no_recovery_are_said():
    dead = incident(recovery_seconds=None, recovered=False, phases_seconds={"verify": 0.003})
    shown = page(summary(twin_loss=None, incidents=[dead]), synthetic.run(twin=False, faults=[Fault(recovers=False)]))
    assert "There is no fault-free twin" in shown.text
    assert "It did not recover" in shown.text


def test_time_that_does_not_add_up_is_said():
    assert "do not add up: +1.000 s" in page(summary(productive_seconds=5.0)).text


@pytest.mark.parametrize("raw", [EMPTY, {"verdict": "error"}, {}])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_with_next_to_nothing_is_still_a_page(raw, steps):
    events = [e for e in synthetic.run(steps=1, faults=[], twin=False) if steps or e.kind != "step_committed"]
    assert "No fault was applied." in page(raw, events).text
    assert "No fault was applied." in page(raw, []).text
