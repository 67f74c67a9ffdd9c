"""Text of others (names, paths, what a script says) as it may be printed: it steers no terminal and no reader.

Control characters move the cursor, bidirectional ones reorder the line, and zero-width ones hide in it (Unicode
Standard Annex 9; Unicode Technical Report 36). Letters, marks and emoji stay as they are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Invisible, and part of what is seen: joiners between letters of scripts that have them and between emoji, and the tags
# of a flag.
_PART_OF_A_SIGN = re.compile(
    "(?<=[^\x00-\u02ff])[\u200c\u200d](?=[^\x00-\u02ff])|(?<=\U0001f3f4)[\U000e0030-\U000e007a]{1,8}\U000e007f"
)

# What has to be looked at one by one.
_NOT_PRINTABLE_ASCII = re.compile("[^ -~]")


def is_plain(text: str) -> bool:
    """Whether it can be printed as it is, on one line."""
    return text.isprintable() or _replaced(text, lambda char: "") == text


def plain(text: object, kept: str = "\n\t") -> str:
    r"""`text` with escapes such as `\x1b` and `\u202e` in place of unsafe characters that are not in `kept`."""
    return _replaced(str(text), lambda char: char if char in kept else _escape(char))


def blanked(text: object) -> str:
    """`text` on one line, with a space in place of each unsafe character."""
    return _replaced(str(text), lambda char: " ")


def _replaced(text: str, replace: Callable[[str], str]) -> str:
    if text.isprintable():
        return text

    def replace_unsafe(match: re.Match[str]) -> str:
        return replace(match[0]) if _is_unsafe(match[0]) else match[0]

    parts, begin = [], 0
    for match in (*_PART_OF_A_SIGN.finditer(text), None):
        end = len(text) if match is None else match.start()
        parts.append(_NOT_PRINTABLE_ASCII.sub(replace_unsafe, text[begin:end]))
        if match is not None:
            parts.append(match[0])
            begin = match.end()
    return "".join(parts)


def _is_unsafe(char: str) -> bool:
    number = ord(char)
    # Noncharacters, which XML has none of.
    is_none = number & 0xFFFE == 0xFFFE or 0xFDD0 <= number <= 0xFDEF
    return is_none or unicodedata.category(char) in _UNSAFE_CATEGORIES


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()
