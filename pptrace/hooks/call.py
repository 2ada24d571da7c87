"""Call a plugin's code: what it raises becomes one line with plugin and place, what it prints goes to stderr."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO, ParamSpec, TextIO, TypeVar, cast

from pptrace.errors import PluginError, PptraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType
    from typing import Any, NoReturn

    from pptrace.hooks.provider import Provider

__all__ = [
    "MOST_OFFERS",
    "UserInterrupt",
    "call_plugin",
    "interrupt",
    "interruption",
    "one_line",
    "plugin_code",
    "plugin_error",
    "plugin_output",
]

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
    ours: tuple[type[BaseException], ...] = (PptraceError, MemoryError, interruption(), *passing)
    try:
        with plugin_output():
            yield
    except ours:
        raise
    except BaseException as error:  # a plugin may raise anything, and sys.exit() is no answer
        place = _place(error.__traceback__, _package(function))
        name = name or getattr(function, "__qualname__", type(function).__name__)
        where = f" at {place}" if place else ""
        raise plugin_error(provider, f"{name} raised {one_line(error)}{where}") from error


@contextlib.contextmanager
def plugin_output() -> Iterator[None]:
    """Send what a block prints to the standard error, and keep it from closing the standard output."""
    before = sys.stdout, sys.__stdout__
    binary = cast("BinaryIO", _StandardError())
    printed: TextIO = io.TextIOWrapper(binary, "utf-8", "backslashreplace", write_through=True)
    sys.stdout = sys.__stdout__ = printed  # type: ignore[misc,assignment] # a plugin may write to either
    try:
        yield
    finally:
        sys.stdout, sys.__stdout__ = before  # type: ignore[misc] # as above
        _reopen_descriptor()


class UserInterrupt(KeyboardInterrupt):
    """The user's Ctrl-C, or a SIGTERM; its argument is the signal's number."""


def interrupt(signal_number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGINT or SIGTERM: raise a type of KeyboardInterrupt that no plugin raises, with the signal's number.

    A second SIGTERM ends the process at once.
    """
    del frame
    if signal_number == signal.SIGTERM:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise UserInterrupt(signal_number)


def interruption() -> type[KeyboardInterrupt]:
    """Return the type of the user's Ctrl-C: any KeyboardInterrupt unless :func:`interrupt` handles SIGINT."""
    by_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return KeyboardInterrupt if by_default else UserInterrupt


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


class _StandardError(io.RawIOBase):
    """Bytes for the standard error, which stays open when this is closed."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        octets = bytes(data)
        if sys.stderr is not None:
            sys.stderr.write(octets.decode(errors="backslashreplace"))
        return len(octets)

    def fileno(self) -> int:
        return sys.stderr.fileno()


def _reopen_descriptor() -> None:
    """Point descriptor 1 at the standard error where it is closed: else the next open file gets its number."""
    try:
        os.fstat(1)
    except OSError:
        with contextlib.suppress(OSError):  # the standard error is closed too
            os.dup2(2, 1)


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
