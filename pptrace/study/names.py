"""Names that are cut to fit, and never so that two of them look alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["told_apart"]

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def told_apart(names: Iterable[str], longest: int) -> dict[str, str]:
    """Return each name as it is shown: cut at its end, else in its middle, else whole, whichever is its own.

    Args:
        names: all that are shown together.
        longest: letters from which a name is cut.

    >>> told_apart(["interleaved-1f1b:vp=2", "interleaved-1f1b:vp=4"], 12)
    {'interleaved-1f1b:vp=2': 'interl…:vp=2', 'interleaved-1f1b:vp=4': 'interl…:vp=4'}
    """
    different = list(dict.fromkeys(names))
    tail = (longest - 1) // 2
    shown = {name: name for name in different}
    for name in different:
        if len(name) <= longest:
            continue
        for end in (0, tail):
            if sum(_cut(other, longest, end) == _cut(name, longest, end) for other in different) == 1:
                shown[name] = _cut(name, longest, end)
                break
    return shown


def _cut(name: str, longest: int, end: int) -> str:
    """Return a name of so many letters, the last ``end`` of which are the name's own."""
    return f"{name[: longest - 1 - end]}{_ELLIPSIS}{name[len(name) - end :]}"
