"""Say why a plugin does not fit the hooks: a misspelt hook, a forgotten marker, an argument, ``async``."""

from __future__ import annotations

import inspect

from pptrace.errors import nearest
from pptrace.hooks.sorts import SORTS
from pptrace.hooks.specs import PROJECT

__all__ = ["misfit"]

_MARK = f"{PROJECT}_impl"
_PREFIX = f"{PROJECT}_"


def misfit(plugin: object) -> str:
    """Return what keeps ``plugin`` from being used, one sentence, or ``""``."""
    known = {sort.hook for sort in SORTS}
    hooks = 0
    for name in dir(plugin):
        function = getattr(plugin, name, None)
        if not inspect.isroutine(function):
            continue
        mark = getattr(function, _MARK, None)
        hook = (mark and mark.get("specname")) or name
        if mark and hook not in known:
            return f"hook {hook!r} does not exist{nearest(hook, known)}"
        if not mark and name.startswith(_PREFIX) and name in known:
            return f"{name} is not marked; write @hookimpl above it"
        if mark and inspect.signature(function).parameters:
            return f"{name} takes no arguments, and this one declares {inspect.signature(function)}"
        if mark and (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
            return f"{name} is async, and nothing awaits it: write it without async"
        hooks += bool(mark)
    if hooks:
        return ""
    return f"it implements no hook{nearest('', known)}"
