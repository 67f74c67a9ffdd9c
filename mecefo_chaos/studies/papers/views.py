"""How the tables of all papers show a figure."""

from __future__ import annotations

from mecefo_chaos.studies.papers.rules import Measured

NOT_KNOWN = "-"


def measured_text(figure: Measured | None, form: str, factor: float = 1.0) -> str:
    """The median, the range where there is one, and n; `factor` is of the unit that is shown."""
    if figure is None:
        return NOT_KNOWN
    n = f"n {figure.n}"
    spread = spread_text(figure, form, factor)
    return f"{spread[:-1]}, {n})" if spread.endswith(")") else f"{spread} ({n})"


def spread_text(figure: Measured | None, form: str, factor: float = 1.0) -> str:
    """The median, and the range where there is one."""
    if figure is None:
        return NOT_KNOWN
    median, least, greatest = (format(value * factor, form) for value in (figure.median, figure.least, figure.greatest))
    return median if least == greatest else f"{median} ({least} to {greatest})"
