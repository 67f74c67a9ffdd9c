"""The dashboards as they are checked in: what the code makes, whole, and legible."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import DASHBOARDS, FOLDER, as_text, as_values, write
from harness.analysis.incident import MeasuredIncident
from harness.judging.verdict import EXIT_CODES
from tests.dashboards.reading import DOCS, all_panels, all_queries, metrics, table_of_metrics

pytestmark = pytest.mark.unit

_OWN_ANNOTATION_KEYS = ("titleFormat", "textFormat", "tagKeys", "step")


def values(name: str) -> dict[str, Any]:
    return as_values(DASHBOARDS[name]())


@pytest.mark.parametrize("name", DASHBOARDS)
def test_what_is_checked_in_is_what_the_code_makes(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text() == as_text(DASHBOARDS[name]()), "run `python -m dashboards`"


def test_nothing_else_is_checked_in(tmp_path: Path) -> None:
    assert {file.name for file in write(tmp_path / "new")} == {file.name for file in FOLDER.iterdir()}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_sdk_reads_it_back_as_it_was_written(name: str) -> None:
    # The SDK leaves out what it does not know: equality shows that it knew all but these keys of annotations.
    plugins.register_default_plugins()
    written = values(name)
    read = json.loads(json.dumps(Dashboard.from_json(json.loads(json.dumps(written))), cls=JSONEncoder))
    for mark in written["annotations"]["list"]:
        for key in _OWN_ANNOTATION_KEYS:
            del mark[key]
    assert read == written


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_fill_the_grid_without_overlap(name: str) -> None:
    panels = values(name)["panels"]
    cells: Counter[tuple[int, int]] = Counter()
    for panel in panels:
        place = panel["gridPos"]
        cells.update((place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"]))
    assert set(cells.values()) == {1}
    assert {x for x, _ in cells} == set(range(24))
    assert len(cells) == 24 * (1 + max(y for _, y in cells)), "a gap"
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))


def test_dashboards_are_told_apart_and_find_each_other() -> None:
    made = [values(name) for name in DASHBOARDS]
    assert len({dashboard["uid"] for dashboard in made}) == len({dashboard["title"] for dashboard in made}) == len(made)
    for dashboard in made:
        assert [link["tags"] for link in dashboard["links"]] == [dashboard["tags"]]
        assert "id" not in dashboard, "an id of somebody's data base"


def test_every_panel_says_what_to_do_with_it_and_in_which_unit() -> None:
    for dashboard, panel in all_panels():
        where = f"{dashboard}: {panel['title']}"
        assert re.fullmatch(r"[A-Z0-9a-z].{20,}[.?:]", panel["description"], re.DOTALL), where
        assert panel["fieldConfig"]["defaults"]["unit"], where
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, where
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0, where


def test_panels_of_one_dashboard_have_titles_of_their_own_in_their_row() -> None:
    for name in DASHBOARDS:
        seen: set[tuple[str, str]] = set()
        row = ""
        for panel in values(name)["panels"]:
            row = panel["title"] if panel["type"] == "row" else row
            assert (row, panel["title"]) not in seen, panel["title"]
            seen.add((row, panel["title"]))


def test_every_verdict_has_its_colour_and_every_phase_its_bar() -> None:
    panels = {panel["title"]: panel for name, panel in all_panels() if name == "chaos-recovery"}
    colored = {override["matcher"]["options"] for override in panels["Verdict"]["fieldConfig"]["overrides"]}
    assert colored == set(EXIT_CODES)
    (organize,) = (t["options"] for t in panels["Recovery by phase"]["transformations"] if t["id"] == "organize")
    bars = [column for name, column in organize["renameByName"].items() if name.startswith("Value")]
    # What comes after the recovery stands in another panel.
    started_again = {"launch": 1.0}
    phases = MeasuredIncident(0, "", None, None, None, launch_phases=started_again).phases_seconds
    later = ("restore", "rejoin", "repair_wait", "rejoin_after_repair")
    assert bars == [phase for phase in phases if phase not in later]


def test_units_fit_the_metrics() -> None:
    for dashboard, panel in all_panels():
        if panel["type"] == "table":
            continue
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            expected = _unit_of(target["expr"])
            said = f"{dashboard}: {panel['title']}: {unit} of {target['expr']}"
            assert unit in ({expected} if expected else {"none", "locale", "sci"}), said


def _unit_of(expression: str) -> str | None:
    """The unit of Grafana that the first metric's name asks for; None: a plain number."""
    name = min(metrics(expression), key=expression.index)
    base = re.sub("_(sum|count|bucket)$", "", name.split(":")[1] if ":" in name else name)
    is_time = base.endswith("_seconds")
    is_share = base.endswith("_ratio") or (base.endswith("_seconds_total") and "rate(" in expression)
    if is_share or expression.startswith("avg("):
        return "percentunit"
    if is_time and not expression.startswith("count("):
        return "s"
    return "bytes" if base.endswith("_bytes") else None


def test_the_metrics_are_those_of_the_table_of_metrics() -> None:
    table = table_of_metrics()
    assert len(table) > 40
    recorded = set(re.findall(r"^      - record: (\S+)$", _rules("runs.yml"), re.MULTILINE))
    for query in all_queries():
        for name in metrics(query.expression):
            base = re.sub("_(sum|count|bucket)$", "", name)
            assert base in table or name in recorded or name == "ALERTS", f"{name} in {query}"


def test_the_documentation_names_every_panel() -> None:
    text = (DOCS / "how-to/grafana.md").read_text()
    for dashboard, panel in all_panels():
        assert panel["title"] in text, f"{dashboard}: {panel['title']}"


def _rules(name: str) -> str:
    return (FOLDER.parents[1] / "prometheus" / "rules" / name).read_text()
