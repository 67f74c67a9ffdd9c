import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.judging.summarize import summarize
from harness.judging.summary import read_summary
from harness.report import html, junit
from harness.report.terminal import render
from mecefo_runtime.system.json_values import to_json
from tests.harness import synthetic
from tests.harness.summaries import EMPTY, incident, summary
from tests.harness.synthetic import Fault

pytestmark = pytest.mark.unit


def text(raw, events=(), *, width=80, encoding="utf-8", folder=None, color=None, environment=None):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = Console(file=file, width=width, color_system=color, force_terminal=color is not None)
    render(raw, events, console, folder=folder, environment=environment)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def section(report, head):
    return report.split(f"\n{head}", 1)[1].split("\n\n")[0]


def test_begins_with_the_verdict_and_why():
    lines = text(summary(verdict="fail", reasons=["throughput_drop is 26.8%."])).splitlines()
    assert lines[0] == "synthetic: FAIL"
    assert "gate" in lines[1]
    assert lines[2] == "  - throughput_drop is 26.8%."


def test_what_the_job_noticed_after_it_had_recovered_is_no_part_of_the_recovery():
    seconds = {"verify": 0.1, "detect": 1.9, "isolate": 0.5, "regroup": None, "transfer": None, "first_step": None}
    late = incident(recovery_seconds=1.5, detection_seconds=2.0, phases_seconds=seconds)
    told = section(text(summary(incidents=[late])), "Recovery from incident 0").splitlines()
    rows = [line.strip() for line in told[1:]]
    assert rows[0].startswith("recovery, from fault to next committed step")
    assert any(row.startswith("failure detected, after the fault") and "2.00 s" in row for row in rows)
    assert not any(row.startswith("in-flight step aborted") for row in rows)


@pytest.mark.parametrize(
    ("knobs", "is_known"),
    [({}, True), ({"faults": (Fault(recovers=False),), "job_fails": True}, False), ({"ended": "interrupted"}, False)],
    ids=["completed", "died", "interrupted"],
)
def test_of_a_job_that_did_not_come_to_its_end_it_says_only_what_is_known(knobs, is_known):
    events = synthetic.run(baseline=False, **knobs)
    found = summarize(events)
    report, page = " ".join(text(found, events).split()), html.render(found, events)
    assert ("Steps lost: 0;" in report) is is_known
    assert ("Steps recomputed: 0;" in report) is not is_known
    assert ("drop over the whole run" in report) is is_known
    assert (">steps lost<" in page) is is_known


@pytest.mark.parametrize("verdict", ["pass", "fail", "inconclusive", "halted", "error", "dirty"])
def test_every_verdict_is_explained(verdict):
    report = text(summary(verdict=verdict))
    assert verdict.upper() in report
    assert "no verdict that this version knows" not in report


def test_says_what_was_done_and_what_proves_it():
    done = section(text(summary()), "What happened")
    assert "incident 0: kill-node on node 1 at step 20 (backward)" in done
    assert "verified: 2 processes are gone" in done
    assert "60 of 60 planned steps" in done


@pytest.mark.parametrize(
    ("backends", "said"),
    [(["gloo"], ""), (None, ""), (["nccl"], ", groups over NCCL"), (["nccl", "gloo"], ", groups over NCCL, then gloo")],
)
def test_groups_of_gpus_are_said_to_use_nccl_or_not(backends, said):
    done = " ".join(section(text(summary(group_backends=backends)), "What happened").split())
    assert f"takeover strategy ndb{said}, seed 7" in done


def test_an_effect_not_seen_counts_for_nothing():
    report = text(
        summary(incidents=[incident(verified=False, evidence=None, recovery_seconds=None, phases_seconds={})])
    )
    assert "NOT verified, so it does not count" in report
    assert "Recovery from incident 0" not in report


def test_the_recovery_is_told_phase_by_phase():
    rows = section(text(summary()), "Recovery from incident 0").splitlines()[1:]
    assert [row.split("  ")[1] for row in rows[:5]] == [
        "failure detected",
        "in-flight step aborted",
        "process groups rebuilt",
        "state transferred",
        "next step committed",
    ]
    assert "0.19 s" in rows[5]
    assert "effect verified, after the fault" in rows[6]
    longest = max(rows[:5], key=lambda row: row.count("█"))
    assert "next step committed" in longest


@pytest.mark.parametrize(
    ("repair", "restore", "told"),
    [
        (None, 3.0, ["rejoined, after the fault  2.50 s", "full speed, after the rejoin  0.69 s"]),
        (2.0, 3.0, ["configured wait before the repair  2.00 s", "rejoined, after repair started  0.50 s"]),
        (2.0, 1.0, ["rejoined, after repair started  0.50 s", "full speed, after that step  1.00 s"]),
    ],
)
def test_a_rejoin_is_told_without_the_configured_wait(repair, restore, told):
    phases = {"rejoin": 2.5, "restore": restore}
    if repair is not None:
        phases |= {"repair_wait": repair, "rejoin_after_repair": 2.5 - repair}
    rows = section(text(summary(incidents=[incident(phases_seconds=phases)])), "Recovery from incident 0")
    assert [words for words in told if words not in re.sub(r"  +", "  ", rows)] == []


def test_it_is_said_where_the_state_came_from_and_why_no_better_source_served():
    restored = {
        "at_seconds": 9.0,
        "rung": "parity",
        "step": 18,
        "steps_lost": 1,
        "seconds": 0.26,
        "sources": {"snapshot": {"pieces": 72, "num_bytes": 8 << 20}, "parity": {"pieces": 24, "num_bytes": 3 << 20}},
        "passed_over": {"peer": "the strategy ends all ranks", "snapshot": "that of step 18 lacks what node 3 kept"},
    }
    told = summary(incidents=[incident(state_restored=restored)], state_restores=[restored])
    assert told == read_summary(to_json(told))
    said = " ".join(text(told).split())
    expected = (
        "State came from snapshots in the nodes' memory (72 pieces, 8.0 MiB) and parity of lost nodes' snapshots "
        "(24 pieces, 3.0 MiB), in 0.26 s; 1 step recomputed. No peer: the strategy ends all ranks; no "
        "snapshot: that of step 18 lacks what node 3 kept."
    )
    assert said.count(expected) == 1
    # Of a loss that no fault explains, too.
    assert " ".join(text(summary(state_restores=[restored])).split()).count(expected) == 1


@pytest.mark.parametrize(
    ("restored", "said"),
    [
        ({"rung": "peer", "step": 20, "steps_lost": 0}, "the survivors held all of it; no step was lost."),
        (
            {"rung": "start", "step": 0, "steps_lost": 5},
            "all ranks started from the first step again; 5 steps recomputed",
        ),
        ({"rung": "checkpoint", "step": 10, "steps_lost": 5}, "came from the checkpoint on disk, in 0.50 s; 5 steps"),
    ],
)
def test_every_rung_has_its_words(restored, said):
    restored = {"at_seconds": 9.0, "seconds": 0.5, **restored}
    assert said in " ".join(text(summary(incidents=[incident(state_restored=restored)])).split())


def test_no_recovery_is_not_the_same_as_too_early_to_tell():
    dead = incident(recovery_seconds=None, recovered=False, phases_seconds={})
    assert "It did not recover" in text(summary(incidents=[dead]))
    early = incident(recovery_seconds=None, recovered=None, phases_seconds={})
    assert "ended before it was known" in text(summary(incidents=[early]))


def test_the_time_adds_up_and_says_so_when_it_does_not():
    report = text(summary())
    # Shares of a trial of seconds say how long its start took: only of a long one they are shown.
    assert "%" not in section(report, "Where the time went")
    assert "6.00 s" in section(report, "Where the time went")
    longer = {"productive_seconds": 600.0, "wall_clock_seconds": 800.0, "badput_seconds": {"startup": 200.0}}
    assert "75.0%" in section(text(summary(**longer)), "Where the time went")
    assert "do not add up" not in report
    assert "+1.000 s are not accounted for" in text(summary(productive_seconds=5.0))


def test_buckets_without_time_are_left_out():
    assert "checkpoint" not in text(summary())


def test_the_speed_over_time_shows_the_fault():
    speed = section(text(summary(), synthetic.run()), "Training speed")
    curve, marks = speed.splitlines()[-3:-1]
    assert "F" in marks and "R" in marks
    assert curve[marks.index("F") - 3] > curve[marks.index("F") + 1], "the speed falls at the fault"


def test_gates_show_their_value_in_the_unit_they_are_written_in():
    gates = section(
        text(summary(gates=[*to_json(summary())["gates"], {"expression": "goodput >= 0.9"}])),
        "Gates",
    )
    assert [" ".join(line.split()) for line in gates.splitlines()[1:]] == [
        "pass throughput_drop <= 30% 26.76%",
        "pass recovery_seconds p95 < 5 0.19 s",
        "pass steps_lost == 0 0 always checked",
        "undecided goodput >= 0.9 no value",
    ]


def test_ends_with_where_it_is_and_how_to_repeat_it():
    report = text(summary(), folder=Path("my out") / "x")
    assert "chaos run 'my out/x/experiment.yaml'" in report
    assert "files:   my out/x" in report
    assert "chaos run experiment.yaml" in text(summary())


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_fits_its_width(width):
    report = text(summary(caveats=["word " * 60], reasons=["reason " * 60]), synthetic.run(), width=width)
    assert max(map(len, report.splitlines())) <= width


def test_no_word_is_cut_where_it_is_narrow():
    narrow, wide = (text(summary(), synthetic.run(), width=width) for width in (40, 80))
    # Curves and bars are as wide as there is room.
    words = [re.findall(r"[a-z_]{2,}", report) for report in (narrow, wide)]
    assert words[0] == words[1]


def test_needs_neither_colour_nor_unicode():
    report = text(summary(caveats=["caf\u00e9"]), synthetic.run(), encoding="ascii")
    assert "caf\\xe9" in report
    coloured = text(summary(), synthetic.run(), color="standard")
    assert "\x1b[" in coloured


def test_what_the_run_says_is_text_and_no_markup():
    report = text(
        summary(name="[bold]x[/bold]", caveats=["[red]a[/]\x1b[31mb"], incidents=[incident(evidence="[/oops]")])
    )
    assert "[bold]x[/bold]: PASS" in report
    assert "[red]a[/] [31mb" in report
    assert "\x1b" not in report


def test_what_the_run_says_does_not_reorder_the_lines():
    evil = "a\u202eb\u200bc"
    raw = summary(
        name=evil,
        strategy=evil,
        reasons=[evil],
        caveats=[evil],
        incidents=[incident(target=evil, evidence=evil, fault=evil)],
        gates=[{"expression": evil, "value": None, "passed": None, "reason": evil}],
    )
    report = text(raw, folder=Path(evil))
    assert not set(report) & {"\u202e", "\u200b"}
    assert r"a\u202eb\u200bc: PASS" in report
    assert "a b c" in report


def test_names_keep_letters_and_emoji():
    name = "e\u0301 שלום 👩\u200d🚀"
    assert f"{name}: PASS" in text(summary(name=name))


def test_an_empty_run_is_reported_without_a_stumble():
    report = text(EMPTY)
    assert "run: INCONCLUSIVE" in report
    assert "No fault was injected." in report
    assert "None" not in report
    nobody_knows = text(replace(EMPTY, steps_committed=None, steps_planned=7))
    assert "None" not in nobody_knows and "committed an unknown number of steps" in nobody_knows


def test_many_incidents_get_a_line_each():
    dead = incident(incident=4, recovery_seconds=None, recovered=False, phases_seconds={})
    report = text(summary(incidents=[*(incident(incident=index) for index in range(4)), dead]))
    done = section(report, "What happened")
    assert "incident 3: kill-node on node 1 at step 20 (backward): recovered in 0.19 s" in " ".join(done.split())
    assert "It did not recover" in done
    assert "Recovery from incident 0" not in report


def test_the_page_is_named_where_there_is_one(tmp_path):
    assert "report.html" not in text(summary(), folder=tmp_path)
    (tmp_path / "report.html").write_text("")
    assert f"report:  {tmp_path}/report.html" in text(summary(), folder=tmp_path)


def test_a_speed_of_nothing_is_a_speed():
    raw = summary(throughput_per_second={"before": 40960.0, "during": 0.0, "after": None})
    assert "during the fault                             0" in text(raw)


def test_why_an_effect_was_not_seen_is_said_and_no_recovery_is_claimed():
    raw = summary(
        incidents=[
            incident(verified=False, unverified_reason="still there"),
            incident(injected=False, verified=False, incident=1),
        ]
    )
    report = text(raw)
    assert "NOT verified, so it does not count: still there" in report
    assert "not injected, so it does not count" in report
    assert "recovery" not in report.split("Gates")[0]


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"baseline": False},
        {"cut_off_after_step": 25},
        {"ended": "interrupted"},
        {"faults": [Fault(recovers=False)], "job_fails": True, "residue": [7]},
        {"faults": [Fault(fires=False)]},
        {"faults": [Fault(role="coordinator", kind="kill-coordinator")]},
        {"faults": [Fault(), Fault(node=2, during_regroup=True)]},
        {"gates": ["throughput_drop <= 4.18%", "recovery_seconds p95 < 5"]},
    ],
)
def test_every_report_takes_what_the_analysis_makes_of_a_log(knobs):
    events = synthetic.run(**knobs)
    raw = summarize(events)
    shown = text(raw, events)
    assert shown.startswith(f"synthetic: {raw.verdict.upper()}\n")
    assert raw.verdict in html.render(raw, events)
    assert f'value="{raw.verdict}"' in junit.render(raw)
    assert "do not add up" not in shown
