"""The hash of an experiment stays: stored runs are compared and replayed by it.

`hashes.json` was written by the version of November 2026, in the order of `option_sets`; `keys` are those that a job
had then. Settings that came later are left out here.
"""

import json
import random
from pathlib import Path

import pytest

from chaos.errors import UsageError
from chaos.experiment.fault_options import MORE_FAULTS, FaultOptions
from chaos.experiment.reading import from_mapping, from_options
from chaos.language.identity import hash_of

pytestmark = pytest.mark.unit

FILE = Path(__file__).with_name("hashes.json")
NUM_SETS = 400
KINDS = ("kill-node", "kill-process", "slow-rank", "set-nan", "bit-flip", "slow-link", "raise", "pause-process")
OPTIONS = {
    "on": ["rank=1", "node=1", "random:1"],
    "for": ["10steps", "30s"],
    "repair": ["40steps", "10s", "none"],
    "every": ["50steps", "10s"],
    "rate": ["0.5/min"],
    "retrigger": ["every-attempt", "2"],
    "profile": ["llama3", "llama3:10", "failslow"],
    "gates": [["recovery_seconds < 60"], [{"gate": "steps > 3", "abort_on_fail": True}]],
    "twin": [True, False],
    "nodes": [4, 2],
    "gpus_per_node": [1, 2, 4],
    "nodes_per_rack": [2],
    "data_parallel": [2, 4],
    "steps": [560, 100],
    "checkpoint_folder": ["/tmp/x"],
    "checkpoint_every": [20, 5],
    "snapshot_every": [1, "auto", 5],
    "snapshot_protection": ["none", "copy", "xor", "pq"],
    "seed": [0, 7],
    "name": ["n"],
    "model": ["llama-tiny", "60m"],
    "data": ["x.txt"],
    "strategy": ["mecefo", "mecefo-paper", "ndb", "exact", "oobleck-like", "spare", "mecefo+spare", "reft"],
    "quality": ["auto", "speed", "exact", "0.3"],
    "pipeline": [1, 2],
    "microbatches_per_replica": [3, 1],
    "spares": [0, 1],
    "redundancy": [1, 2],
    "dilation": ["auto", "off", "4"],
    "pacing": ["rated", "measured", "off"],
    "device_model": ["a100-7b", "a100-1b"],
    "time_scale": ["auto", "0.5"],
    "link": ["bandwidth=25GB/s,latency=20us", "bandwidth=25GB/s"],
    "network": ["auto", "namespaces", "loopback"],
    "command": [("torchrun", "--nproc-per-node", "2", "train.py"), ("python", "x.py")],
    "stall_timeout": ["10min"],
    "reset": ["rm -rf out"],
}
JOB = {
    "sequence_length": [32],
    "microbatch_size": [1],
    "learning_rate": [0.1],
    "warmup_steps": [0],
    "approximation": [{"rank": 8}, {"down_projection": "right"}],
    "health": [{"outlier": "skip"}, {"nonfinite": "evict", "window_steps": 3}],
    "checkpoint": [{"every_steps": 10, "keep": 1}, {"every_steps": 5, "folder": "x", "resume": True}],
    "snapshots": [{}, {"every": "auto", "mtbf": "1h"}, {"memory": "2GiB", "group": 2}],
    "sharded_optimizer": [True],
    "takeover": ["direct", "background"],
    "degraded_share_limit": [0.2],
    "stack_offsets": ["golomb", "consecutive"],
    "rank_memory_bytes": [10**9],
    "heartbeat_timeout": ["2s", "5s"],
    "precision": ["fp32", "bf16"],
    "device": ["cpu", "auto"],
}


def option_sets():
    """The same sets each time: of options, of a job's settings in a file."""
    for seed in range(NUM_SETS):
        rng = random.Random(seed)

        def drawn(pool, count, rng=rng):
            return {key: rng.choice(pool[key]) for key in rng.sample(sorted(pool), count)}

        options = {"at": "step=30", **drawn(OPTIONS, rng.choice((0, 1, 2, 3, 4)))}
        if rng.random() < 0.2:
            options[MORE_FAULTS] = (FaultOptions(rng.choice(KINDS), {"at": "step=40"}),)
        yield rng.choice(KINDS), options, drawn(JOB, rng.choice((1, 2, 4)))


def hashes(keys):
    for kind, options, job in option_sets():
        values = {"name": "x", "job": job, "faults": [{"kind": kind, "at": "step=5"}]}
        yield [hash_or_nothing(keys, from_options, kind, options), hash_or_nothing(keys, from_mapping, values)]


def hash_or_nothing(keys, read, *arguments):
    try:
        values = read(*arguments).model_dump(mode="json")
    except UsageError:
        return ""
    return hash_of({**values, "job": {key: value for key, value in values["job"].items() if key in keys}})


def test_every_experiment_has_the_hash_that_it_had():
    stored = json.loads(FILE.read_text())
    assert sum(bool(one) for pair in stored["hashes"] for one in pair) > NUM_SETS, "what is refused has no hash"
    found = list(hashes(stored["keys"]))
    assert [index for index, pair in enumerate(found) if pair != stored["hashes"][index]] == []
