"""The dashboards for Grafana as code: `python -m dashboards` writes them to docker/grafana/dashboards.

They query the metrics that docs/reference/metrics.md lists. Only this package needs the SDK: its output is checked in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.chaos_recovery import chaos_recovery
from dashboards.resilience import resilience
from dashboards.training_health import training_health

DASHBOARDS: Mapping[str, Callable[[], build.Dashboard]] = {
    "training-health": training_health,
    "chaos-recovery": chaos_recovery,
    "resilience": resilience,
}
"""By file name."""

FOLDER = Path(__file__).resolve().parents[1] / "docker" / "grafana" / "dashboards"


def as_values(dashboard: build.Dashboard) -> dict[str, Any]:
    """A dashboard as JSON values, with its panels numbered from 1 in their order, so that links to them stay right."""
    model = dashboard.build()
    for number, panel in enumerate(model.panels or (), start=1):
        panel.id_val = number
    values: dict[str, Any] = json.loads(json.dumps(model, cls=JSONEncoder))
    return values


def as_text(dashboard: build.Dashboard) -> str:
    """The file of a dashboard: keys sorted, so that it changes only with what it says."""
    return json.dumps(as_values(dashboard), indent=2, sort_keys=True) + "\n"


def write(folder: Path) -> list[Path]:
    """Write all dashboards to `folder`; returns their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, make in DASHBOARDS.items():
        file = folder / f"{name}.json"
        file.write_text(as_text(make()))
        files.append(file)
    return files
