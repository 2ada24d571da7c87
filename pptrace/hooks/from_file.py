"""Take a schedule from a Python file, without packaging: ``--schedule ./mine.py:make``."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.errors import PluginError, nearest
from pptrace.hooks.call import plugin_code
from pptrace.hooks.guard import guarded
from pptrace.hooks.offers import ScheduleOffer
from pptrace.hooks.provider import Provided, Provider
from pptrace.model.request import ScheduleRequest

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_file_reference", "schedule_from_file"]

_FIELDS = frozenset({*(field.name for field in fields(ScheduleRequest)), "stages"})
_NAMED = frozenset(
    {
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }
)
_RANKS_AND_UNITS = 2


def is_file_reference(text: str) -> bool:
    """Return whether ``text`` names a function in a Python file.

    >>> is_file_reference("./mine.py:make"), is_file_reference("1f1b")
    (True, False)
    """
    file, colon, _ = text.rpartition(":")
    return text.endswith(".py") or (bool(colon) and file.endswith(".py"))


def schedule_from_file(reference: str, folder: Path | None = None) -> Provided[ScheduleOffer]:
    """Return the schedule that a function in a file makes, as if a plugin offered it.

    The function gets the :class:`~pptrace.model.request.ScheduleRequest`; or, where it takes them,
    the fields of one that its parameters name; or the ranks and units, where it takes two others.

    Args:
        reference: ``FILE.py:FUNCTION``.
        folder: where relative files are looked for; the current directory by default.

    Raises:
        PluginError: the file or function is missing, cannot be run or cannot be called so.
    """
    file, _, name = reference.rpartition(":")
    if not file.endswith(".py") or not name:
        message = f"expected FILE.py:FUNCTION, such as {reference.rstrip(':')}:make"
        raise PluginError(f"{reference}: {message}", plugin=reference)
    provider = Provider(name=reference)
    module = _run(provider, file, (folder or Path()) / file)
    function = getattr(module, name, None)
    if function is None:
        functions = [
            k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__
        ]
        raise _error(provider, f"{file} has no function {name!r}{nearest(name, functions)}")
    if not callable(function):
        raise _error(provider, f"{name} in {file} is a {type(function).__name__}, not a function")
    offer = ScheduleOffer(
        name=Path(file).stem.lower().replace("_", "-"),
        summary=(inspect.getdoc(function) or f"{name} of {file}").partition("\n")[0],
        build=_builder(provider, function, name),
    )
    return Provided(offer=guarded(provider, offer), provider=provider)


def _run(provider: Provider, file: str, path: Path) -> types.ModuleType:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise _error(provider, f"cannot read {file}: {error.strerror}") from error
    try:
        code = compile(source, str(path), "exec")
    except SyntaxError as error:
        raise _error(provider, f"{file}:{error.lineno or 1}: {error.msg}") from error
    except ValueError as error:
        raise _error(provider, f"{file}: {error}") from error
    module = types.ModuleType(f"{path.stem}@{path.resolve()}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up here
    with plugin_code(provider, module, name=file):
        exec(code, module.__dict__)  # noqa: S102 - the user asked for this file to be run
    return module


def _builder(provider: Provider, function: Callable[..., Any], name: str) -> Callable[[ScheduleRequest], Any]:
    with plugin_code(provider, function):
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in _NAMED]
    needed = [p for p in parameters if p.default is p.empty]
    by_name = [p.name for p in parameters if p.name in _FIELDS and p.kind is not p.POSITIONAL_ONLY]
    takes_names = bool(by_name) and all(p.name in by_name for p in needed)

    @functools.wraps(function)
    def build(request: ScheduleRequest) -> Any:
        if takes_names:
            return function(**{key: getattr(request, key) for key in by_name})
        return function(request.ranks, request.units) if len(needed) == _RANKS_AND_UNITS else function(request)

    if takes_names or (parameters and len(needed) <= _RANKS_AND_UNITS):
        return build
    known = ", ".join(sorted(_FIELDS))
    message = f"may take (request), (ranks, units) or any of {known}"
    raise _error(provider, f"{name} of {provider.name} takes {inspect.signature(function)}, and {message}")


def _error(provider: Provider, message: str) -> PluginError:
    return PluginError(message, plugin=provider.name)
