"""What each key of an experiment file means, in a few words: editors show them, and the reference lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Model -> key -> words. A parameter of a fault has them in its own model.
WORDS: Mapping[str, Mapping[str, str]] = {
    "Experiment": {
        "name": "name of the experiment and of the folder of its runs",
        "seed": "seed of everything random: weights, order of the data, drawn targets and times",
        "job": "the training job: the built-in one, or with `runtime: command` your own training script",
        "faults": "faults to inject: what, when, on which target",
        "profile": "more faults, drawn in the proportions of a real cluster; `failures` is their number",
        "limits": "maximum number of nodes and ranks affected at once",
        "gates": "pass criteria: the run fails if one of them fails",
        "halt": "conditions checked after every step; the first that becomes true ends the run",
        "twin": "also run the same job without faults, to compare with: the fault-free baseline",
        "backend": "what a node is: a process group on this machine (local), or a container (docker)",
        "network": "network between ranks here: `loopback`, a network namespace each, or what the faults need",
        "containers": "containers of the docker backend",
    },
    "Containers": {
        "image": "image of all containers",
        "cpus": "CPU limit of each node, in cores; default: no limit",
        "memory": "memory limit of each node; default: no limit",
    },
    "Job": {
        "runtime": "the built-in training job",
        "model": "model preset; all but llama-tiny have a published LLaMA shape",
        "nodes": "number of nodes, without spares",
        "spares": "number of spare nodes, which replace lost ones; they have the highest node numbers",
        "gpus_per_node": "ranks per node, also on machines without a GPU",
        "nodes_per_rack": "nodes per rack, for the target `rack=0`",
        "data_parallel": "number of model replicas; default: derived from the number of ranks",
        "pipeline": "pipeline stages per replica; default: derived from the number of ranks",
        "steps": "number of optimizer steps",
        "strategy": "recovery strategy: which ranks take over the layers of a lost rank, and how",
        "data": "UTF-8 text to train on, a file or folder; default: the sources of Python's standard library",
        "dilation": "slow-down factor of each rank's compute, so that ranks on few cores do not disturb each other",
        "pacing": "duration of dilated compute: a rated time, measured at the start, or a multiple of CPU time",
        "device_model": "device to emulate: the name of a known one, or a file by `chaos calibrate`",
        "time_scale": "real seconds per emulated second; `auto`: the smallest that the cores can sustain",
        "link": "bandwidth and latency between ranks to emulate; default: those of the device model",
        "sequence_length": "tokens per sequence",
        "microbatch_size": "sequences per microbatch",
        "microbatches_per_replica": "microbatches per replica and step",
        "learning_rate": "learning rate of AdamW after the warm-up",
        "warmup_steps": "steps of learning-rate warm-up",
        "approximation": "approximation of degraded layers",
        "health": "handling of steps with bad values",
        "checkpoint": "durable checkpoints; default: none",
        "snapshots": "snapshots in the nodes' memory; default: none",
        "redundancy": "spare, mecefo+spare: number of replicas that hold each shard; default: floor(log2 N + 0.833)",
        "stack_offsets": "spare, mecefo+spare: placement of shards, by a Golomb ruler or consecutive",
        "sharded_optimizer": "shard the optimizer state over the replicas of a layer (ZeRO-1); snapshots protect it",
        "takeover": "whether training waits for state transfer; `auto`: whatever is estimated to cost less",
        "quality": "mecefo: how much may be approximated; a ratio limits the share of samples through degraded layers",
        "degraded_share_limit": "as `quality` with a ratio, which takes precedence",
        "rank_memory_bytes": "memory per rank, for planners; default: no limit",
        "heartbeat_timeout": "silence after which a rank is declared lost; a closed connection is detected at once",
        "precision": "precision of matrix products; everything else is in fp32",
        "device": "device type of the ranks",
    },
    "CommandJob": {
        "runtime": "your own training script, started by `command`",
        "command": "command that starts the training: one text, as in a shell, or a list of words",
        "nodes": "number of nodes; default: from torchrun's options, else 1",
        "gpus_per_node": "ranks per node; default: from torchrun's options, else 1",
        "data_parallel": "number of model replicas, for the target `replica=0`; default: every rank is one",
        "steps": "number of optimizer steps, if known; later triggers are then refused before the start",
        "nodes_per_rack": "nodes per rack, for the target `rack=0`",
        "folder": "working directory of the command; default: the current one",
        "step_from": "regular expression that finds the step in the log, for jobs without a PyTorch optimizer",
        "checkpoint": "folder of the script's checkpoints; default: observed while it saves",
        "reset": "shell command to run before each start, also of the baseline and of repeats: `rm -rf checkpoints`",
        "environment": "environment variables to add",
        "startup_timeout": "maximum time to the first step",
        "stall_timeout": "maximum time without a step after that",
    },
    "SavedIn": {"folder": "folder, relative to the working directory of the command"},
    "Approximation": {
        "rank": "r, the rank of low-rank weight gradients",
        "refresh_steps": "tau, the number of steps between updates of a projection",
        "down_projection": "project the gradient of the FFN's down projection by left or right singular vectors",
        "average_rest": "average what the projection drops over the replicas that compute it exactly",
    },
    "Health": {
        "nonfinite": "action on a step with a loss or gradient that is not finite",
        "outlier": "action on a step with an outlier gradient",
        "outlier_ratio": "threshold of an outlier: gradient norm as a multiple of the median",
        "window_steps": "number of recent steps of that median",
        "max_repeats": "maximum number of times that a step is recomputed",
        "checksum_every_steps": "interval at which the holders of a layer compare checksums of their state; 0: never",
    },
    "Checkpoint": {
        "every_steps": "interval between checkpoints, in steps",
        "keep": "number of checkpoints to keep",
        "folder": "folder of the checkpoints; default: inside the run's folder",
        "resume": "resume from the newest checkpoint in `folder`",
        "max_fruitless_restarts": "checkpoint and reft: maximum number of restarts in a row without a new step",
    },
    "Snapshots": {
        "every": "interval between snapshots, in steps; `auto`: the interval with the lowest cost",
        "protection": "what snapshots survive: a lost rank (none), any one node of a group (copy, xor), any two (pq)",
        "group": "number of nodes that protect each other",
        "memory": "maximum memory of each node for snapshots and parity",
        "mtbf": "mean time between failures for `every: auto`; default: as observed",
    },
    "Limits": {
        "max_nodes": "maximum number of nodes affected at once",
        "max_ranks": "maximum number of ranks affected at once",
        "min_healthy": "minimum share of ranks left unaffected",
    },
    "FaultSpec": {
        "kind": "kind of fault; `chaos faults` lists all",
        "on": "target, such as rank=1 or node=2; default: drawn by the seed",
        "at": "trigger, such as step=100 or time=10s; with `every` or `rate`, when it may fire first",
        "for": "duration; default: that of the kind, or to the end of the job",
        "repair": "time until the affected ranks are started again; default: 40steps",
        "every": "interval of a recurring fault",
        "rate": "mean rate of a fault at random times",
        "count": "with `every` or `rate`: maximum number of incidents",
        "within": "with `every` or `rate`: only this long after the start of the job",
        "retrigger": "attempts of the job's launcher at which the fault fires: once, every-attempt, or a number",
        "draw": "incident whose random draws are repeated; written by `chaos shrink`",
    },
}


def with_words(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of an experiment with a description of each key that has none."""
    definitions = {name: _described(model, name) for name, model in schema["$defs"].items()}
    return {**_described(schema, "Experiment"), "$defs": definitions}


def _described(model: Mapping[str, Any], name: str) -> dict[str, Any]:
    words = WORDS.get(name, {})
    properties = {
        key: {"description": words[key], **value} if key in words else value
        for key, value in model.get("properties", {}).items()
    }
    return {**model, "properties": properties}
