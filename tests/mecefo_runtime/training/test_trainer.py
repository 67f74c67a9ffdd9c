"""What a rank does before it trains."""

from __future__ import annotations

import json
import threading

import pytest
import torch

from mecefo_runtime.comm.participant import CoordinatorAddress
from mecefo_runtime.job.config import CheckpointConfig, JobConfig
from mecefo_runtime.step import calibrate
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.training import trainer
from mecefo_runtime.training.hooks import Hooks
from mecefo_runtime.training.rank_setup import Observers, RankIdentity
from mecefo_runtime.training.trainer import Trainer
from tests.planning import COSTS

pytestmark = pytest.mark.unit


class Enough(Exception):
    """It has come far enough."""


def begin(job: JobConfig) -> None:
    hooks = Hooks("", rank=0, node=0, attempt=1)
    observers = Observers(Emitter(lambda event: None, "rank"), hooks)
    Trainer(job, RankIdentity(0, 0, 1), CoordinatorAddress("127.0.0.1:1", "token"), observers)


def test_a_rank_forks_before_it_has_threads(monkeypatch, tmp_path):
    """What another thread holds at a fork is held in the child for ever; Python 3.12 warns of it."""
    threads = set(threading.enumerate())
    began: list[set[threading.Thread]] = []

    def fork(compute: object) -> str:
        began.append(set(threading.enumerate()) - threads)
        raise Enough

    monkeypatch.setattr(calibrate, "run_apart", fork)
    job = JobConfig(checkpoint=CheckpointConfig(folder=str(tmp_path), every_steps=1), device="cpu")
    with pytest.raises(Enough):
        begin(job)
    assert began == [set()]


@pytest.mark.parametrize(
    ("device", "has_driver", "is_prepared"), [("auto", True, True), ("cpu", True, False), ("auto", False, False)]
)
def test_what_cuda_reads_from_the_environment_is_there_when_it_begins(monkeypatch, device, has_driver, is_prepared):
    done: list[str] = []

    def find_device(choice: str, place: int) -> torch.device:
        done.append("CUDA begins")
        raise Enough

    monkeypatch.setattr(trainer, "has_driver", lambda: has_driver)
    monkeypatch.setattr(trainer.nccl, "prepare", lambda: done.append("prepared"))
    monkeypatch.setattr(trainer, "find_device", find_device)
    monkeypatch.setattr(calibrate, "run_apart", lambda compute: json.dumps(to_json(COSTS)))
    with pytest.raises(Enough):
        begin(JobConfig(device=device))
    assert done == ["prepared"] * is_prepared + ["CUDA begins"]


@pytest.mark.parametrize("chosen", [None, "1"])
def test_there_are_queues_for_all_streams_unless_somebody_wants_fewer(monkeypatch, chosen):
    environment = {} if chosen is None else {"CUDA_DEVICE_MAX_CONNECTIONS": chosen}
    monkeypatch.setattr(trainer.nccl.os, "environ", environment)
    trainer.nccl.prepare()
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == (chosen or "32")
    assert environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
