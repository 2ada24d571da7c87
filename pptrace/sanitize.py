"""Safe display of foreign text: no control characters, bidirectional overrides, formulas or shell commands."""

from __future__ import annotations

import re

_CONTROLS = (
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)
"""C0 except tabs and line ends, C1, direction marks and overrides, and surrogates."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-](inf|nan)"


def printable(text: str) -> str:
    r"""Return text with control characters escaped as in JSON; line ends and tabs stay.

    >>> printable("F\x1b[31m 0\u202e\n")
    'F\\u001b[31m 0\\u202e\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return re.sub(_CONTROLS, _escaped, text)


def printable_line(text: str) -> str:
    r"""Return :func:`printable` text as one line.

    >>> printable_line("two\nlines")
    'two\\nlines'
    """
    return printable(text.replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t"))


def shell_word(text: str) -> str:
    """Return a file name quoted for a shell, such that it is not an option.

    >>> shell_word("step.pftrace"), shell_word("-x; rm.json")
    ('step.pftrace', "'./-x; rm.json'")
    """
    import shlex

    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def csv_written(text: str) -> str:
    """Return the text of a CSV cell, quoted if a spreadsheet would read a formula; numbers are unchanged.

    >>> csv_written("=1+1"), csv_written("-5.5"), csv_written("1f1b")
    ("'=1+1", '-5.5', '1f1b')
    """
    guarded = text.lstrip("'").startswith(_FORMULA) and not re.fullmatch(_NUMBER, text)
    return f"'{text}" if guarded else text


def csv_text(cell: str) -> str:
    """Return the original text of a cell of :func:`csv_written`.

    >>> csv_text(csv_written("=1+1")), csv_text(csv_written("'=1+1")), csv_text("'quoted'")
    ('=1+1', "'=1+1", "'quoted'")
    """
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA) else cell


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
