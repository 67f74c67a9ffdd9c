"""The values of checkpoints, as a child of the job's own Python reads them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from harness.checkpoints.findings import LOAD_FAILED, NO_PYTHON, NO_TIME, NOT_FINITE, REFUSED
from harness.checkpoints.finite import Python, look
from tests.harness.checkpoints.test_whole import distributed, safetensors, saved

pytestmark = pytest.mark.integration

PYTHON = Python(sys.executable, {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")})


def test_one_child_reads_all_of_them(tmp_path: Path) -> None:
    """Files, a distributed checkpoint and safetensors; what is not finite, not whole, or refused by weights_only."""
    bad = tmp_path / "nan.pt"
    values = torch.ones(10)
    values[3:5] = float("nan")
    torch.save({"model": {"w": values}, "list": [torch.tensor(float("inf"))], "n": torch.tensor(3)}, bad)
    folder = distributed(tmp_path)
    safetensors(folder)
    whole, broken, refused = saved(tmp_path), folder / "broken.pt", tmp_path / "refused.pt"
    broken.write_bytes(whole.read_bytes()[:700])
    torch.save({"path": tmp_path}, refused)
    found = look([bad, folder, whole, refused], PYTHON, 120)
    assert [(one.code, one.part, one.count) for one in found[bad].damage] == [
        (NOT_FINITE, "model.w", 2),
        (NOT_FINITE, "list.0", 1),
    ]
    assert [(one.code, one.file) for one in found[folder].damage] == [(LOAD_FAILED, "broken.pt")]
    assert (found[whole].damage, found[whole].unchecked, found[whole].num_read) == ((), None, 1)
    assert (found[refused].damage, found[refused].unchecked) == ((), REFUSED)


def test_without_its_python_or_time_nothing_is_said(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert look([path], None, 60)[path].unchecked == NO_PYTHON
    assert look([path], Python("/nonexistent/python", {}), 60)[path].unchecked == NO_PYTHON
    assert look([path], PYTHON, 0.0)[path].unchecked == NO_TIME


def test_the_python_of_a_process_is_that_of_its_virtual_environment() -> None:
    found = Python.of_process(os.getpid())
    assert found is not None
    assert Path(found.program).resolve() == Path(sys.executable).resolve()
