"""The page of a set: one HTML file that needs no network and no script, beside the plot and the links to its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness.comparison.figures import HEADLINE
from harness.comparison.plot import plot
from harness.comparison.sample import RunSet, Sample
from harness.comparison.text import headline, notes
from harness.comparison.verdicts import SetVerdict
from harness.judging.metrics import METRICS
from harness.report.drawing import both_widths
from harness.report.templates import template
from harness.store.files import write_whole

PLOT_FILE = "plot.svg"
PAGE_FILE = "report.html"
_TEMPLATE = "page.html.j2"


def write_pages(found: RunSet, verdict: SetVerdict, folder: Path) -> None:
    """Write the page and the plot of a set into its folder.

    Raises:
        EnvironmentFailure: they could not be written.
    """
    write_whole(folder / PLOT_FILE, plot(found))
    write_whole(folder / PAGE_FILE, render(found, verdict))


def render(found: RunSet, verdict: SetVerdict) -> str:
    """The whole page."""
    machine = next((sample.machine for sample in found.samples if sample.machine), {})
    return template(Path(__file__).parent, _TEMPLATE).render(
        found=found,
        verdict=verdict,
        word=headline(found, verdict),
        plot=both_widths(lambda width: Markup(plot(found, width))),
        rows=[
            {"words": words, "cells": [_cell(sample, name) for sample in found.samples]}
            for name, words in HEADLINE.items()
            if any(sample.values(name) for sample in found.samples)
        ],
        machine=", ".join(f"{key} {value}" for key, value in machine.items()),
        notes=notes(found),
    )


def _cell(sample: Sample, name: str) -> dict[str, Any]:
    figure, values = METRICS[name], sample.spread(name)
    if not values["n"]:
        return {"median": "-", "spread": ""}
    spread = f"{figure.to_text(values['min'])} to {figure.to_text(values['max'])}, n {values['n']}"
    return {"median": figure.to_text(values["median"]), "spread": spread}
