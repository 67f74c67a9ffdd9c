"""What each metric and series is, in a line: what `chaos gates` says. docs/measuring.md says how they are computed."""

from __future__ import annotations

from collections.abc import Mapping

from harness.analysis.accounting import BADPUT_CAUSES

ABOUT: Mapping[str, str] = {
    "throughput_drop_ratio": "1 - throughput during the fault / before it",
    "throughput_drop_whole_run_ratio": "the same, with the mean of the whole run",
    "throughput_noise_ratio": "how much two stretches without a fault differ",
    "throughput_before_tokens_per_second": "median before the first fault",
    "throughput_during_tokens_per_second": "mean from fault to repair",
    "throughput_after_tokens_per_second": "median after the last lost rank was back",
    "loss_deviation_ratio": "final loss against the fault-free twin's",
    "loss_curve_max_deviation_ratio": "largest such difference of any step",
    "final_loss": "mean of the last 10 steps, nats per token",
    "twin_loss": "the same of the fault-free twin",
    "steps_committed": "steps that counted",
    "steps_lost": "planned steps never committed, and steps that were done again",
    "steps_repeated": "committed steps that were done again",
    "samples_lost": "samples missed or used twice",
    "diverged_units": "layers whose holders ended with different state",
    "unrecovered_incidents": "faults after which no step was committed",
    "layout_changes": "regroups",
    "degraded_share_ratio": "share of samples x layers computed approximately",
    "unfit_steps": "steps computed again or left out because of their numbers",
    "diagnosis_recall_ratio": "share of what was struck that the job named",
    "diagnosis_precision_ratio": "share of what the job named that was struck",
    "false_accusations": "ranks and links that the job named for nothing",
    "goodput_ratio": "productive time / wall clock",
    "wall_clock_seconds": "from the job's start to its end",
    "productive_seconds": "time of the job that was no badput",
    "step_seconds": "median duration of a step before the first fault",
    **{f"badput_{cause}_seconds": f"time lost to: {cause.replace('_', ' ')}" for cause in BADPUT_CAUSES},
    "recovery_seconds": "fault to the first step begun and committed after it",
    "progress_seconds": "fault to the first new step committed after it",
    "detection_seconds": "fault to its detection by the job",
    "diagnosis_seconds": "fault to the first naming of something struck",
    "verify_seconds": "fault to its effect seen from outside",
    "restore_seconds": "recovery to 95% of the throughput",
    "detect_seconds": "effect seen to detection",
    "isolate_seconds": "detection until every survivor left the old epoch",
    "regroup_seconds": "isolation to the new epoch, without the transfer",
    "transfer_seconds": "moving parameters and optimizer state",
    "first_step_seconds": "regroup to the next committed step",
    "rejoin_seconds": "fault to the lost ranks back in the job",
}
SERIES_ABOUT: Mapping[str, str] = {
    "step_seconds": "duration of each step, from commit to commit",
    "throughput": "work per second, in each second of training",
    "training_loss": "of each step, nats per token",
    "grad_norm": "of each step, before it is clipped",
    "degraded_layers": "layers computed approximately in each step, over all replicas",
}
