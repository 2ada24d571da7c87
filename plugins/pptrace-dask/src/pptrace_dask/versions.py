"""What has to be the same wherever points of one study run."""

from __future__ import annotations

import sys
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["difference", "installed"]

_GROUP = "pptrace"
"""The entry points of plugins."""
_ALSO = ("pptrace", "numpy")
"""Distributions whose version is compared though they are no plugins."""


@cache
def installed() -> Mapping[str, str]:
    """Return the versions of Python, pptrace and all installed plugins, by name."""
    found = {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
    plugins = {point.dist.name for point in metadata.entry_points(group=_GROUP) if point.dist is not None}
    for name in sorted(plugins.union(_ALSO)):
        found[name] = metadata.version(name)
    return found


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Say in what another installation differs, or nothing.

    >>> difference({"pptrace": "1.1", "mine": "2"}, {"pptrace": "1.0"})
    'mine: none, here 2; pptrace: 1.0, here 1.1'
    """
    names = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    return "; ".join(f"{name}: {there.get(name, 'none')}, here {here.get(name, 'none')}" for name in names)
