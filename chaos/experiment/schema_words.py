"""What each key of an experiment file means, in a few words: editors show them, and the reference lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Model -> key -> words. A parameter of a fault has them in its own model.
WORDS: Mapping[str, Mapping[str, str]] = {
    "Experiment": {
        "name": "of the experiment, and of the folder of its runs",
        "seed": "of everything random: weights, order of the data, drawn targets and times",
        "job": "the training job that is broken: ours, or with `runtime: command` somebody else's",
        "faults": "what strikes it, each when and on whom",
        "profile": "more faults, as often beside each other as a real cluster has them; with `failures`, that many",
        "limits": "how much may be struck at once",
        "gates": "what must hold in the end; a failed one fails the run",
        "halt": "conditions looked at after every step; the first that becomes true ends the run",
        "twin": "run the same job without faults, too, to compare the loss",
        "backend": "what nodes are: process groups of this machine, or containers",
        "network": "what connects ranks on this machine: `loopback`, a network namespace for each, or what faults need",
        "containers": "with docker: what a node's container is",
    },
    "Containers": {
        "image": "of every container of the run",
        "cpus": "cores' worth of time for each node; no limit where it is left out",
        "memory": "of each node; no limit where it is left out",
    },
    "Job": {
        "runtime": "ours",
        "model": "one of the presets; all but llama-tiny are published LLaMA shapes",
        "nodes": "machines of the job, spare ones not counted",
        "spares": "nodes more that are ready to take the place of lost ones; the next numbers are theirs",
        "gpus_per_node": "ranks on each node; also where there is no GPU",
        "nodes_per_rack": "which nodes `on: rack=0` strikes together",
        "data_parallel": "replicas of the model; derived from the ranks where it is left out",
        "pipeline": "stages of a replica; derived from the ranks where it is left out",
        "steps": "optimizer steps to train",
        "strategy": "who takes over the layers of a lost rank, and how; some fix other settings",
        "data": "UTF-8 text to train on, a file or a folder; the sources of Python's standard library where left out",
        "dilation": "each rank computes so many times slower than this CPU, and behaves like a device of its own",
        "pacing": "what dilated compute lasts: its rated time, measured at the start, or a multiple of its own",
        "device_model": "the device that each rank stands for: a known one, or the table in a file",
        "time_scale": "seconds that a second of the emulated device lasts; `auto`: as few as the cores can carry",
        "link": "what moves between ranks takes as long as on such a link; a device model has its own",
        "sequence_length": "tokens of a sequence",
        "microbatch_size": "sequences of a microbatch",
        "microbatches_per_replica": "microbatches of a replica in each step",
        "learning_rate": "AdamW's, after the warm-up",
        "warmup_steps": "steps in which the learning rate rises",
        "approximation": "how degraded layers are approximated",
        "health": "what becomes of steps that are not fit to be committed",
        "checkpoint": "durable checkpoints; none where it is left out",
        "snapshots": "snapshots of the state in the nodes' memory; none where it is left out",
        "redundancy": "with spare, mecefo+spare: how many replicas hold each shard; left out: floor(log2 N + 0.833)",
        "stack_offsets": "with spare, mecefo+spare: which shards a replica holds, by a Golomb ruler or consecutive",
        "sharded_optimizer": "each holder of a layer has the moments of its share (ZeRO-1); snapshots protect them",
        "takeover": "whether training waits for state that has to move; `auto`: what is estimated to cost less",
        "quality": "with mecefo: how much may be approximated; a share is that of samples through degraded layers",
        "degraded_share_limit": "the same as `quality` with a share, which it overrides",
        "rank_memory_bytes": "what a rank may use, for planners; no limit where it is left out",
        "heartbeat_timeout": "a rank that is silent for so long is lost; one whose connection closes, at once",
        "precision": "of matrix products; all else is in fp32",
        "device": "what ranks compute on",
    },
    "CommandJob": {
        "runtime": "somebody else's command",
        "command": "what starts the ranks, word by word",
        "nodes": "machines of the job; else what torchrun's options say, else 1",
        "gpus_per_node": "ranks on each; else what torchrun's options say, else 1",
        "data_parallel": "replicas of as many ranks each, for `on: replica=0`; else every rank is one",
        "steps": "optimizer steps, where they are known: later triggers are then refused before the start",
        "nodes_per_rack": "which nodes `on: rack=0` strikes together",
        "folder": "where the command runs; where chaos does, if left out",
        "step_from": "a regular expression that finds the steps in the log, where no optimizer of PyTorch takes them",
        "checkpoint": "the folder in which the script saves; else what it was seen to save",
        "reset": "a shell command before each start, also of the twin and of each repeat: `rm -rf checkpoints`",
        "environment": "variables added to the command's environment",
        "startup_timeout": "give the command up when it takes no step for so long",
        "stall_timeout": "give it up when, after that, it takes none for so long",
    },
    "SavedIn": {"folder": "from the folder in which the command runs"},
    "Approximation": {
        "rank": "r of the low-rank weight gradients",
        "refresh_steps": "tau: a projection is computed anew after so many steps",
        "down_projection": "whether left or right singular vectors project the gradient of the FFN's down projection",
        "average_rest": "average what the projection drops over the replicas that compute it exactly",
    },
    "Health": {
        "nonfinite": "what becomes of a step whose loss or gradient is not finite",
        "outlier": "what becomes of a step whose gradient is far out",
        "outlier_ratio": "far out: the gradient's norm is more than so many times the median",
        "window_steps": "of so many last steps",
        "max_repeats": "a step is computed again so often at most",
        "checksum_every_steps": "holders of a layer compare their state so often; 0: never",
    },
    "Checkpoint": {
        "every_steps": "write one so often",
        "keep": "the newest so many are kept",
        "folder": "where they go; into the run's folder where it is left out",
        "resume": "begin with the newest one in `folder`",
        "max_fruitless_restarts": "checkpoint and reft: the job ends after so many restarts without a new step",
    },
    "Snapshots": {
        "every": "copy the state so often; auto: as often as costs least",
        "protection": "what they survive: the ranks alone (none), any one node of a group (copy, xor), any two (pq)",
        "group": "nodes that protect each other",
        "memory": "what snapshots and parity may take of each node's memory",
        "mtbf": "the mean time between losses that `every: auto` goes by; as it is seen, where it is left out",
    },
    "Limits": {
        "max_nodes": "at most so many nodes at once",
        "max_ranks": "at most so many ranks at once",
        "min_healthy": "at least this share of the ranks is left alone",
    },
    "FaultSpec": {
        "kind": "which fault",
        "on": "on whom; left out, the seed draws",
        "at": "when; with `every` or `rate`, when it may fire first",
        "for": "how long it lasts; as long as is usual for the kind, or to the job's end, where left out",
        "repair": "start the struck ranks again after that; after 40steps where it is left out",
        "every": "again and again, with this period",
        "rate": "again and again at random, so often in the mean",
        "count": "with `every` or `rate`: at most so many times",
        "within": "with `every` or `rate`: not later than that after the job's start",
        "retrigger": "at which attempts of the job's launcher it fires",
        "draw": "draw what is drawn when it fires as that incident of a run would; `chaos shrink` writes it",
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
