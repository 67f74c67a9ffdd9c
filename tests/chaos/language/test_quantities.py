import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from chaos.language.quantities import (
    bytes_text,
    parse_bytes,
    parse_rate,
    parse_seconds,
    parse_seconds_from_zero,
    rate_text,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64MiB", 2**26), ("4096B", 4096), ("1.5KiB", 1536), (" 1 GiB ", 2**30), ("1.5GB", 15 * 10**8)],
)
def test_sizes(text, size_bytes):
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "bits_per_second"), [("20mbit", 20_000_000), ("1gbit", 10**9), ("0.5kbit", 500), ("9600bit", 9600)]
)
def test_rates(text, bits_per_second):
    assert parse_rate(text) == bits_per_second


@given(st.integers(1, 10**12 - 1))
def test_what_is_written_is_read(number):
    assert parse_bytes(bytes_text(number)) == number
    assert parse_rate(rate_text(number)) == number


@pytest.mark.parametrize("text", ["64", 64, "", "MiB", "-1MiB", "64 mega", "1e3MiB", None, "0B", "0.3B", [], "9" * 40])
def test_what_is_no_quantity_is_refused(text):
    for parse in (parse_bytes, parse_rate):
        with pytest.raises(UsageError):
            parse(text)


def test_times():
    assert parse_seconds("1500ms") == 1.5
    assert parse_seconds_from_zero("0s") == 0
    for text in ("0s", "5steps", "5"):
        with pytest.raises(UsageError):
            parse_seconds(text)


@pytest.mark.parametrize("value", ["50", 50, "50x", "soon"])
def test_what_can_only_be_a_time_is_not_said_to_be_steps(value):
    with pytest.raises(UsageError) as refused:
        parse_seconds(value)
    assert "ms" in str(refused.value) and "steps" not in str(refused.value)


def test_a_unit_that_was_nearly_right_is_named():
    with pytest.raises(UsageError) as error:
        parse_rate("20mbits")
    assert error.value.suggestion == "mbit"
    with pytest.raises(UsageError, match="drop-link"):
        parse_rate("0mbit")
