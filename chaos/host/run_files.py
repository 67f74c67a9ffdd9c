"""The names of the files in a run's folder that both faults and the harness know."""

from __future__ import annotations

EVENTS_FILE = "events.jsonl"
EXPERIMENT_FILE = "experiment.yaml"
SUMMARY_FILE = "summary.json"
# One log for each rank of our own runtime, one for all that a command prints.
LOGS_FOLDER = "logs"
JOB_LOG = "job.log"
# What is kept of a user's files while they are damaged or covered: for this user alone.
KEPT_FOLDER = "kept"


def job_log_of(node: int) -> str:
    """The name of the log of what a command prints on `node`, where it is started on several."""
    return f"job-node-{node}.log"
