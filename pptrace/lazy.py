"""Lazy imports: of a module's public names, as declared in its stub, and of functions at their first call.

Type checkers and editors read the same stub, ``NAME.pyi`` in the folder of ``NAME.py``:
``from pptrace.steps.kinds import Kind as Kind``.
"""

from __future__ import annotations

import importlib
import re
from pkgutil import get_data
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def names_of(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the ``__getattr__``, ``__dir__`` and ``__all__`` of ``pptrace`` or of a module in it that has a stub.

    Args:
        module: its ``__name__``.
    """
    package, _, name = module.partition(".")
    stub = get_data(package, f"{name or '__init__'}.pyi") or b""
    homes = {name: home for home, name in _NAME.findall(stub.decode())}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        return getattr(home, name) if hasattr(home, name) else importlib.import_module(f"{homes[name]}.{name}")

    return get, lambda: sorted(homes), sorted(homes)


def deferred(name: str) -> Callable[..., Any]:
    """Return a function that imports a function when it is called, and calls it.

    Args:
        name: the module and the function.

    >>> deferred("math:gcd")(4, 6)
    2
    """
    module, _, function = name.partition(":")

    def call(*args: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*args, **options)

    call.__module__, call.__name__ = module, function  # errors name the function's package
    return call
