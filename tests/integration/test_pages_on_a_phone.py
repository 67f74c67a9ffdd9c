"""Every kind of page on a phone of 390 pixels: it fits, its pictures can be read, and no word in them is cut off."""

import pytest
from markupsafe import Markup

from harness.comparison.page import render as comparison_page
from harness.comparison.verdicts import judge_comparison
from harness.judging.summarize import summarize
from harness.report.html import render as report_page
from mecefo_chaos.studies.forecast.page import render as forecast_page
from tests.chromium import PATIENCE_MILLISECONDS, chromium, needs_chromium
from tests.harness import synthetic
from tests.harness.comparison.samples import run_set, sample
from tests.harness.synthetic import Fault
from tests.mecefo_chaos.studies.papers import checks

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = [pytest.mark.browser, needs_chromium]

PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1200, "height": 800}
LEAST_PIXELS = 11.0
MANY_FAULTS = [Fault(step=10 + 8 * index, node=index % 4, repair_steps=3) for index in range(12)]
LONG_LABEL = "mecefo:spares=1,redundancy=3"


def _report(**knobs):
    events = synthetic.run(**knobs)
    return report_page(summarize(events), events)


def _comparison():
    found = run_set(sample(0.3, 0.4, 0.5), sample(4.0, 3.0, 5.0, label="checkpoint"), sample(1.0, label=LONG_LABEL))
    return comparison_page(found, judge_comparison(found))


PAGES = {
    "report": _report,
    "report of many incidents": lambda: _report(steps=160, faults=MANY_FAULTS),
    "comparison": _comparison,
    "forecast": lambda: forecast_page(checks.forecast()),
    **{f"paper {name}": lambda name=name: checks.PAPERS[name]().page() for name in checks.PAPERS},
}
# Of every text of a picture that is shown: (its words, pixels of its letters, whether a part is cut off).
TEXTS = """() => {
    document.querySelectorAll('details').forEach(details => details.open = true);
    return [...document.querySelectorAll('svg text')].filter(text => text.checkVisibility()).map(text => {
        const scale = text.getScreenCTM(), own = text.getBoundingClientRect();
        const all = text.ownerSVGElement.getBoundingClientRect();
        const isCut = own.left < all.left - 1 || own.right > all.right + 1
            || own.top < all.top - 1 || own.bottom > all.bottom + 1;
        return [text.textContent, parseFloat(getComputedStyle(text).fontSize) * Math.hypot(scale.a, scale.b), isCut];
    });
}"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages():
    return {name: make() for name, make in PAGES.items()}


@pytest.fixture
def shown(browser):
    """Shows a page in a viewport."""
    contexts = []

    def show(text, viewport):
        contexts.append(browser.new_context(viewport=viewport))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        page.set_content(str(text))
        return page

    yield show
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_and_their_pictures_are_shown_once_and_can_be_read(shown, pages, name):
    seen = {}
    for viewport in (PHONE, DESKTOP):
        page = shown(pages[name], viewport)
        seen[viewport["width"]] = page.evaluate(
            "[...document.querySelectorAll('svg')].filter(svg => svg.checkVisibility()).length"
        )
        texts = page.evaluate(TEXTS)
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], "it scrolls as a whole"
        assert len(texts) > 5 and [words for words, _, is_cut in texts if is_cut] == []
        assert {words: pixels for words, pixels, _ in texts if pixels < LEAST_PIXELS} == {}
    assert seen[390] == seen[1200] > 0


def test_what_cannot_be_read_is_found(shown):
    """A negative control of the measurement itself."""
    svg = (
        '<svg viewBox="0 0 860 100" style="width: 100%"><text x="850" y="20" font-size="11">too far right</text></svg>'
    )
    page = shown(Markup(f'{svg}<div style="width: 500px">wide</div>'), PHONE)
    ((_, pixels, is_cut),) = page.evaluate(TEXTS)
    assert pixels < LEAST_PIXELS and is_cut
    assert page.evaluate("document.documentElement.scrollWidth") > PHONE["width"]
