"""Summaries, for the tests of what is made from them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.judging.caveat_reasons import caveat_text
from harness.judging.gate_reasons import gate_text
from harness.judging.summarize import summarize
from harness.judging.summary import UNKNOWN, Summary, read_summary
from harness.judging.verdict_reasons import verdict_text
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json


def summarized(events: Sequence[Event], **how: Any) -> dict[str, Any]:
    """The `summary.json` of a run, of which each sentence follows from its code and fields, as JSON has them."""
    raw = to_json(summarize(events, **how))
    read = read_summary(json.loads(json.dumps(raw)))
    assert [verdict_text(one) for one in read.reason_codes] == raw["reasons"]
    assert [caveat_text(one) for one in read.caveat_codes] == raw["caveats"]
    # What a sentence is where the fields are not those of the code.
    in_words = {one.code.replace("_", " ") for one in (*read.reason_codes, *read.caveat_codes)}
    assert not in_words & {*raw["reasons"], *raw["caveats"]}
    assert [None if gate.why is None else gate_text(gate.why) for gate in read.gates] == [
        gate["reason"] for gate in raw["gates"]
    ]
    return raw


def incident(**changes: Any) -> dict[str, Any]:
    phases = {
        "verify": 0.003,
        "detect": 0.002,
        "isolate": 0.010,
        "regroup": 0.020,
        "transfer": 0.030,
        "first_step": 0.125,
        "restore": 2.4,
        "rejoin": 2.25,
    }
    return {
        "incident": 0,
        "fault": "kill-node",
        "target": "node=1",
        "step": 20,
        "phase": "backward",
        "injected": True,
        "verified": True,
        "recovered": True,
        "evidence": "2 processes are gone",
        "phases_seconds": phases,
        "recovery_seconds": 0.190,
        "detection_seconds": 0.020,
        **changes,
    }


def summary(**changes: Any) -> Summary:
    """A summary with `changes` to its JSON."""
    raw = {
        "name": "synthetic",
        "verdict": "pass",
        "exit_code": 0,
        "status": "completed",
        "job_outcome": "completed",
        "seed": 7,
        "experiment_hash": "0123456789abcdef",
        "strategy": "ndb",
        "steps_committed": 60,
        "steps_planned": 60,
        "steps_lost": 0,
        "samples_lost": 0,
        "throughput_per_second": {"before": 40960.0, "during": 30000.0, "after": 40950.0},
        "throughput_tokens_per_second": {"before": 40960.0, "during": 30000.0, "after": 40950.0},
        "throughput_drop_ratio": 0.2676,
        "throughput_drop_whole_run_ratio": 0.05,
        "final_loss": 2.65,
        "baseline_loss": 2.64,
        "loss_deviation_ratio": 0.0038,
        "incidents": [incident()],
        "badput_seconds": {"startup": 1.0, "regroup": 0.5, "checkpoint": 0.0, "other": 0.5},
        "productive_seconds": 6.0,
        "wall_clock_seconds": 8.0,
        "goodput_ratio": 0.75,
        "gates": [
            {"expression": "throughput_drop <= 30%", "value": 0.2676, "passed": True},
            {"expression": "recovery_seconds p95 < 5", "value": 0.19, "passed": True},
            {"expression": "steps_lost == 0", "value": 0, "passed": True, "builtin": True},
        ],
        "caveats": ["Only 60 steps were trained."],
        "reasons": ["Every gate holds."],
        **changes,
    }
    return read_summary(raw)


EMPTY = replace(UNKNOWN, steps_committed=0)
"""What a run that was cut off before its first step comes to."""
