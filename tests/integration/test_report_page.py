"""The HTML report in a real browser: in light and dark, on a phone and on paper, without a network."""

import re
from pathlib import Path

import pytest

from harness.judging.summarize import summarize
from harness.report import pictures
from harness.report.html import render
from tests.chromium import PATIENCE_MILLISECONDS, chromium, needs_chromium
from tests.harness import synthetic
from tests.harness.analysis.test_attempts import restarted
from tests.harness.synthetic import Fault

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = [pytest.mark.browser, needs_chromium]

DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 360, "height": 640}
LOGS = {
    "one kill": {},
    "many incidents": {
        "steps": 300,
        "faults": [Fault(step=10 + 8 * index, node=index % 4, repair_steps=3) for index in range(30)],
        "gates": ["recovery_seconds p95 < 5ms", "throughput_drop <= 90%"],
    },
    "no recovery": {"faults": [Fault(recovers=False)], "job_fails": True},
    "nothing planned": {"faults": [], "baseline": False},
    "cut off": {"cut_off_after_step": 25},
    "a hostile name": {"name": "<script>document.title='owned'</script>" + "W" * 200},
}
# Every text with the colour that it has and the one that is behind it; in a picture that of the box it is written on.
COLOURS = """() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return Array.from(canvas.getImageData(0, 0, 1, 1).data);
    };
    const ground = (element) => {
        for (; element; element = element.parentElement) {
            const colour = rgba(getComputedStyle(element).backgroundColor);
            if (colour[3] > 0) return colour;
        }
        return rgba(getComputedStyle(document.body).backgroundColor);
    };
    const behind = (text) => {
        const own = text.getBoundingClientRect(), x = own.x + own.width / 2, y = own.y + own.height / 2;
        let found = ground(text.closest('figure'));
        for (const box of text.closest('svg').querySelectorAll('rect')) {
            const there = box.getBoundingClientRect();
            if (!(box.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
            if (x < there.left || x > there.right || y < there.top || y > there.bottom) continue;
            let fill = getComputedStyle(box).fill;
            if (fill.startsWith('url')) fill = getComputedStyle(document.body).getPropertyValue('--degraded');
            const colour = rgba(fill);
            if (fill !== 'none' && colour[3] === 255) found = colour;
        }
        return found;
    };
    document.querySelectorAll('details').forEach(details => details.open = true);
    const seen = [];
    for (const element of document.body.querySelectorAll('*')) {
        if (!element.checkVisibility() || ['title', 'desc'].includes(element.localName)) continue;
        const words = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join(' ').trim();
        if (!words) continue;
        const style = getComputedStyle(element), isDrawn = element instanceof SVGElement;
        seen.push([words, rgba(isDrawn ? style.fill : style.color), isDrawn ? behind(element) : ground(element)]);
    }
    return seen;
}"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    logs = {name: synthetic.run(**knobs) for name, knobs in LOGS.items()} | {"a command": restarted(samples=4)}
    for name, events in logs.items():
        (folder / f"{name}.html").write_text(render(summarize(events), events, folder=folder))
    return {name: folder / f"{name}.html" for name in logs}


def shown(browser, path: Path, **options):
    """(page, what it asked for but its own file, what it complained of)."""
    page = browser.new_context(**{"viewport": DESKTOP, **options}).new_page()
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    asked, violations = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: violations.append(message.text))
    page.on("pageerror", lambda error: violations.append(str(error)))
    page.goto(path.as_uri())
    asked.remove(path.as_uri())
    return page, asked, violations


def contrast(one, other):
    """The contrast ratio of WCAG 2.2 of two opaque sRGB colours."""
    lights = []
    for colour in (one, other):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour[:3])]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", [*LOGS, "a command"])
def test_it_stands_alone_and_fits(browser, pages, name, viewport):
    page, asked, violations = shown(browser, pages[name], viewport=viewport)
    assert (asked, violations) == ([], [])
    assert page.title() != "owned"
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    page.context.close()


def test_a_phone_gets_pictures_whose_letters_can_be_read(browser, pages):
    sizes = {}
    for viewport in (DESKTOP, PHONE):
        page, _, _ = shown(browser, pages["one kill"], viewport=viewport)
        sizes[viewport["width"]] = page.evaluate(
            """[...document.querySelectorAll('svg')].filter(svg => svg.checkVisibility())
                .map(svg => 11 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"""
        )
        page.context.close()
    assert len(sizes[1200]) == len(sizes[360]) == 5, "each picture once"
    assert min(sizes[1200]) >= 10 and min(sizes[360]) >= 9.5, "pixels that an 11 pixel letter comes to"


@pytest.mark.parametrize(
    ("scheme", "viewport"),
    [
        pytest.param("light", DESKTOP, id="light-desktop"),
        pytest.param("dark", PHONE, id="dark-phone"),
        # Each scheme and each viewport is among the others.
        pytest.param("light", PHONE, id="light-phone", marks=pytest.mark.nightly),
        pytest.param("dark", DESKTOP, id="dark-desktop", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("name", ["one kill", "many incidents", "a command"])
def test_every_word_can_be_told_from_its_ground(browser, pages, name, scheme, viewport):
    page, _, _ = shown(browser, pages[name], color_scheme=scheme, viewport=viewport)
    seen = page.evaluate(COLOURS)
    page.context.close()
    assert len(seen) > 150
    pale = {words: round(ratio, 2) for words, own, ground in seen if (ratio := contrast(own, ground)) < 4.5}
    assert pale == {}


def test_light_and_dark_differ(browser, pages):
    pictures_of = {}
    for scheme in ("light", "dark"):
        page, _, _ = shown(browser, pages["one kill"], color_scheme=scheme)
        pictures_of[scheme] = (page.screenshot(), page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.context.close()
    assert pictures_of["light"][0] != pictures_of["dark"][0]
    assert pictures_of["light"][1] == "rgb(255, 255, 255)" != pictures_of["dark"][1]


def test_the_verdict_and_why_are_on_the_first_screen(browser, pages):
    for viewport in (DESKTOP, PHONE):
        page, _, _ = shown(browser, pages["no recovery"], viewport=viewport)
        for words in ("fail", "no replica can be made whole", "unrecovered_incidents is 1"):
            box = page.get_by_text(words).first.bounding_box()
            assert box is not None and box["y"] + box["height"] <= viewport["height"], words
        page.context.close()


def test_on_paper_it_is_whole_and_light(browser, pages):
    page, _, _ = shown(browser, pages["one kill"], color_scheme="dark")
    paper = page.pdf(prefer_css_page_size=True, print_background=True)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    # What is folded on a screen is printed, since nobody can open it there.
    assert page.get_by_text("badput_regroup_seconds").first.is_visible()
    page.context.close()
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 12
    boxes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox \[([^\]]+)\]", paper)}
    assert all(abs(box[2] - 595) < 2 and abs(box[3] - 842) < 2 for box in boxes), "A4"


def test_it_can_be_gone_through_with_the_keyboard(browser, pages):
    page, _, _ = shown(browser, pages["one kill"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Gates"
    page.keyboard.press("Enter")
    page.wait_for_url("**/*#gates")
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.get_by_text("badput_regroup_seconds").first.is_visible()
    page.context.close()


def test_a_reader_hears_what_a_picture_shows(browser, pages):
    page, _, _ = shown(browser, pages["one kill"])
    heard = page.locator("main").aria_snapshot()
    page.context.close()
    for title in ("Training speed over time, in tokens per second", "Loss by step", "Which layers each rank held"):
        assert f'img "{title}' in heard
    assert '- heading "Where the time went" [level=2]' in heard


def test_a_picture_becomes_a_png_with_something_on_it(tmp_path):
    events = synthetic.run()
    made = pictures.draw(summarize(events), events)
    for file in pictures.write(tmp_path, {name: made[name] for name in ("time", "recovery-0", "loss")}):
        png = pictures.write_png(file)
        assert png.read_bytes().startswith(b"\x89PNG")
        # A blank one of this size compresses to a tenth of this.
        assert png.stat().st_size > 8_000, file.name
