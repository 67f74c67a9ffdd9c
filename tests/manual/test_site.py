"""The site as it is built: without a warning, without a network, and fit to be looked at."""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser

import pytest

from chaos.experiment.schema import json_schema
from chaos.faults import registry
from tests.chromium import PATIENCE_MILLISECONDS, chromium, needs_chromium
from tests.manual.documents import ROOT

pytestmark = pytest.mark.browser

PAGES = (
    "index",
    "tutorials/first-run",
    "reference/glossary",
    "reference/faults",
    "reference/events",
    "explanation/benchmarks",
    "reference/faults/index",
    "reference/faults/kill-node",
    "reference/command-line",
    "reference/experiment",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    return build(tmp_path_factory.mktemp("built"))


def build(folder, source=ROOT):
    # Not with --quiet: what is not said is not counted by --strict either (mkdocs 1.6).
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder / "site")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder / "site"


class References(HTMLParser):
    """Which files a page loads, and where it links to."""

    def __init__(self):
        super().__init__()
        self.loads, self.links = [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") != "canonical" and found.get("href"):
            self.loads.append(found["href"])
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])


def references(path):
    parser = References()
    parser.feed(path.read_text())
    return parser


def test_it_is_built_without_a_warning_and_has_a_page_for_every_fault(site):
    assert {path.stem for path in (site / "reference/faults").glob("*.html")} == {"index", *registry()}


def test_it_has_the_schema_of_experiment_files(site):
    assert json.loads((site / "schema/experiment.json").read_text()) == json_schema()


@pytest.mark.nightly
def test_a_broken_link_fails_the_build(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "docs", copy / "docs")
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, copy / name)
    # What Python compiles there comes and goes while others import it.
    shutil.copytree(ROOT / "manual", copy / "manual", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "docs/tutorials/first-run.md").write_text("# Start\n\n[nowhere](../reference/glossary.md#nowhere-at-all)\n")
    with pytest.raises(AssertionError, match="nowhere-at-all"):
        build(tmp_path, copy)


def test_it_loads_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(registry())
    outside = {str(page): [url for url in references(page).loads if re.match(r"(https?:)?//", url)] for page in pages}
    assert not {page: urls for page, urls in outside.items() if urls}


def test_its_links_lead_to_its_files(site):
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # is served at any depth: its links begin with the site's address
            continue
        local = [link.partition("#")[0] for link in references(page).links if "://" not in link]
        broken = [link for link in local if link and not (page.parent / link).resolve().exists()]
        assert not broken, page


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served, on the loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def opened(browser, *, width=1280, scheme="light"):
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    return page


@pytest.mark.nightly
@needs_chromium
def test_a_browser_shows_it_without_a_network(browser, address, tmp_path):
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 360)):
        page = opened(browser, width=width, scheme=scheme)
        said, asked = [], []
        page.on("console", lambda message, said=said: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        for name in PAGES:
            page.goto(f"{address}/{name}.html")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is wider than a screen of {width}: {wide}"
        assert said == []
        assert [url for url in asked if not url.startswith((address, "data:"))] == []
        page.close()


@needs_chromium
def test_its_search_finds_a_fault(browser, address):
    page = opened(browser)
    page.goto(f"{address}/index.html")
    # Key by key: the search looks at its field when a key goes up. `fill` presses none, and is seen only if it comes
    # before the index.
    page.locator("input[name=query]").press_sequentially("hang-gil")
    page.wait_for_selector(".md-search-result__item a[href*='hang-gil']")
    page.close()


@needs_chromium
def test_pictures_can_be_read_in_both_schemes(browser, address):
    shown = {}
    for scheme in ("light", "dark"):
        page = opened(browser, scheme=scheme)
        page.goto(f"{address}/reference/faults/kill-node.html")
        page.wait_for_selector("figure.run svg")
        text = "getComputedStyle(document.querySelector('figure.run svg text')).fill"
        ground = "getComputedStyle(document.body).backgroundColor"
        shown[scheme] = (luminance(page.evaluate(text)), luminance(page.evaluate(ground)))
        page.close()
    for light, dark in (sorted(pair, reverse=True) for pair in shown.values()):
        assert (light + 0.05) / (dark + 0.05) >= 4.5, shown  # WCAG 2.1, 1.4.3
    assert shown["light"] != shown["dark"]


def luminance(colour):
    """Relative luminance of `rgb(r, g, b)`, as WCAG 2.1 defines it."""
    channels = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
