"""Text of others steers nothing that shows it, and is otherwise as it was."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.plain_text import blanked, is_plain, plain

pytestmark = pytest.mark.unit

UNSAFE = (
    *("\x00", "\x07", "\x1b", "\x7f", "\x85", "\x9b"),
    # Bidirectional: marks, embeddings, overrides, isolates.
    *("\u061c", "\u200e", "\u200f", "\u202a", "\u202b", "\u202c", "\u202d", "\u202e"),
    *("\u2066", "\u2067", "\u2068", "\u2069"),
    # Invisible.
    *("\u00ad", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\U000e0041"),
    *("\u2028", "\u2029", "\ud800", "\ufffe"),
)
AS_THEY_ARE = {
    "letters": "Zürich Ærø Ελλάδα Привет שלום مرحبا 日本語 한국어",
    "combining marks": "e\u0301 a\u0308 n\u0303 \u0928\u093f",
    "emoji": "🔥 👍🏽 ❤\ufe0f",
    "emoji of several": "👩\u200d🚀 🏳\ufe0f\u200d🌈",
    "flags": "🇳🇱 \U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "joiners of a script": "می\u200cخواهم \u0915\u094d\u200d\u0937",
    "private and new characters": "\ue0b0 \U0001fae8",
    "other spaces": "a\u00a0b\u3000c",
}


@pytest.mark.parametrize("char", UNSAFE, ids=lambda char: f"U+{ord(char):04X}")
def test_unsafe_characters_are_escaped(char):
    assert not is_plain(f"a{char}b")
    shown = plain(f"a{char}b")
    assert char not in shown
    assert shown.encode().decode("unicode_escape") == f"a{char}b"
    assert blanked(f"a{char}b") == "a b"


@pytest.mark.parametrize("text", AS_THEY_ARE.values(), ids=AS_THEY_ARE.keys())
def test_what_people_write_stays_as_it_is(text):
    assert is_plain(text)
    assert plain(text) == blanked(text) == text


def test_lines_are_kept_where_they_may_be():
    assert plain("a\n\tb\r") == "a\n\tb\\r"
    assert plain("a\nb", kept="") == r"a\nb"
    assert not is_plain("a\nb")
    assert blanked("a\nb") == "a b"


@given(st.text())
def test_nothing_gets_through_but_joiners(text):
    for shown in (plain(text, kept=""), blanked(text)):
        unsafe = {char for char in shown if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert unsafe <= {"\u200c", "\u200d"} | set(map(chr, range(0xE0000, 0xE0080)))
        shown.encode()
