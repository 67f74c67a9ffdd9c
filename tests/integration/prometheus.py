"""A real Prometheus that reads what a run's file of targets names, and is asked what it has stored."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

SCRAPE_SECONDS = 0.25
READY_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.1


class Prometheus:
    """Reads every target in `targets` four times a second, while it is entered."""

    def __init__(self, folder: Path, targets: Path) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
        folder.mkdir(parents=True)
        configuration = {
            "global": {"scrape_interval": f"{SCRAPE_SECONDS * 1000:.0f}ms", "scrape_timeout": "200ms"},
            "scrape_configs": [{"job_name": "chaos", "file_sd_configs": [{"files": [str(targets)]}]}],
        }
        # JSON is YAML too.
        (folder / "prometheus.yml").write_text(json.dumps(configuration))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self._address}",
                ],
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Prometheus:
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=2.0):
                    return self
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(_POLL_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The result of a PromQL expression, now."""
        data: list[dict[str, Any]] = self._get("/api/v1/query", query=query)["result"]
        return data

    def samples(self, series: str) -> list[tuple[float, float]]:
        """All (Unix time, value) of the last hour of `series`, which must be one."""
        results = self.ask(f"{series}[1h]")
        assert len(results) == 1, f"{series}: {[result['metric'] for result in results]}"
        return [(at, float(value)) for at, value in results[0]["values"]]

    def targets(self) -> list[dict[str, Any]]:
        """What is being read now."""
        data: list[dict[str, Any]] = self._get("/api/v1/targets")["activeTargets"]
        return data

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        url = f"http://{self._address}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        data: dict[str, Any] = document["data"]
        return data
