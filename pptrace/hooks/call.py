"""Call a plugin's code so that whatever it raises becomes one line that names the plugin and the place."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pptrace.errors import PluginError, PptraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from pptrace.hooks.provider import Provider

__all__ = ["MOST_OFFERS", "call_plugin", "one_line", "plugin_code", "plugin_error"]

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST = 300
MOST_OFFERS = 10_000
"""Offers of one hook of one plugin: more come from one that never ends."""


def call_plugin(provider: Provider, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what ``function``, a callable of an offer, returns; raises as :func:`plugin_code` does."""
    with plugin_code(provider, function):
        return function(*args, **kwargs)


@contextlib.contextmanager
def plugin_code(
    provider: Provider, function: object, *, name: str = "", passing: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Run a block on behalf of ``function``, a plugin's function or module.

    Args:
        provider: the plugin.
        function: what runs; tells the plugin's own frames from others'.
        name: what a message calls it, its own name by default.
        passing: exceptions that are not the plugin's fault and pass as they are.

    Raises:
        PptraceError: as the plugin raised it, where it is one of ours.
        PluginError: the plugin raised anything else; names plugin, distribution, exception, file and line.
    """
    known: tuple[type[BaseException], ...] = (
        PptraceError, MemoryError, KeyboardInterrupt, GeneratorExit, *passing,
    )  # fmt: skip
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what it prints is no part of our output
            yield
    except known:
        raise
    except BaseException as error:  # a plugin may raise anything, and sys.exit() is no answer
        place = _place(error.__traceback__, _package(function))
        name = name or getattr(function, "__qualname__", type(function).__name__)
        where = f" at {place}" if place else ""
        raise plugin_error(provider, f"{name} raised {one_line(error)}{where}") from error


def plugin_error(provider: Provider, message: str) -> PluginError:
    """Return the error of a plugin that fails or returns nonsense."""
    return PluginError(f"{provider}: {message}", plugin=provider.name, distribution=provider.distribution)


def one_line(error: BaseException) -> str:
    r"""Return an exception's type and text as one line.

    >>> one_line(ValueError("first\n  second"))
    'ValueError: first second'
    """
    text = " ".join(str(error).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _package(function: object) -> str:
    if isinstance(function, ModuleType):
        return function.__name__.partition(".")[0]
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0]


def _place(trace: TracebackType | None, package: str) -> str:
    """Return ``file:line`` of the innermost frame in the plugin's own package, else of the innermost."""
    own = last = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if code.co_filename != __file__:
            last = f"{code.co_filename}:{trace.tb_lineno}"
            if module == package and package not in sys.stdlib_module_names:
                own = last
        trace = trace.tb_next
    return own or last
