"""Chaos and recovery: what was broken, was it seen to be, how did the job come through, is everything undone."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build

from dashboards import frame, panels
from dashboards.panels import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, YELLOW, chart, number, states, steps
from dashboards.queries import of_run, query, speed

UID = "mecefo-chaos-recovery"

# In their order; together they are the recovery.
_RECOVERY_PHASES = (
    *("verify", "detect", "isolate", "regroup", "transfer"),
    *("reaction", "teardown", "failed_attempts", "launch", "start", "imports", "process_group", "model", "load"),
    *("resumed_step", "unobserved", "first_step"),
)
_VERDICTS = {
    "pass": GREEN,
    "fail": RED,
    "halted": ORANGE,
    "error": PURPLE,
    "inconclusive": YELLOW,
    "dirty": "dark-red",
}


def chaos_recovery() -> build.Dashboard:
    """The dashboard of the faults of a run and of what they cost."""
    dashboard = frame.new_dashboard(
        UID,
        "Chaos and recovery",
        "What was broken, was it seen to be, how did the job come through, and is everything undone?",
        shown="15m",
        refresh="5s",
    )
    for mark in (frame.faults_in_force(), frame.alerts_firing(), frame.memberships()):
        dashboard.annotation(mark)
    _state(dashboard)
    _faults(dashboard)
    _recovery(dashboard)
    _cost(dashboard)
    _judgement(dashboard)
    return dashboard


def _state(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("State"))
    for panel in (
        number(
            "Active faults",
            "From the injection until the repair, the undo or the recovery.",
            f"sum by (experiment, instance) ({of_run('chaos_fault_active')})",
            unit="none",
            thresholds=steps(GREEN, (1, ORANGE)),
        ),
        number(
            "Undo pending",
            "Incidents with a pending undo. Other than 0 after the run: `chaos heal` on its "
            "machine. Other than 0 in it for longer than the faults were to last: stop it first.",
            of_run("chaos_undo_pending"),
            unit="none",
            thresholds=steps(GREEN, (1, ORANGE)),
        ),
        number(
            "Faults verified",
            "Their effect was seen. Fewer than planned at the end: the run proves nothing about the others.",
            f"sum by (experiment, instance) ({of_run('chaos_faults_total', outcome='verified')})",
            unit="none",
            thresholds=steps(BLUE),
        ),
        number(
            "Faults not verified",
            "They were applied, and no effect was seen: the run is inconclusive. Its report says what was looked for.",
            f"sum by (experiment, instance) ({of_run('chaos_faults_total', outcome='unverified')})",
            unit="none",
            thresholds=steps(GREEN, (1, RED)),
        ),
        number(
            "Steps lost",
            "Done again, or never committed. The runtime of this project loses none as long as one peer lives; a job "
            "that restarts from a checkpoint loses those since the newest one: write them more often.",
            of_run("chaos_steps_lost_total"),
            unit="none",
            thresholds=steps(GREEN, (1, RED)),
        ),
        number(
            "Slowest recovery",
            "From injection to the first step that began and committed after it, of the newest incident of each kind.",
            f"max by (experiment, instance) ({of_run('chaos_recovery_seconds', phase='recovery')})",
            unit="s",
            thresholds=steps(GREEN, (10, YELLOW), (60, RED)),
        ),
    ):
        dashboard.with_panel(panel)


def _faults(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("Faults"))
    dashboard.with_panel(
        states(
            "Active",
            "Which fault, and for how long. One that outlives its lifetime was not undone.",
            query(f"sum by (fault) ({of_run('chaos_fault_active')})", "{{fault}}"),
            meaning={0: ("no", GREY), 1: ("active", RED), 2: ("two active", "dark-red")},
        )
    )
    outcomes = chart(
        "Incidents by outcome",
        "verified: its effect was seen. unverified: it was not, find out why before you trust the run. not_due: the "
        "job ended before its time came, or a limit forbade it.",
        query(f"sum by (outcome) ({of_run('chaos_faults_total')})", "{{outcome}}"),
        unit="none",
        is_stepped=True,
        is_stacked=True,
    )
    for outcome, color in (("verified", GREEN), ("unverified", RED), ("not_due", GREY)):
        outcomes.override_by_name(outcome, panels.fixed(color))
    dashboard.with_panel(outcomes)


def _recovery(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("Recovery"))
    last = "max by (fault) (last_over_time({}[$__range]))"
    later = of_run("chaos_recovery_seconds", phase="~restore|rejoin|repair_wait|rejoin_after_repair")
    for panel in (
        panels.bars(
            "Recovery by phase",
            "Of the newest incident of each kind, from the injection to the first step that began and committed after "
            "it. The longest part is the one to work on: detect, the heartbeat and the supervisor; regroup, the peers' "
            "time-outs; transfer, the size of the state; first_step, the new layout. Of your own script: reaction to "
            "resumed_step, what its launcher and its new processes did.",
            {phase: last.format(of_run("chaos_recovery_seconds", phase=phase)) for phase in _RECOVERY_PHASES},
            key="fault",
            heading="Fault",
            unit="s",
        ),
        chart(
            "Back to full speed, and everybody back",
            "restore: from the first step after it to the old throughput. rejoin: from the injection until the lost "
            "ranks train again. Of that, repair_wait is configured, and rejoin_after_repair is what the job took. "
            "No value: not reached yet.",
            query(f"max by (fault, phase) ({later})", "{{fault}} {{phase}}"),
            unit="s",
            is_stepped=True,
        ),
    ):
        dashboard.with_panel(panel)


def _cost(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("What it costs"))
    ranks = chart(
        "Ranks lost, and degraded layers",
        "Lost ranks and the layers that are approximated because of them. Both go back to 0 after the repair.",
        query(f"sum by (experiment) ({of_run('training_ranks', state='lost')})", "{{experiment}} ranks lost"),
        query(of_run("training_degraded_layers"), "{{experiment}} degraded layers"),
        unit="none",
        is_stepped=True,
        width=8,
    )
    badput = f"sum by (cause) (rate({of_run('training_badput_seconds_total', cause='!startup')}[$__rate_interval]))"
    for panel in (
        chart(
            "Throughput",
            "Tokens of committed steps per second; samples or steps of a job that does not report its tokens. The gap "
            "is the recovery, the lower level after it degraded speed.",
            query(speed("$__rate_interval"), "{{experiment}}, {{unit}}/s"),
            unit="locale",
            width=8,
        ),
        chart(
            "Throughput drop",
            "1 - throughput under the faults so far / before the first one; what the gate throughput_drop judges. "
            "No value before the first fault.",
            query(of_run("chaos_throughput_drop_ratio"), "{{experiment}}"),
            unit="percentunit",
            width=8,
        ),
        ranks,
        chart(
            "Badput by cause",
            "Share of the wall clock that was lost, without the start of the job. What the tool itself took (held "
            "ranks) is `injection`.",
            query(badput, "{{cause}}"),
            unit="percentunit",
            is_stacked=True,
            width=16,
        ),
        chart(
            "Device errors",
            "XIDs and ECC errors by rank. fidelity telemetry: told by a fault, no device had them; measured by none of "
            "our ranks: look at your own DCGM exporter for real ones.",
            query(
                f"sum by (rank, error, fidelity) ({of_run('training_device_errors_total')})",
                "rank {{rank}} {{error}} ({{fidelity}})",
            ),
            unit="none",
            is_stepped=True,
            width=8,
        ),
    ):
        dashboard.with_panel(panel)


def _judgement(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("Judgement, from the end of a run on"))
    dashboard.with_panel(
        states(
            "Gates",
            "What was asked of the run. no answer: the figure was not measured, which is never a pass.",
            query(f"max by (gate) (last_over_time({of_run('chaos_gate_passed')}[$__range]))", "{{gate}}"),
            meaning={0: ("failed", RED), 1: ("holds", GREEN)},
        ).mappings([panels.words({0: ("failed", RED), 1: ("holds", GREEN)}), panels.not_a_number("no answer", YELLOW)])
    )
    verdict = states(
        "Verdict",
        "inconclusive: no fault was seen to take effect, or there was nothing to compare with. dirty: something was "
        "left behind; run `chaos heal` now. The reasons stand in the run's report.",
        query(f"max by (verdict) (last_over_time({of_run('chaos_verdict')}[$__range])) > 0", "{{verdict}}"),
        meaning={},
    )
    for name, color in _VERDICTS.items():
        verdict.override_by_name(name, [*panels.fixed(color), panels.mapped({1: (name, color)})])
    dashboard.with_panel(verdict)
