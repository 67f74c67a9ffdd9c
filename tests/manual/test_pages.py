"""The pages and pictures that are made from the code: whole, and of today."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from chaos.experiment.fault_spec import FAULT_KEYS
from chaos.experiment.schema import json_schema
from chaos.faults import registry
from harness.exporter import families as job
from harness.judging.metrics import METRICS
from harness.judging.summary import UNKNOWN, IncidentSummary
from manual import events, fault_pages, hooks, metrics, reference
from manual.examples import EXAMPLES
from manual.pictures import PICTURES, picture
from manual.timeline import Stretch, stalls_of, with_stalls
from mecefo_chaos.cli.main import cli
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.record import keys_of
from mecefo_runtime.system.records import RECORDS
from mecefo_runtime.system.run_records import PlannedIncident
from mecefo_runtime.training import exporter as rank
from tests.harness import synthetic
from tests.manual.documents import OVERVIEW, ROOT

pytestmark = pytest.mark.unit

SVG = "{http://www.w3.org/2000/svg}"
NEED_A_GPU = {kind for kind, fault in registry().items() if "cuda" in fault.needs}
MAX_PICTURE_BYTES = 40_000


def test_every_fault_has_an_example_a_family_and_a_place_in_the_overview():
    assert set(EXAMPLES) == set(registry())
    assert fault_pages.kinds() == sorted(registry())
    for kind in registry():
        heading = fault_pages.section_about(kind, OVERVIEW)
        assert kind in f"{heading}{OVERVIEW.split(heading, 1)[1]}"


@pytest.mark.parametrize("kind", registry())
def test_a_page_tells_what_the_class_says(kind):
    page, fault = fault_pages.page(kind, OVERVIEW), registry()[kind]
    assert page.startswith(f"# {kind}\n")
    assert fault.fidelity in page
    for name in fault.Parameters.model_fields:
        assert f"| `{name}` |" in page


def test_the_list_of_faults_leads_to_all_of_them():
    assert sorted(re.findall(r"^\| \[([\w-]+)\]\(\1\.md\) \|", fault_pages.index(), re.MULTILINE)) == sorted(registry())


def test_a_fault_that_no_page_tells_of_is_named():
    with pytest.raises(ValueError, match="kill-cat"):
        fault_pages.section_about("kill-cat", OVERVIEW)


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_a_picture_is_of_the_example_as_it_stands(kind):
    path = PICTURES / f"{kind}.svg"
    if kind in NEED_A_GPU and not path.exists():
        assert "no picture" in fault_pages.page(kind, OVERVIEW)
        return
    assert path.stat().st_size <= MAX_PICTURE_BYTES
    root = ElementTree.parse(path).getroot()
    command, effect, verdict, _ = root.findtext(f"{SVG}desc").splitlines()
    assert command == EXAMPLES[kind].command, f"take it again: python -m manual.pictures {kind}"
    assert effect.startswith("Verified: ")
    assert not re.search(r"/(tmp|home|root|var)/", effect + verdict), "it tells where the run was kept"
    assert re.match(r"Verdict: (pass|fail|inconclusive) ", verdict)
    lanes = [text.text for text in root.iter(f"{SVG}text") if text.text.startswith("rank ")]
    # Nobody knows what the ranks of a script hold.
    num_ranks = 0 if " -- " in command else 6 if "--spares 1" in command else 4
    assert lanes == [f"rank {rank}" for rank in range(num_ranks)]


def test_no_picture_is_of_nothing():
    used = set(registry())
    assert {path.stem for path in PICTURES.glob("*.svg")} <= used


def test_a_picture_shows_who_was_affected_and_when_it_came_back():
    events = synthetic.run()
    incident = IncidentSummary(0, "kill-node", evidence={"summary": "gone <from> /r/the table"})
    summary = replace(UNKNOWN, incidents=(incident,), verdict="pass", reasons=("x",))
    root = ElementTree.fromstring(picture("kill-node", [with_machine(event) for event in events], summary, Path("/r")))
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"kill-node", "repair started", "rejoined", "not in the job", "tokens/s"} <= set(words)
    assert root.findtext(f"{SVG}desc").splitlines()[1] == "Verified: gone <from> the table."
    gone = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "gone"]
    assert len(gone) == 2 + 1, "a stretch for each rank of the node, and the legend's"


def test_a_lane_says_stalled_while_no_step_is_committed():
    def step(number, seconds):
        return Event("step_committed", "coordinator", 0.0, seconds, 1, step=number)

    commits = [1.0, 2.0, 3.0, 10.0, 11.0, 12.0]
    events = [step(number, seconds) for number, seconds in enumerate(commits)]
    stalls = stalls_of(events, 0.0, 12.0)
    assert stalls == ((4.0, 9.0),)
    lane = (Stretch(0.0, 6.0, "trains"), Stretch(6.0, 7.0, "regroups"), Stretch(7.0, 12.0, "approximates"))
    assert [(s.begin_seconds, s.end_seconds, s.state) for s in with_stalls(lane, stalls)] == [
        (0.0, 4.0, "trains"),
        (4.0, 6.0, "stalled"),
        (6.0, 7.0, "regroups"),
        (7.0, 9.0, "stalled"),
        (9.0, 12.0, "approximates"),
    ]
    assert stalls_of(events, 0.0, 30.0)[-1] == (13.0, 30.0), "a job that did not come to its end"


def with_machine(event):
    if event.kind == "run_started":
        event.fields["machine"] = {"cores": 2, "python": "3.11.7"}
    return event


def test_the_command_line_reference_has_every_option():
    page = reference.command_line()
    for name, command in cli.commands.items():
        (section,) = re.findall(rf"^## chaos {name}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert all(f"`{option}" in section for option in (*parameter.opts, *parameter.secondary_opts))
    assert "\b" not in page


def test_the_experiment_reference_has_every_key():
    schema, page = json_schema(), reference.experiment()
    models = {"Experiment": schema, **schema["$defs"]}
    for name, model in models.items():
        for key in model.get("properties", {}):
            assert f"| `{key}` |" in page, f"{name}.{key}"


def test_every_key_of_an_experiment_has_a_text():
    schema = json_schema()
    models = {"Experiment": schema, **schema["$defs"]}
    faults = models.pop("FaultSpec")["oneOf"]
    properties = {name: model.get("properties", {}) for name, model in models.items()}
    properties["fault"] = {
        key: fault["properties"][key] for fault in faults for key in FAULT_KEYS if key in fault["properties"]
    }
    assert properties["fault"].keys() == set(FAULT_KEYS)
    del properties["fault"]["kind"]
    for name, fields in properties.items():
        silent = [key for key, field in fields.items() if not field.get("description")]
        assert not silent, f"{name}: say what these keys mean"


@pytest.mark.parametrize("record", [*RECORDS.values(), PlannedIncident])
def test_every_event_and_every_field_has_a_text(record):
    assert record is PlannedIncident or record.EMITTED_BY
    assert record.__dict__.get("__doc__"), "say when the event comes"
    silent = [name for name, text in events.texts_of(record).items() if not text]
    assert not silent, f"{record.__name__}: say below the fields what they are"


def test_the_reference_of_events_has_every_kind_with_every_field():
    page = events.with_kinds((ROOT / "docs/reference/events.md").read_text())
    sections = dict(re.findall(r"^#### (\w+)\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL))
    assert sections.keys() == RECORDS.keys()
    for kind, record in RECORDS.items():
        assert set(keys_of(record)) <= set(re.findall(r"^\| `(\w+)` \|", sections[kind], re.MULTILINE)), kind


@pytest.mark.parametrize(
    ("page", "names"),
    [("measuring", METRICS), ("metrics", {**job.FAMILIES, **rank.FAMILIES})],
)
def test_the_tables_of_metrics_have_all_of_them(page, names):
    text = (ROOT / f"docs/reference/{page}.md").read_text()
    made = metrics.with_tables(text)
    assert "<!--" not in made
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", made, re.MULTILINE)
    assert all(
        part.strip() for name, cells in rows if name in names for part in (cells.split("|")[0], cells.split("|")[-1])
    )
    assert not names.keys() - {name for name, _ in rows}


@pytest.mark.parametrize(
    ("markdown", "page", "depth", "expected"),
    [
        ("[a](events.md#x)", "docs/reference/undo.md", 1, "[a](../reference/events.md#x)"),
        ("[a](../reference/events.md)", "docs/decisions/0001-x.md", 1, "[a](../reference/events.md)"),
        ("[a](docs/reference/events.md)", "CONTRIBUTING.md", 0, "[a](reference/events.md)"),
        ("[a](../../CONTRIBUTING.md)", "docs/reference/undo.md", 1, "[a](../contributing.md)"),
        ("[the `code`](../../mecefo_runtime/layout.py)", "docs/reference/undo.md", 1, "the `code`"),
        (
            "[docs/index.md](docs/reference/undo.md)",
            "CONTRIBUTING.md",
            0,
            "[Undo and audit](reference/undo.md)",
        ),
        ("[a](https://example.org/x)", "docs/reference/undo.md", 0, "[a](https://example.org/x)"),
        ("![a](pictures/a.svg)", "docs/reference/undo.md", 0, "![a](pictures/a.svg)"),
    ],
)
def test_links_lead_to_pages(markdown, page, depth, expected):
    assert hooks.rewritten(markdown, ROOT / page, page_depth=depth) == expected


def test_every_document_is_in_the_navigation():
    nav = yaml.safe_load(re.sub(r"!\S+", "", (ROOT / "mkdocs.yml").read_text()))["nav"]
    named = set(re.findall(r"[\w/-]+\.md", str(nav)))
    # The decisions are put there by the hook.
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("decisions/")} <= named
