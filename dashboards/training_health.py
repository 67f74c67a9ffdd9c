"""Training health: is training going on, at what speed, who takes part, where does the time go."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build

from dashboards import frame, panels
from dashboards.panels import BLUE, GREEN, GREY, ORANGE, RED, YELLOW, chart, number, states, steps
from dashboards.queries import of_ranks, of_run, query, speed

UID = "mecefo-training-health"


def training_health() -> build.Dashboard:
    """The dashboard of a job under way."""
    dashboard = frame.new_dashboard(
        UID,
        "Training health",
        "Is training going on, at what speed, who takes part, and where does the time go? Faults are marked.",
        shown="15m",
        refresh="5s",
    )
    for mark in (frame.faults_in_force(), frame.alerts_firing()):
        dashboard.annotation(mark)
    _now(dashboard)
    _speed(dashboard)
    _loss_and_ranks(dashboard)
    _time(dashboard)
    dashboard.with_row(panels.row("Built-in job only: numbers, layers, memberships"))
    _memberships(dashboard)
    _numbers(dashboard)
    _ranks(dashboard)
    return dashboard


def _now(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("Now"))
    running = of_run("training_running")
    since = f"(time() - {of_run('training_last_commit_timestamp_seconds')}) and {running} == 1"
    for panel in (
        number(
            "Step",
            "The newest committed step. Is it stalled? Look at the time since the last commit.",
            of_run("training_step"),
            unit="locale",
            thresholds=steps(BLUE),
        ),
        number(
            "Since the last commit",
            "While the job runs. More than ten steps' time: training has stalled; look at the ranks and at the active "
            "faults. No value: no job runs now (before its start, after its end, during the fault-free baseline).",
            since,
            unit="s",
            thresholds=steps(GREEN, (10, YELLOW), (60, RED)),
        ),
        number(
            "Speed",
            "Per second, all replicas together: tokens, else samples, else steps, whichever the job reports; the label "
            "says which. Compare with the chart below: what was it before the first fault?",
            speed("$__rate_interval"),
            unit="locale",
            thresholds=steps(BLUE),
            legend="{{experiment}}, {{unit}}/s",
        ),
        number(
            "Loss",
            "Of the newest step; of the built-in job in nats per token. NaN or infinite: stop, go back to a checkpoint "
            "from before it, and look for the rank and the batch that brought it in.",
            of_run("training_loss"),
            unit="none",
            thresholds=steps(BLUE),
        ),
        number(
            "Goodput",
            "Share of the wall clock since the start of the job that went into steps that count, at the speed of "
            "before the first fault. Low: the chart of badput says where the time went.",
            of_run("training_goodput_ratio"),
            unit="percentunit",
            thresholds=steps(RED, (0.8, YELLOW), (0.9, GREEN)),
        ),
        number(
            "Ranks lost",
            "Struck, or known to be lost, and not back. Other than 0 for long: is the node being repaired? Until then "
            "its work is done by others, degraded.",
            of_run("training_ranks", state="lost"),
            unit="none",
            thresholds=steps(GREEN, (1, RED)),
        ),
    ):
        dashboard.with_panel(panel)


def _speed(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("Speed"))
    buckets = f"sum by (experiment, le) (rate({of_run('training_step_seconds_bucket')}[$__rate_interval]))"
    dashboard.with_panel(
        chart(
            "Throughput",
            "Tokens of committed steps per second, each step counted once; samples or steps of a job that does not "
            "report its tokens. A gap down to 0 is a recovery; a lower level after it is degraded speed.",
            query(speed("$__rate_interval"), "{{experiment}}, {{unit}}/s"),
            unit="locale",
            width=8,
        )
    )
    dashboard.with_panel(
        chart(
            "Steps per second",
            "Committed ones, each counted once; also of a job that does not tell its tokens.",
            query(f"rate({of_run('training_steps_total')}[$__rate_interval])", "{{experiment}}"),
            unit="none",
            width=8,
        )
    )
    dashboard.with_panel(
        chart(
            "Time from commit to commit",
            "What stands still in between is in it. A 95th percentile far above the median: single steps are held up "
            "(recoveries, stragglers, checkpoints). A rising median: every step is slow; look at each rank below.",
            query(f"histogram_quantile(0.5, {buckets})", "{{experiment}} median"),
            query(f"histogram_quantile(0.95, {buckets})", "{{experiment}} 95th percentile"),
            unit="s",
            width=8,
        )
    )


def _loss_and_ranks(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("Loss and ranks"))
    dashboard.with_panel(
        chart(
            "Loss",
            "Of the built-in job in nats per token. A jump at a fault says that a takeover, or a restart, changed more "
            "than it may; one without a fault is the data or the learning rate.",
            query(of_run("training_loss"), "{{experiment}}"),
            unit="none",
            width=12,
        )
    )
    ranks = chart(
        "Ranks",
        "Alive, lost, and not heard of yet. Lost ranks that do not come back: repair the node, or let the run end.",
        query(f"sum by (state) ({of_run('training_ranks')})", "{{state}}"),
        unit="none",
        is_stacked=True,
        is_stepped=True,
        width=12,
    )
    for state, color in (("alive", GREEN), ("lost", RED), ("starting", GREY)):
        ranks.override_by_name(state, panels.fixed(color))
    dashboard.with_panel(ranks)


def _time(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("Where the time goes"))
    rate = "sum by ({}) (rate({}[$__rate_interval]))"
    productive = rate.format("experiment", of_run("training_productive_seconds_total"))
    lost = rate.format("experiment", of_run("training_badput_seconds_total"))
    dashboard.with_panel(
        chart(
            "Goodput",
            "Since the start of the job, and at the time. Falling without a fault: stragglers, checkpoints or a slow "
            "network; the causes stand beside.",
            query(of_run("training_goodput_ratio"), "{{experiment}} since the start"),
            query(f"{productive} / ({productive} + {lost})", "{{experiment}} at the time"),
            unit="percentunit",
            thresholds=steps(RED, (0.8, YELLOW), (0.9, GREEN)),
        ).max(1)
    )
    dashboard.with_panel(
        chart(
            "Badput by cause",
            "Share of the wall clock that was lost. detection: lower the heartbeat; transfer: snapshots nearer; "
            "degraded_speed: repair sooner; checkpoint: write less often; injection: the tool itself held ranks.",
            query(rate.format("cause", of_run("training_badput_seconds_total")), "{{cause}}"),
            unit="percentunit",
            is_stacked=True,
        )
    )


def _memberships(dashboard: build.Dashboard) -> None:
    """Who holds which layers. A script of the user's reports none of it: below, so that no row above is half empty."""
    dashboard.with_panel(
        chart(
            "Layers held by each rank",
            "A lost rank holds none, its neighbours more. Uneven without a loss: an earlier takeover was not balanced.",
            query(of_run("training_layers_held"), "rank {{rank}}"),
            unit="none",
            is_stepped=True,
            width=8,
        )
    )
    dashboard.with_panel(
        chart(
            "Degraded layers",
            "Layers that run with approximated gradients, over all replicas. More than 0 for long costs accuracy: "
            "bring the lost nodes back.",
            query(of_run("training_degraded_layers"), "{{experiment}}"),
            unit="none",
            is_stepped=True,
            width=8,
            thresholds=steps(GREEN, (1, ORANGE)),
        )
    )
    dashboard.with_panel(
        chart(
            "Memberships formed",
            "By why they were. Many losses in a row: a rank or link that comes and goes; find it and take it out.",
            query(f"sum by (reason) ({of_run('training_regroups_total')})", "{{reason}}"),
            unit="none",
            is_stepped=True,
            width=8,
        )
    )
    dashboard.with_panel(
        states(
            "Coordinator",
            "Training goes on without one, but the next loss of a rank stops it. away for more than a moment: why is "
            "it not started again?",
            query(of_run("training_coordinator_up"), "{{experiment}}"),
            meaning={0: ("away", RED), 1: ("up", GREEN)},
            width=6,
        )
    )


def _numbers(dashboard: build.Dashboard) -> None:
    """The numbers of each step, which a script of the user's does not report either."""
    dashboard.with_panel(
        chart(
            "Unfit steps",
            "Attempts at a step whose numbers were not fit, by what was done: repeated, left out, a rank evicted or "
            "healed. The run's log names the rank; the same one again and again is a bad device.",
            query(f"sum by (verdict) ({of_run('training_unfit_steps_total')})", "{{verdict}}"),
            unit="none",
            is_stepped=True,
            width=6,
        )
    )
    dashboard.with_panel(
        chart(
            "Gradient norm",
            "Of the newest step, before clipping. A spike just before a bad loss tells the step to look at.",
            query(of_run("training_gradient_norm"), "{{experiment}}"),
            unit="none",
            width=6,
        )
    )
    dashboard.with_panel(
        chart(
            "Learning rate",
            "Of the newest step. A job that resumed in the wrong place shows here.",
            query(of_run("training_learning_rate"), "{{experiment}}"),
            unit="sci",
            width=6,
        )
    )


def _ranks(dashboard: build.Dashboard) -> None:
    dashboard.with_row(panels.row("Built-in job only: each rank, as it reports itself"))
    seconds = "rate({}[$__rate_interval])"
    own, count = (seconds.format(of_ranks(f"training_rank_step_seconds_{part}")) for part in ("sum", "count"))
    cpu = seconds.format(of_ranks("training_rank_compute_seconds_total", clock="cpu"))
    for panel in (
        chart(
            "Time of a step",
            "From the beginning of the attempt to its commit, on this rank. All rise together: one of them is slow, "
            "and the others wait for it; its compute time stands beside.",
            query(f"{own} / {count}", "rank {{rank}}"),
            unit="s",
            width=8,
        ),
        chart(
            "Compute",
            "CPU seconds per second in compute segments. The rank that computes longer than its peers is the "
            "straggler; one with less has less to do, or is starved.",
            query(cpu, "rank {{rank}}"),
            unit="percentunit",
            width=8,
        ),
        chart(
            "Resident memory",
            "Of the rank's process. Growing from step to step: a leak; look before the kernel ends the process. A step "
            "up at a takeover is the state of the layers that it took.",
            query(of_ranks("training_rank_resident_memory_bytes"), "rank {{rank}}"),
            unit="bytes",
            width=8,
        ),
    ):
        dashboard.with_panel(panel)
