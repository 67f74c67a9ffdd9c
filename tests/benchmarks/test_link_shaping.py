"""What the benchmark of slowed links concludes from its figures, and how it shows them."""

import pytest

from benchmarks.link_shaping import SHAPER, TBF, Figures, to_text, verdicts

pytestmark = pytest.mark.unit


def figures(delay_error_seconds: float, rate_ratio: float) -> Figures:
    made = Figures()
    made.add("delay error", SHAPER, 0.05, 0.0, delay_error_seconds, 1.0)
    made.add("rate", SHAPER, 20e6, rate_ratio)
    made.add("rate", TBF, 20e6, 0.2)
    return made


@pytest.mark.parametrize(
    ("delay_error_seconds", "rate_ratio", "kept"),
    [
        (0.0009, 0.95, {"delay": True, "rate": True}),
        (0.0011, 0.89, {"delay": False, "rate": False}),
        (-0.0011, 1.11, {"delay": True, "rate": False}),
    ],
)
def test_the_shaper_is_judged_by_its_medians_and_not_by_what_tbf_does(delay_error_seconds, rate_ratio, kept):
    assert verdicts(figures(delay_error_seconds, rate_ratio)) == kept


def test_what_was_not_measured_was_not_kept():
    assert verdicts(Figures()) == {"delay": False, "rate": False}


def test_every_figure_is_shown_with_its_spread():
    text = to_text(figures(0.0009, 0.95), "Error: Specified qdisc kind is unknown.")
    assert "netem: Error: Specified qdisc kind is unknown." in text
    assert "50 ms" in text and "+900" in text and "+1000000" in text
    assert "95.0" in text
    assert text.endswith("50 ms within 1 ms: yes; 20 Mbit/s within 10%: yes")
