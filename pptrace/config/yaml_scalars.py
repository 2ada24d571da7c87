"""Plain scalars of YAML 1.2: what type a word without quotes has, and its value."""

from __future__ import annotations

import re

MOST_DIGITS = 40
"""Characters of a number."""

_PLAIN_SCALARS = {
    "null": re.compile(r"null|Null|NULL|~|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    ),
}
"""The core schema of YAML 1.2.2, section 10.3.2, in the order in which it is tried."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def is_one_word(text: str) -> bool:
    """Return whether a whole document is surely one plain scalar, and no number that is too long.

    >>> is_one_word("zb-h1"), is_one_word("a: 1"), is_one_word("[1]")
    (True, False, False)
    """
    return len(text) <= MOST_DIGITS and _WORD.fullmatch(text) is not None


def tag_of(text: str) -> str:
    """Return the type of a plain scalar, the last part of its tag.

    >>> [tag_of(text) for text in ("null", "true", "0x10", "1e3", "no")]
    ['null', 'bool', 'int', 'float', 'str']
    """
    return next((tag for tag, pattern in _PLAIN_SCALARS.items() if pattern.fullmatch(text)), "str")


def is_of(tag: str, text: str) -> bool:
    """Return whether a text is a plain scalar of a type other than text."""
    pattern = _PLAIN_SCALARS.get(tag)
    return pattern is not None and pattern.fullmatch(text) is not None


def value_of(tag: str, text: str) -> str | float | bool | None:
    """Return the value of a plain scalar of a type.

    >>> value_of("int", "0x10"), value_of("float", "-.inf"), value_of("str", "no")
    (16, -inf, 'no')
    """
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true"
    if tag == "int":
        base = {"0o": 8, "0x": 16}.get(text[:2])
        return int(text[2:], base) if base else int(text)
    if tag == "float":
        return float(text.replace(".", "", 1) if text.lower().endswith((".inf", ".nan")) else text)
    return text
