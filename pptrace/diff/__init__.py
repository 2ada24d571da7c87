"""Two steps side by side, action by action: simulated or measured, any two of them.

``pptrace.diff(first, second)`` is a function for users, and this package for the import system, which puts it in
the function's place once anything in here is imported. So the package can be called too.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pptrace.diff.comparison import Diff

__all__ = ["CallablePackage"]


class CallablePackage(ModuleType):
    """A package that stands for the function of its name."""

    def __call__(self, first: Any, second: Any, **options: Any) -> Diff:
        """Compare two steps; see :func:`pptrace.api.diff`."""
        from pptrace.diff.comparison import compare_steps

        return compare_steps(first, second, **options)


sys.modules[__name__].__class__ = CallablePackage
