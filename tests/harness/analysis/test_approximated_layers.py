"""How many layers a run approximated, why no more, and what another quality would have led to, from its log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.approximation import Reason
from harness.judging.summarize import summarize
from harness.judging.summary import Summary, read_summary
from harness.report.wording import approximation_words
from mecefo_runtime import planners
from mecefo_runtime.job.config import quality_of
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Cluster, Layout, configured_layout
from mecefo_runtime.planners import Situation
from mecefo_runtime.prediction.step_time import step_seconds
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json
from tests.examples import FEW
from tests.mecefo_runtime.planning import PLAIN

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=4, gpus_per_node=2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=12)
ALL = tuple(range(8))
# Projecting a layer saves a third of its time, or nothing.
PROJECTING = replace(PLAIN, projected_backward_seconds=1.0)
NOT_PROJECTING = replace(PLAIN, projected_backward_seconds=2.0)
SLOW_DEGRADED = replace(PLAIN, degraded_backward_seconds=2.5, recomputed_backward_seconds=2.6)


def planned(strategy: str, quality: str | float, alive: Iterable[int], costs: Costs) -> Layout:
    limits = quality_of(quality)
    return planners.find(strategy)(
        Situation(
            CLUSTER,
            frozenset(alive),
            costs,
            degraded_share_limit=limits.degraded_share_limit,
            projected_share_limit=limits.projected_share_limit,
        )
    )


def fields_of(layout: Layout, costs: Costs) -> dict[str, Any]:
    return {
        "degraded_layers": layout.num_degraded_layers,
        "projected_layers": layout.num_projected_layers,
        "predicted_step_seconds": step_seconds(layout, costs),
        "failure_free_step_seconds": step_seconds(configured_layout(CLUSTER), costs),
    }


def log(
    epochs: Iterable[tuple[Layout, int]],
    *,
    job: Mapping[str, Any],
    costs: Costs = PLAIN,
    others: Mapping[int, Layout] | None = None,
    is_old: bool = False,
) -> list[Event]:
    """A run that takes so many steps in each of these layouts; `others` are those of `speed`, by epoch."""
    events: list[Event] = []
    now, step = 1.0, 0

    def emit(kind: str, source: str = "coordinator", at: int | None = None, **fields: Any) -> None:
        nonlocal now
        now += 0.1
        events.append(Event(kind, source, now, now, 1, step=at, fields=fields))

    emit("run_started", "conductor", experiment={"name": "synthetic", "job": dict(job)}, seed=0)
    emit("job_started", "conductor", num_ranks=8, nodes=4, steps=sum(number for _, number in epochs))
    for epoch, (layout, number) in enumerate(epochs, start=1):
        told = fields_of(layout, costs)
        if is_old:
            told = {key: told[key] for key in ("degraded_layers", "predicted_step_seconds")}
        saved = costs.projected_saved_seconds / costs.layer_seconds
        emit("layout", at=step or None, epoch=epoch, layout=to_json(layout), projected_saved_ratio=saved, **told)
        if others and epoch in others:
            told = fields_of(others[epoch], costs)
            emit("other_quality_planned", at=step or None, epoch=epoch, quality="speed", **told)
        for _ in range(number):
            step += 1
            emit("step_committed", "rank", step, epoch=epoch, loss=2.0, tokens=1536, samples=24, samples_checksum=step)
    emit("job_ended", "conductor", outcome="completed")
    emit("run_ended", "conductor", reason="completed")
    return events


def whole(number: int) -> tuple[Layout, int]:
    return configured_layout(CLUSTER), number


def summary_of(
    strategy: str, quality: str | float | None, alive: Iterable[int], costs: Costs = PLAIN, **how: Any
) -> Summary:
    """Of ten steps with every rank, five with those that are `alive`, and five with every rank."""
    layout = planned(strategy, "auto" if quality is None else quality, alive, costs)
    others = {2: planned(strategy, "speed", alive, costs)} if quality is not None else None
    job = {"strategy": strategy, "quality": quality, "data_parallel": 4, "pipeline": 2}
    if isinstance(quality, float):
        job |= {"quality": "auto", "degraded_share_limit": quality}
    return summarize(log([whole(10), (layout, 5), whole(5)], job=job, costs=costs, others=others, **how))


def test_none_with_the_default_quality_where_to_project_saves_nothing():
    summary = summary_of("mecefo", "auto", range(6), NOT_PROJECTING)
    found = summary.approximation
    assert (found.reason, found.num_layers, found.approximated_layers) == ("projection_saves_too_little", 16, 0)
    assert (found.steps, found.steps_with_fewer_ranks, found.projected_saved_ratio) == (0, 5, 0.0)
    speed = planned("mecefo", "speed", range(6), NOT_PROJECTING)
    free = step_seconds(configured_layout(CLUSTER), NOT_PROJECTING)
    assert found.other.degraded_layers == speed.num_degraded_layers > 0
    assert found.other.predicted_drop_ratio == pytest.approx(1 - free / step_seconds(speed, NOT_PROJECTING))
    assert 0 <= found.other.predicted_drop_ratio < found.predicted_drop_ratio
    drop, other_drop = (f"{ratio:.1%}" for ratio in (found.predicted_drop_ratio, found.other.predicted_drop_ratio))
    assert approximation_words(summary) == (
        "0 of 16 layers approximated in the 5 steps with fewer ranks: quality auto degrades none, and projects one "
        "only where that saves more than 10% of its time (here 0%). With --quality speed: "
        f"{speed.num_degraded_layers} layers degraded, predicted throughput drop {other_drop} instead of {drop}."
    )


@pytest.mark.parametrize(
    ("reason", "strategy", "quality", "alive", "costs"),
    [
        ("no_fewer_ranks", "mecefo", "auto", ALL, PLAIN),
        ("no_fewer_ranks", "ndb", None, ALL, PLAIN),
        ("projection_saves_too_little", "mecefo", "auto", range(6), NOT_PROJECTING),
        ("all_that_help", "mecefo", "auto", range(6), PROJECTING),
        ("quality_allows_none", "mecefo", "exact", range(6), PROJECTING),
        ("quality_allows_none", "mecefo", 0.05, range(6), PROJECTING),
        ("quality_allows_none", "mecefo+spare", "auto", range(6), PROJECTING),
        ("keeps_speed", "mecefo", "speed", range(6), PLAIN),
        ("all_that_help", "mecefo", "speed", range(6), replace(PLAIN, degraded_backward_seconds=1.4)),
        ("none_is_faster", "mecefo", "speed", range(6), SLOW_DEGRADED),
        ("all_of_the_neighbour", "ndb", None, range(6), PLAIN),
        ("all_of_the_neighbour", "mecefo-paper", None, range(6), PLAIN),
        # The replica of ranks 0 and 4 is gone as a whole.
        ("no_takeover", "ndb", None, (1, 2, 3, 5, 6, 7), PLAIN),
    ],
)
def test_why_no_more(reason, strategy, quality, alive, costs):
    summary = summary_of(strategy, quality, alive, costs)
    assert summary.approximation.reason == reason, summary.approximation
    assert read_summary(to_json(summary)).approximation == summary.approximation


def test_every_reason_has_words_of_its_own():
    summary = summary_of("mecefo", "auto", range(6), NOT_PROJECTING)
    lines = {
        reason: approximation_words(replace(summary, approximation=replace(summary.approximation, reason=reason)))
        for reason in get_args(Reason)
    }
    assert len(set(lines.values())) == len(lines)
    assert {reason for reason, line in lines.items() if "fewer ranks: " not in line} == {"unknown"}


def test_a_layout_that_memory_forces_is_said_to_be_one():
    degraded = planned("mecefo", "speed", range(6), PLAIN)
    job = {"strategy": "mecefo", "quality": "auto"}
    summary = summarize(log([whole(10), (degraded, 5)], job=job))
    assert summary.approximation.reason == "no_exact_layout"


@pytest.mark.parametrize("strategy", ["exact", "checkpoint", "oobleck-like", "spare", None, "nonsense"])
def test_strategies_that_never_approximate_have_no_line(strategy):
    summary = summarize(log([whole(10)], job={"strategy": strategy}))
    assert summary.approximation is None and approximation_words(summary) is None


def test_an_old_log_has_layers_but_neither_reason_nor_prediction():
    degraded = planned("mecefo", "speed", range(6), PLAIN)
    summary = summarize(log([whole(10), (degraded, 5)], job={"strategy": "mecefo"}, is_old=True))
    found = summary.approximation
    assert (found.reason, found.predicted_drop_ratio, found.other) == ("unknown", None, None)
    line = approximation_words(summary)
    assert line == f"{degraded.num_degraded_layers} of 16 layers degraded in 5 of 15 steps."


def test_provisional_layouts_are_left_out_of_the_prediction():
    kept = planned("mecefo", "auto", range(6), NOT_PROJECTING)
    first = replace(kept, replicas=kept.replicas[:2])
    events = log([whole(10), (first, 3), (kept, 5)], job={"strategy": "mecefo", "quality": "auto"})
    by_itself = summarize(log([whole(10), (kept, 5)], job={"strategy": "mecefo", "quality": "auto"}))
    provisional = [
        replace(event, fields={**event.fields, "num_fetched_in_background": 2})
        if event.kind == "layout" and event.fields["epoch"] == 2
        else event
        for event in events
    ]
    found = summarize(provisional).approximation
    assert found.predicted_drop_ratio == by_itself.approximation.predicted_drop_ratio
    assert found.steps_with_fewer_ranks == 8


@st.composite
def courses(draw):
    """(strategy, quality, [(alive, steps)]): a job that loses and regains ranks."""
    strategy = draw(st.sampled_from(["mecefo", "ndb", "mecefo-paper"]))
    quality = draw(st.sampled_from(["auto", "speed", "exact", 0.25, 0.5]))
    alive = st.sets(st.integers(0, 7), min_size=1)
    return strategy, quality, draw(st.lists(st.tuples(alive, st.integers(0, 4)), max_size=5))


@given(courses(), st.sampled_from([PLAIN, PROJECTING, NOT_PROJECTING]))
@FEW
def test_the_line_counts_what_the_layout_events_do(course, costs):
    strategy, quality, changes = course
    epochs = [whole(3), *((planned(strategy, quality, alive, costs), number) for alive, number in changes)]
    others = {epoch: planned(strategy, "speed", alive, costs) for epoch, (alive, _) in enumerate(changes, start=2)}
    job = {"strategy": strategy, "quality": quality}
    events = log(epochs, job=job, costs=costs, others=others)
    trained = {event.fields["epoch"] for event in events if event.kind == "step_committed"}
    counts = {
        event.fields["epoch"]: event.fields["degraded_layers"] + event.fields["projected_layers"]
        for event in events
        if event.kind == "layout" and event.fields["epoch"] in trained
    }
    summary = summarize(events)
    found = summary.approximation
    assert found.approximated_layers == max(counts.values()) == found.degraded_layers + found.projected_layers
    in_line = re.match(r"(\d+) of 16 layers \w+(?: and (\d+) projected)?", approximation_words(summary))
    assert sum(int(number) for number in in_line.groups() if number) == found.approximated_layers
    assert found.steps == sum(number for epoch, (_, number) in enumerate(epochs, start=1) if counts.get(epoch))
    assert (found.approximated_layers == 0) == (not found.steps)
