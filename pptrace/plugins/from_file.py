"""Schedules from Python files, without packaging: ``--schedule ./mine.py:make``."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.limits import is_named_pipe
from pptrace.errors import PluginError, nearest
from pptrace.plugins.guards import guarded, plugin_code
from pptrace.plugins.offers import ScheduleOffer
from pptrace.plugins.providers import Provided, Provider
from pptrace.plugins.requests import ScheduleRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import BaseModel

_FIELDS = frozenset({*(field.name for field in fields(ScheduleRequest)), "microbatches", "stages"})
_RANKS_AND_MICROBATCHES = 2


def is_file_reference(text: str) -> bool:
    """Return whether ``text`` names a function in a Python file.

    >>> is_file_reference("./mine.py:make"), is_file_reference("1f1b")
    (True, False)
    """
    file, colon, _ = text.rpartition(":")
    return text.endswith(".py") or (bool(colon) and file.endswith(".py"))


def schedule_from_file(reference: str) -> Provided[ScheduleOffer]:
    """Return the offer of a schedule that a function in a file builds.

    The function's arguments are the fields of :class:`~pptrace.plugins.requests.ScheduleRequest` that its
    parameters name. A function with one other parameter gets the request; with two, it gets ranks and
    microbatches. Further parameters with a default are the schedule's options.

    Args:
        reference: ``FILE.py:FUNCTION``.

    Raises:
        PluginError: the file or function is missing, fails to run or has an unsupported signature.
    """
    file, _, name = reference.rpartition(":")
    if not file.endswith(".py") or not name:
        message = f"expected FILE.py:FUNCTION, such as {reference.rstrip(':')}:make"
        raise PluginError(f"{reference}: {message}", plugin=reference)
    provider = Provider(name=reference)
    module = _run_file(provider, file)
    function = getattr(module, name, None)
    if function is None:
        functions = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        raise _error(provider, f"{file} has no function {name!r}{nearest(name, functions)}")
    if not callable(function):
        raise _error(provider, f"{name} in {file} is a {type(function).__name__}, not a function")
    build, options = _analyze_signature(provider, function, name)
    offer = ScheduleOffer(
        name=Path(file).stem.lower().replace("_", "-"),
        summary=(inspect.getdoc(function) or f"{name} of {file}").partition("\n")[0],
        build=functools.update_wrapper(build, function),
        options=functools.partial(_model, function, options) if options else None,
        has_pairs=True,  # possibly: unknown before its table is built
    )
    return Provided(offer=guarded(provider, offer, "schedule"), provider=provider)


def _run_file(provider: Provider, file: str) -> types.ModuleType:
    path = Path(file)
    if is_named_pipe(path):
        raise _error(provider, f"cannot read {file}: is a pipe")
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
        exec(code, module.__dict__)  # noqa: S102 - the user names this file
    return module


def _analyze_signature(
    provider: Provider, function: Callable[..., Any], name: str
) -> tuple[Callable[[ScheduleRequest], Any], tuple[inspect.Parameter, ...]]:
    """Return a function that builds the rows from a request, and the parameters that are options."""
    with plugin_code(provider, function):
        signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    required = [p.name for p in parameters if p.default is p.empty]
    request_fields = tuple(p.name for p in parameters if p.name in _FIELDS and p.kind is not p.POSITIONAL_ONLY)
    by_name = bool(request_fields) and set(required) <= set(request_fields)
    leading = 0 if by_name else len(required) or min(len(parameters), 1)
    if not by_name and leading not in {1, _RANKS_AND_MICROBATCHES}:
        known = ", ".join(sorted(_FIELDS))
        message = f"may take (request), (ranks, microbatches) or any of {known}, and options with a default"
        raise _error(provider, f"{name} of {provider.name} takes {signature}, and {message}")
    options = tuple(
        p
        for p in parameters[leading:]
        if not (by_name and p.name in request_fields)
        and p.kind is not p.POSITIONAL_ONLY
        and not p.name.startswith("_")
    )

    def build(request: ScheduleRequest) -> Any:
        values = {option.name: request.options.get(option.name, option.default) for option in options}
        if by_name:
            return function(**{field: getattr(request, field) for field in request_fields}, **values)
        if leading == _RANKS_AND_MICROBATCHES:
            return function(request.ranks, request.microbatches, **values)
        return function(request, **values)

    return build, options


def _model(function: Callable[..., Any], options: Sequence[inspect.Parameter]) -> type[BaseModel]:
    """Return the parameter model of the options of a function."""
    from pydantic import ConfigDict, create_model

    fields: dict[str, Any] = {option.name: (_type(option), option.default) for option in options}
    config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
    model: type[BaseModel] = create_model("Options", __config__=config, __module__=function.__module__, **fields)
    model.model_rebuild()
    return model


def _type(parameter: inspect.Parameter) -> Any:
    """Return the type of an option: its annotation, or else the type of its default."""
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return type(parameter.default) if isinstance(parameter.default, bool | int | float | str) else Any


def _error(provider: Provider, message: str) -> PluginError:
    return PluginError(message, plugin=provider.name)
