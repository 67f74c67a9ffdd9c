import json
import math
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._spread import Spread, name_milliseconds, spread, table

pytestmark = pytest.mark.unit


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=20))
def test_every_value_stays_in(values):
    found = spread(values).to_dict()
    assert found["n"] == len(found["values"]) == len(values)
    assert found["median"] == pytest.approx(median(values), abs=1e-6)
    assert found["min"] == pytest.approx(min(values), abs=1e-6)
    assert found["max"] == pytest.approx(max(values), abs=1e-6)


def test_what_never_happened_is_the_slowest_of_all():
    found = spread((0.1, math.inf, 0.3))
    assert found.to_text(name_milliseconds) == ("300 ms", "100 ms", "never", "3")
    assert found.to_dict() == {"median": 0.3, "min": 0.1, "max": None, "n": 3, "values": [0.1, None, 0.3]}


def test_the_median_never_happened_where_half_of_the_runs_did_not_get_there():
    assert spread((0.1, 0.2, math.inf, math.inf)).to_text(name_milliseconds)[0] == "never"


def test_no_values_have_no_figures():
    nothing = spread(())
    assert nothing.to_text(str) == ("-", "-", "-", "0")
    assert nothing.to_dict() == {"median": None, "min": None, "max": None, "n": 0, "values": []}


def test_a_value_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="no number"):
        Spread((1.0, math.nan))


def test_json_has_no_infinity():
    assert "Infinity" not in json.dumps(spread((math.inf,)).to_dict(), allow_nan=False)


def test_a_table_is_aligned():
    assert table(("time", "n"), [("a", "10"), ("long name", "5")]) == "time        n\na          10\nlong name   5"
