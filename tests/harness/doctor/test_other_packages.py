"""The examination of a machine from a folder that has modules of our names, and of those that ours import."""

import pytest

from harness.doctor.fault_needs import packet_queue
from harness.network.machine import why_no_networks

pytestmark = pytest.mark.unit


def test_packet_queue_is_tried_with_our_own_modules(tmp_path, monkeypatch):
    if (reason := why_no_networks()) is not None:
        pytest.skip(reason)
    for name in ("harness", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('of another project')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert "of another project" not in packet_queue().found
