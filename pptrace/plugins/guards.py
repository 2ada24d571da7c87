"""Checks of what plugins return and raise."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from inspect import get_annotations
from numbers import Rational
from pkgutil import resolve_name
from types import CoroutineType, ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, ParamSpec, TextIO, TypeVar, cast

from msgspec.structs import asdict, replace

from pptrace.errors import PluginError, PptraceError
from pptrace.plugins.providers import API, COMMANDS, AnyOffer, CommandOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType
    from typing import NoReturn

    from pptrace.plugins.providers import Provider

Offer = TypeVar("Offer", bound=AnyOffer)

SIGNALS = signal.SIGINT, signal.SIGTERM
"""Signals that end a command."""
_NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
"""A name as users type it: lower-case words and digits, joined by hyphens (or a version's dots)."""


def check_offer(provider: Provider, offer: object, hook: str, expected: type[AnyOffer]) -> None:
    """Check an offer that the hook ``hook`` of a plugin yielded.

    Raises:
        PluginError: the offer is not an ``expected`` record or has a wrong field.
    """
    if not isinstance(offer, expected):
        kind = f"the class {offer.__name__}" if isinstance(offer, type) else f"a {type(offer).__name__}"
        raise plugin_error(provider, f"{hook} yielded {kind}, expected a {expected.__name__}")
    fault = _version_fault(offer) or _name_fault(offer) or _field_fault(offer)
    if fault:
        raise plugin_error(provider, f"{hook} yielded {expected.__name__} {offer.name!r}: {fault}")


def _version_fault(offer: AnyOffer) -> str:
    if offer.api == API:
        return ""
    newer = isinstance(offer.api, int) and offer.api > API
    remedy = "update pptrace" if newer else "update the plugin"
    return f"it asks for plugin interface {offer.api!r} and this pptrace has {API}; {remedy}"


def _name_fault(offer: AnyOffer) -> str:
    if not isinstance(offer.name, str) or not _NAME.fullmatch(offer.name):
        return "a name is lower-case letters and digits in words joined by hyphens, such as zb-h1"
    if not isinstance(offer.summary, str) or not offer.summary.strip() or "\n" in offer.summary:
        return "its summary is not one line of text"
    if isinstance(offer, CommandOffer) and offer.name in COMMANDS:
        return "pptrace has a command of that name itself; give it another"
    return ""


def _field_fault(offer: Any) -> str:
    """Return the first field error, empty for a valid offer."""
    record: Any = type(offer)
    annotations = _annotations(record)
    for name, value in asdict(offer).items():
        annotation = annotations[name]
        is_default = value is None and annotation.endswith("| None")
        if annotation.startswith("Callable") and not callable(value) and not is_default:
            return f"its {name} is not callable"
        if annotation.startswith("Mapping") and not isinstance(value, Mapping):
            return f"its {name} are not a mapping"
        if annotation.startswith("str | Mapping") and not isinstance(value, str | Mapping):
            return f"its {name} is neither a name nor a mapping"
        if name == "suffixes" and not _is_suffixes(value):
            return "its suffixes are not a tuple of endings such as '.json'"
    return ""


@functools.cache
def _annotations(record: type) -> Mapping[str, str]:
    """Return the annotations of a record's fields as text."""
    bases = reversed(record.__mro__)
    return {name: str(annotation) for base in bases for name, annotation in get_annotations(base).items()}


def _is_suffixes(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(end, str) and end[:1] == "." for end in value)


_FILE_FIELDS = frozenset({"write", "recognises", "read", "advise"})
"""Callables that access the user's files; their OSError is not an error of the plugin."""


def guarded(provider: Provider, offer: Offer, noun: str) -> Offer:
    """Return ``offer`` with each callable raising as :func:`~pptrace.plugins.guards.plugin_code` describes.

    The returned callables also check return values (``_RETURNS``), and that ``write`` creates its file.
    :mod:`pptrace.plugins.construction` checks the return value of ``build``.
    """
    guards: dict[str, Any] = {
        name: _guard(provider, f"{name} of {noun} {offer.name!r}", name, value)
        for name, value in asdict(offer).items()
        if callable(value)
    }
    models = {name: functools.cache(guard) for name, guard in guards.items() if _RETURNS.get(name) is _MODEL}
    return replace(offer, **guards | models)


def _guard(provider: Provider, title: str, field: str, function: Callable[..., Any]) -> Callable[..., Any]:
    passing = (OSError,) if field in _FILE_FIELDS else ()
    expected, holds = _RETURNS.get(field, ("", None))

    @functools.wraps(function)
    def guard(*args: Any, **kwargs: Any) -> Any:
        with plugin_code(provider, function, name=title, passing=passing):
            value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            raise plugin_error(provider, f"{title} is async, and nothing awaits it: write it without async")
        if holds is not None and not holds(value):
            raise plugin_error(provider, f"{title} returned {value!r:.60}, expected {expected}")
        if field == "write" and not args[1].exists():
            raise plugin_error(provider, f"{title} wrote no file")
        return value

    return guard


def _is_fractions(value: object) -> bool:
    return value is None or (isinstance(value, Sequence) and all(isinstance(item, Rational) for item in value))


def _is_a(path: str) -> Callable[[object], bool]:
    """Return a check whether a value is of the class at a path ``MODULE:NAME``, which it imports."""
    return lambda value: isinstance(value, resolve_name(path))


_is_explanation = _is_a("pptrace.plugins.offers:ExplanationPart")
_MODEL = ("a pydantic model class", lambda value: isinstance(value, type) and hasattr(value, "model_validate"))
_COUNT = ("a whole number from 1", lambda value: isinstance(value, int) and value >= 1)
_RETURNS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "options": _MODEL,
    "model": _MODEL,
    "device": _MODEL,
    "bubble": ("a Fraction", lambda value: value is None or isinstance(value, Rational)),
    "peak_activations": ("one Fraction per rank", _is_fractions),
    "chunks": _COUNT,
    "parts": _COUNT,
    "part_times": ("one Fraction per part", lambda value: value is not None and _is_fractions(value)),
    "read": ("a Timeline", _is_a("pptrace.timeline.timeline:Timeline")),
    "explain": ("an ExplanationPart or None", lambda value: value is None or _is_explanation(value)),
    "load": ("a click command", _is_a("click:Command")),
}
"""Expected return value by field name: description and check."""

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST = 300
MOST_OFFERS = 10_000
"""Maximum number of offers of one hook; a hook that yields more is taken as endless."""


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
        function: the running function or module; its package identifies the plugin's frames in a traceback.
        name: name in error messages; the function's name by default.
        passing: exceptions that are not the plugin's fault and propagate unchanged.

    Raises:
        PptraceError: the plugin raised one.
        PluginError: the plugin raised anything else; names plugin, distribution, exception, file and line.
    """
    try:
        with plugin_output():
            yield
    except BaseException as error:  # a plugin may raise anything, sys.exit() included
        if isinstance(error, (PptraceError, MemoryError, interruption(), *passing)):
            raise
        location = _innermost_location(error.__traceback__, _package(function))
        name = name or getattr(function, "__qualname__", type(function).__name__)
        suffix = f" at {location}" if location else ""
        raise plugin_error(provider, f"{name} raised {one_line(error)}{suffix}") from error


@contextlib.contextmanager
def plugin_output() -> Iterator[None]:
    """Redirect a block's output to the standard error, and prevent it from closing the standard output."""
    original = sys.stdout, sys.__stdout__
    binary = cast("BinaryIO", _StandardError())
    redirected: TextIO = io.TextIOWrapper(binary, "utf-8", "backslashreplace", write_through=True)
    sys.stdout = sys.__stdout__ = redirected  # type: ignore[misc,assignment] # a plugin may write to either
    try:
        yield
    finally:
        sys.stdout, sys.__stdout__ = original  # type: ignore[misc] # as above
        _reopen_descriptor()


class UserInterrupt(KeyboardInterrupt):
    """The user's Ctrl-C, or a SIGTERM; its argument is the signal's number."""


def interrupt(signal_number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGINT or SIGTERM: raise ``UserInterrupt``, which no plugin raises, with the signal's number.

    A second SIGTERM ends the process at once.
    """
    del frame
    if signal_number == signal.SIGTERM:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise UserInterrupt(signal_number)


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of a block, which takes locks.

    A handler's exception between taking a lock in Python and using it would leave the lock taken.
    """
    if sys.platform == "win32":
        yield
        return
    original = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, original)


def interruption() -> type[KeyboardInterrupt]:
    """Return the type of the user's Ctrl-C: any KeyboardInterrupt unless :func:`interrupt` handles signals."""
    is_handled = interrupt in map(signal.getsignal, SIGNALS)
    return UserInterrupt if is_handled else KeyboardInterrupt


def plugin_error(provider: Provider, message: str) -> PluginError:
    """Return the error of a plugin that fails or returns an invalid value."""
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
    """Binary stream to the standard error; closing it leaves the standard error open."""

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
    """Point a closed descriptor 1 at the standard error; otherwise the next opened file gets its number."""
    try:
        os.fstat(1)
    except OSError:
        with contextlib.suppress(OSError):  # the standard error is closed too
            os.dup2(2, 1)


def _package(function: object) -> str:
    if isinstance(function, ModuleType):
        return function.__name__.partition(".")[0]
    function = getattr(function, "func", function)  # of a partial
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0]


def _innermost_location(trace: TracebackType | None, package: str) -> str:
    """Return ``file:line`` of the innermost frame in ``package``, or of the innermost frame if it has none."""
    in_package = innermost = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if code.co_filename != __file__:
            innermost = f"{code.co_filename}:{trace.tb_lineno}"
            if module == package and package not in sys.stdlib_module_names:
                in_package = innermost
        trace = trace.tb_next
    return in_package or innermost
