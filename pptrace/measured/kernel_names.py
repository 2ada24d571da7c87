"""Short names of C++ kernels."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from pptrace.report.document import Cell
from pptrace.report.numbers import unique_names

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST = 64
"""The length of a short name."""
_NAMESPACES = re.compile(r"\b\w+::")
_LAMBDAS = re.compile(r"::(?:\{[^{}]*\}|operator\b)(?: const)?")
_SPACES = re.compile(r"\s+(?=[>,])|(?<=<)\s+")


def without_parameters(name: str) -> str:
    """Return a kernel's name without its parameters.

    >>> without_parameters("void at::native::(anonymous namespace)::fill<int, (kind)2>(int*, long)")
    'at::native::fill<int, (kind)2>'
    """
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth = 0
    for index, letter in enumerate(plain):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and not depth:
            return plain[:index] or plain
    return plain


def readable(name: str) -> str:
    """Return a kernel's name without namespaces, parameters, casts and lambdas.

    >>> readable("void at::native::fill<at::native::Add<float> >(at::Iterator&)::{lambda(int)#1}")
    'fill<Add<float>>'
    """
    kept, depth = [], 0
    for letter in without_parameters(name):
        depth += letter == "("
        if not depth:
            kept.append(letter)
        depth -= letter == ")" and depth > 0
    short = _NAMESPACES.sub("", _LAMBDAS.sub("", "".join(kept)))
    return _SPACES.sub("", short).strip() or name


def _without_arguments(name: str) -> str:
    """Return a readable name, a long one without template arguments."""
    short = readable(name)
    return short.partition("<")[0] if len(short) > _LONGEST else short


def kernel_cells(names: Iterable[str]) -> dict[str, Cell]:
    """Return a cell with a short, unique name per kernel, and with the whole name as its tooltip."""
    listed = list(dict.fromkeys(names))
    shorts = {name: name for name in listed}
    for shorten in (without_parameters, readable, _without_arguments):
        shortened = {name: shorten(name) for name in listed}
        counts = Counter(shortened.values())
        shorts |= {name: short for name, short in shortened.items() if counts[short] == 1}
    cut = unique_names(shorts.values(), _LONGEST)
    return {
        name: Cell(text=cut[short], title=name if cut[short] != name else "") for name, short in shorts.items()
    }
