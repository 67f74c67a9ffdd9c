"""A real Prometheus for tests, with the configuration that we ship, that is asked what it has stored."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

SHIPPED = Path(__file__).resolve().parents[1] / "docker" / "prometheus"
# Much longer than it takes on a busy machine.
TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 0.2
_LISTENS = re.compile(r'msg="Listening on" .*?address=127\.0\.0\.1:(\d+)\b.*\n')

_MISSING = "no prometheus on this machine (Debian: apt-get install prometheus)"
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=_MISSING)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool on this machine (Debian: apt-get install prometheus)"
)


class Prometheus:
    """Scrapes what the file `targets` lists, as docker/prometheus or `config` says; a context that ends it.

    With `scrape_seconds` it does so that often.
    """

    def __init__(
        self, folder: Path, targets: Path, *, scrape_seconds: float | None = None, config: dict[str, Any] | None = None
    ) -> None:
        if shutil.which("prometheus") is None:  # of a fixture, which no mark can skip
            pytest.skip(_MISSING)
        folder.mkdir(parents=True)
        config = yaml.safe_load((SHIPPED / "prometheus.yml").read_text()) if config is None else dict(config)
        config["rule_files"] = [str(SHIPPED / pattern) for pattern in config.get("rule_files", [])]
        (scrape,) = config["scrape_configs"]
        (discovery,) = scrape["file_sd_configs"]
        discovery["files"] = [str(targets)]
        if scrape_seconds is not None:
            scrape["scrape_interval"] = scrape["scrape_timeout"] = f"{scrape_seconds * 1000:.0f}ms"
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        # Its own choice, told in its log: one that we chose could be somebody else's by the time that it listens.
        self._port = 0
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                    # How long what has changed in the file waits for more changes: five seconds unless told otherwise.
                    *([] if scrape_seconds is None else ["--scrape.discovery-reload-interval=100ms"]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        try:
            self.wait_until(self._is_ready, "Prometheus is ready")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def wait_until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait until `is_so`."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not is_so():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, f"not within {TIMEOUT_SECONDS} s: {what}"
            time.sleep(POLL_SECONDS)

    def ask(self, query: str) -> list[Mapping[str, Any]]:
        """The result of a PromQL expression, now."""
        return list(self._get("query", query=query)["result"])

    def samples(self, series: str) -> list[tuple[float, float]]:
        """All (Unix time, value) of the last hour of `series`, which must be one."""
        results = self.ask(f"{series}[1h]")
        assert len(results) == 1, f"{series}: {[result['metric'] for result in results]}"
        return [(at, float(value)) for at, value in results[0]["values"]]

    def targets(self) -> list[Mapping[str, Any]]:
        """What is being read now."""
        return list(self._get("targets")["activeTargets"])

    def at(self, expression: str, seconds: float) -> list[Mapping[str, Any]]:
        """The series of `expression` at a Unix time, each with its value as a list of one."""
        found = self._get("query", query=expression, time=seconds)["result"]
        return [{"metric": series["metric"], "values": [series["value"]]} for series in found]

    def over(self, expression: str, start_seconds: float, end_seconds: float) -> list[Mapping[str, Any]]:
        """The series of `expression` from one Unix time to another."""
        return list(self._get("query_range", query=expression, start=start_seconds, end=end_seconds, step=1)["result"])

    def label_values(self, label: str, selector: str) -> list[str]:
        """The values that `label` has had in the series of `selector`."""
        return list(self._get(f"label/{label}/values", **{"match[]": selector}))

    def rules(self) -> list[Mapping[str, Any]]:
        """All rules with their state."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **parameters: object) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urlencode(parameters)}"
        with urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            return json.load(answer)["data"]

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(TIMEOUT_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        listens = _LISTENS.search(self._log.read_text())
        if listens is None:
            return False
        self._port = int(listens[1])
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
