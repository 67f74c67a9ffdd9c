"""Writes the forecasts that come with this version again, after a change of a planner, a table or the forecast."""

from __future__ import annotations

import os
from pathlib import Path

from harness.live.working import Working
from mecefo_chaos.studies.papers.mecefo.forecasts import SHIPPED_FILE, compute_forecasts

if __name__ == "__main__":
    with Working("forecasts") as progress:
        found = compute_forecasts(len(os.sched_getaffinity(0)), progress)
    Path(__file__).with_name(SHIPPED_FILE).write_text(found.to_text(), encoding="utf-8")
