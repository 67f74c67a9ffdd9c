"""Every query of every dashboard, asked of a real Prometheus that has watched a real run through its faults."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import pytest

from dashboards import DASHBOARDS, as_values
from tests.dashboards.reading import Query, all_queries, asked, misspelt, selectors
from tests.integration.runs import PATIENT, RUN_TIMEOUT_SECONDS, ChaosRun
from tests.prometheus import Prometheus, needs_prometheus

pytestmark = [pytest.mark.nightly, needs_prometheus]

# A node is lost and comes back; a device reports errors that it never had; one gate holds, one cannot. Prometheus
# takes up to five seconds to notice a new target, and up to five more to begin with it; it looks every two seconds, and
# at its rules every five. Late data keeps the steps so long, however fast the machine is, that it misses nothing.
EXPERIMENT = """
name: watched
seed: 7
job: {nodes: 2, gpus_per_node: 2, steps: 210, dilation: auto}
twin: false
faults:
  - {kind: slow-data, on: rank=0, at: {step: 2}, delay: 150ms, for: 200steps}
  - {kind: kill-node, on: node=1, at: {step: 110}, repair: 40steps}
  - {kind: ecc-telemetry, on: rank=0, at: {step: 120}}
gates: ["steps_lost == 0", "throughput_drop < -1000%"]
"""
_FAILED = 1
# Neither tokens nor samples can be seen of it: no loader, and a model that is given no token ids.
SCRIPT = """
import time
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(500):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
"""
_SCRAPE_SECONDS = 2


@dataclass(frozen=True)
class Watched:
    """A run that is over, in `prometheus` from one Unix time to another."""

    prometheus: Prometheus
    start_seconds: float
    end_seconds: float

    def answer(self, query: Query, expression: str) -> Sequence[Mapping[str, Any]]:
        """The series that Grafana would show of `expression`."""
        expression = asked(expression, range_seconds=int(self.end_seconds - self.start_seconds) + 1)
        if query.is_instant:
            return self.prometheus.at(expression, self.end_seconds)
        return self.prometheus.over(expression, self.start_seconds, self.end_seconds)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    experiment = folder / "watched.yaml"
    experiment.write_text(EXPERIMENT)
    out = folder / "out"
    with Prometheus(folder / "prometheus", targets=out / "prometheus.json") as prometheus:
        start_seconds = time.time()
        with ChaosRun(folder / "run", ["run", str(experiment), "--metrics", "auto"], out=out, patch=PATIENT) as run:
            assert run.wait(RUN_TIMEOUT_SECONDS) == _FAILED, run.stderr
            stored = str(run.folder)
        # As in docker/compose.yaml: what was over too soon to be scraped can be looked at again.
        with ChaosRun(folder / "serve", ["serve", stored], out=out):
            alert = 'ALERTS{alertname="ChaosGateFailed",alertstate="firing"}'
            prometheus.wait_until(lambda: prometheus.at(alert, time.time()), "the alert on the failed gate fires")
            verdict = 'run:chaos_verdict:last{verdict="fail"} == 1'
            prometheus.wait_until(lambda: prometheus.at(verdict, time.time()), "the verdict is recorded")
            # The last point of a range can be a step before its end.
            yield Watched(prometheus, start_seconds, time.time() + 1)


@pytest.mark.parametrize("query", all_queries(), ids=str)
def test_every_query_has_an_answer(watched: Watched, query: Query) -> None:
    series = watched.answer(query, query.expression)
    assert any(not isnan(float(value)) for one in series for _, value in one["values"]), "an empty panel"
    for one in series:
        assert query.words <= one["metric"].keys(), "a text names a label that the series does not have"
    # None of its parts may be without series beside another one that has some.
    for selector in selectors(query.expression):
        assert watched.answer(Query("", "", "", False, frozenset()), selector), f"nothing of {selector}"


@pytest.mark.parametrize("query", all_queries(), ids=str)
def test_a_misspelt_metric_would_be_noticed(watched: Watched, query: Query) -> None:
    assert not watched.answer(query, misspelt(query.expression))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_variables_offer_the_run(watched: Watched, name: str) -> None:
    offered = {}
    for variable in as_values(DASHBOARDS[name]())["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = asked(variable["query"]["query"], range_seconds=1)[len("label_values(") : -1].rsplit(", ")
            offered[variable["name"]] = watched.prometheus.label_values(label, selector)
    assert offered["experiment"] == ["watched"]
    assert offered["instance"]


def test_the_rules_have_no_errors(watched: Watched) -> None:
    rules = watched.prometheus.rules()
    assert rules and {rule["health"] for rule in rules} == {"ok"}, rules


def test_the_alerts_say_what_happened_and_nothing_else(watched: Watched) -> None:
    fired = watched.prometheus.over('ALERTS{alertstate="firing"}', watched.start_seconds, watched.end_seconds)
    names = {series["metric"]["alertname"] for series in fired}
    assert names == {"ChaosGateFailed", "ChaosRunNotPassed", "TrainingDeviceErrors"}


def test_the_faults_are_marked_while_they_are_in_force(watched: Watched) -> None:
    (mark,) = (query for query in all_queries() if (query.dashboard, query.title) == ("training-health", "Faults"))
    (lost,) = watched.prometheus.over('training_ranks{state="lost"} > 0', watched.start_seconds, watched.end_seconds)
    # Served again, the run has an instance of its own: when its faults were, that one cannot say.
    series = watched.answer(mark, mark.expression)
    assert {one["metric"]["instance"] for one in series} == {lost["metric"]["instance"]}
    marked = {one["metric"]["fault"]: one["values"] for one in series}
    assert marked.keys() == {"slow-data", "kill-node", "ecc-telemetry"}
    times = [at for at, _ in lost["values"]]
    marked_times = [at for at, _ in marked["kill-node"]]
    assert min(times) in marked_times, "ranks were lost, and nothing is marked"
    # The fault ends with the repair, its mark at the next point; the ranks are back a little later.
    assert max(marked_times) <= max(times) + 2 * _SCRAPE_SECONDS


@pytest.fixture(scope="module")
def own_script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("own-script")
    script, out = folder / "train.py", folder / "out"
    script.write_text(SCRIPT)
    with Prometheus(folder / "prometheus", targets=out / "prometheus.json") as prometheus:
        start_seconds = time.time()
        arguments = ["run", "pause-process", "--at", "step=250", "--for", "2s", "--metrics", "auto"]
        command = (sys.executable, str(script))
        with ChaosRun(folder / "run", arguments, out=out, patch=PATIENT, command=command) as run:
            assert run.wait(RUN_TIMEOUT_SECONDS) == 0, run.stderr
        yield Watched(prometheus, start_seconds, time.time() + 1)


def test_with_a_script_of_ones_own_every_panel_above_those_of_the_built_in_job_has_an_answer(
    own_script: Watched,
) -> None:
    panels = as_values(DASHBOARDS["training-health"]())["panels"]
    first_built_in = next(panel["id"] for panel in panels if panel["title"].startswith("Built-in job only"))
    titles = {panel["title"] for panel in panels if panel["id"] < first_built_in and panel["type"] != "row"}
    shown = [one for one in all_queries() if one.dashboard == "training-health" and one.title in titles]
    assert {one.title for one in shown} == titles
    empty = [one.title for one in shown if not own_script.answer(one, one.expression)]
    assert empty == []
    (speed,) = (one for one in shown if one.title == "Throughput")
    assert [one["metric"]["unit"] for one in own_script.answer(speed, speed.expression)] == ["steps"]
