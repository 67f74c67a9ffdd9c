"""A run as Prometheus would have read it last, and that this is what its summary says."""

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from harness.exporter.families import RunCollector
from harness.exporter.figures import Figures
from harness.judging.metrics import METRICS

OF_BOTH = {metric.exported: metric.name for metric in METRICS.values() if metric.exported is not None}
OF_A_WHOLE_LOG = ("training_goodput_ratio", "training_productive_seconds_total")


def registry_of(events, summary=None):
    """What is served after all of `events` were fed one by one."""
    figures = Figures()
    for event in events:
        figures.feed(event)
    if summary is not None:
        figures.judge(summary)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(figures, lambda: figures.state.newest_seconds))
    return registry


def samples(registry):
    """(name, labels) -> value, of the OpenMetrics text as Prometheus' own parser reads it."""
    text = generate_latest(registry, version="1.0.0").decode()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def scraped(events, summary=None):
    """The samples of the last reading."""
    return samples(registry_of(events, summary))


def assert_agrees(events, summary):
    """That what was read last says the same as the summary; of a log that was cut off, of what does not end with it."""
    found, is_whole = scraped(events), summary["status"] != "cut off"
    for name, key in OF_BOTH.items():
        if is_whole or name not in OF_A_WHOLE_LOG:
            said = summary[key]
            _assert_same(found.get((name, ())), len(said) if isinstance(said, list) else said, name)
    if is_whole:
        for cause, seconds in summary["badput_seconds"].items():
            _assert_same(found.get(("training_badput_seconds_total", (("cause", cause),))), seconds, cause)
    committed = {event.step: event for event in reversed(events) if _is_commit(event)}
    for name, field in (("training_tokens_total", "tokens"), ("training_samples_total", "samples")):
        told = [event.fields[field] for event in committed.values() if event.fields.get(field) is not None]
        _assert_same(found.get((name, ())), sum(told) if told else None, name)
    injected = {e.fields["incident"]: e.monotonic_seconds for e in events if e.kind == "injected"}
    by_time = sorted(
        (one for one in summary["incidents"] if one["injected"]), key=lambda one: injected[one["incident"]]
    )
    newest = {incident["fault"]: incident for incident in by_time}
    for fault, incident in newest.items():
        phases = {**incident["phases_seconds"], "recovery": incident["recovery_seconds"]}
        for phase, seconds in phases.items():
            key = "chaos_recovery_seconds", (("fault", fault), ("phase", phase))
            _assert_same(found.get(key), seconds, f"{fault}: {phase}")
    outcomes = {labels: n for (name, labels), n in found.items() if name == "chaos_faults_total"}
    verified = sum(n for labels, n in outcomes.items() if ("outcome", "verified") in labels)
    assert verified == sum(incident["verified"] for incident in summary["incidents"])
    recovered = sum(n for (name, _), n in found.items() if name == "chaos_recoveries_total")
    assert recovered == sum(incident["recovery_seconds"] is not None for incident in summary["incidents"])


def _is_commit(event):
    return event.job == "main" and event.kind == "step_committed"


def _assert_same(shown, said, what):
    if said is None:
        assert shown is None, what
    else:
        assert shown == pytest.approx(said, rel=1e-9, abs=1e-9), what
