"""Compilation of kernels with LLVM, and the cache of compiled code.

A kernel is compiled once for each layout of its arguments. The layout of a column is its dtype, or its dtype's
text for a column of one value. That of an integer is None, and that of a record its class and the layouts of its
fields.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import llvmlite
import llvmlite.binding as llvm
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Layout: TypeAlias = tuple[Any, ...]


def call(kernel: Callable[..., Any], arguments: Sequence[Any]) -> int:
    """Call a kernel's compiled code with contiguous arrays, integers and records of those.

    Raises:
        TypeError: the kernel is not in the language of kernels.
    """
    words: list[int] = []
    entry_point = _entry_point(kernel, cast("Layout", _collect(arguments, words)))
    memory = np.array(words, dtype=np.int64)
    return entry_point(_address(memory))


def call_loaded(kernel: Callable[..., Any], arguments: Sequence[Any]) -> int | None:
    """Call compiled code that this process has loaded; None if it has none for such arguments.

    A small kernel takes less time than the preparation of its arguments, so one pass collects all of them.
    """
    words: list[int] = []
    layout = _collect(arguments, words)
    entry_point = None if layout is None else _entry_points.get((kernel, layout))
    if entry_point is None:
        return None
    memory = np.array(words, dtype=np.int64)
    return entry_point(_address(memory))


def _collect(arguments: Sequence[Any], words: list[int]) -> Layout | None:
    """Append the words of arguments and return their layout; None if an array is not contiguous."""
    layout: list[Any] = []
    for value in arguments:
        if isinstance(value, np.ndarray):
            if value.flags.c_contiguous:
                layout.append(value.dtype)
            elif value.strides == _ONE_PLACE:
                layout.append(value.dtype.str)
            else:
                return None
            words += (_address(value), value.size)
        elif isinstance(value, tuple):
            collected = getattr(value, "collected", None) or _collect_record(value)
            if collected is None:
                return None
            layout.append(collected[0])
            words += collected[1]
        else:
            words.append(value)
            layout.append(None)
    return tuple(layout)


def _collect_record(record: Any) -> tuple[Layout, list[int]] | None:
    """Return the layout and the words of a record, and keep them in a fixed record."""
    words: list[int] = []
    fields = _collect(record, words)
    if fields is None:
        return None
    collected = (getattr(record, "record", type(record)), *fields), words
    if hasattr(record, "collected"):
        record.collected = collected
    return collected


def as_column(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that compiled code can read: contiguous, or with all elements in one place."""
    return array if array.strides == _ONE_PLACE else np.ascontiguousarray(array)


_ONE_PLACE = (0,)
"""Strides of a column of one value."""

_WORD_BYTES = ctypes.sizeof(ctypes.c_size_t)
_HEAD_WORDS = object.__basicsize__ // _WORD_BYTES
_memory = (ctypes.c_size_t * (sys.maxsize // _WORD_BYTES)).from_address(0)
"""The memory of this process as words."""


def _address(array: NDArray[Any]) -> int:
    """Return the address of an array's first value.

    It is the first field of numpy's public structure ``PyArrayObject_fields``; ``array.ctypes`` takes 20 times as
    long, and a kernel has up to a hundred columns.
    """
    return _memory[id(array) // _WORD_BYTES + _HEAD_WORDS]


def is_ready(kernel: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Return whether the compiled code for such arguments is available; load it from the cache if possible."""
    return _loaded_entry_point(kernel, cast("Layout", _collect(arguments, []))) is not None


def has_source(kernel: Callable[..., Any]) -> bool:
    """Return whether the source of a kernel is available, which compilation needs."""
    from pptrace_kernel.translation import definition_of

    return definition_of(kernel) is not None


@cache
def bytecode_size(kernel: Callable[..., Any]) -> int:
    """Return the bytes of bytecode of a kernel and the functions that it calls, a measure of its compile time."""
    return sum(len(function.__code__.co_code) for function in _called_functions(kernel))


def read_cache(name: str) -> bytes | None:
    """Return the object file with a name; None if it is missing or damaged."""
    try:
        content = (_cache_folder() / name).read_bytes()
    except OSError:
        return None
    code = content[_DIGEST_BYTES:]
    return code if content == _with_digest(name, code) else None


def write_cache(name: str, code: bytes) -> None:
    """Write an object file to the cache.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.{os.getpid()}"
    try:
        part.write_bytes(_with_digest(name, code))
        part.replace(folder / name)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _with_digest(name: str, code: bytes) -> bytes:
    return sha256(name.encode() + code).digest() + code


def _cache_folder() -> Path:
    configured = os.environ.get("PPTRACE_KERNEL_CACHE", "")
    if configured:
        return Path(configured)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(caches) if caches else Path.home() / ".cache") / "pptrace"


def _loaded_entry_point(kernel: Callable[..., Any], layout: Layout) -> Callable[[int], int] | None:
    """Return the compiled function of this process or of the cache; None if there is none."""
    if (kernel, layout) not in _entry_points:
        name = _name(kernel, layout)
        code = read_cache(f"{name}.o")
        if code is None:
            return None
        _entry_points[kernel, layout] = _load(name, code)
    return _entry_points[kernel, layout]


def _entry_point(kernel: Callable[..., Any], layout: Layout) -> Callable[[int], int]:
    """Return the compiled function, which takes the address of the arguments' words."""
    entry_point = _loaded_entry_point(kernel, layout)
    if entry_point is not None:
        return entry_point
    _compiled_sizes.append(bytecode_size(kernel))
    if sum(_compiled_sizes) > REPORTED_BYTES:
        _report_compilation()
    from pptrace_kernel.translation import translate

    name = _name(kernel, layout)
    code = _compile(translate(kernel, layout, name))
    try:
        write_cache(f"{name}.o", code)
    except OSError:
        _warn_of_no_cache()
    _entry_points[kernel, layout] = _load(name, code)
    return _entry_points[kernel, layout]


@cache
def _target_machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=_CPU, features=_FEATURES, opt=_OPTIMIZATION_LEVEL, jit=True)


def _compile(text: str) -> bytes:
    """Return the object file of an LLVM module."""
    with _llvm_lock:
        module = llvm.parse_assembly(text)
        machine = _target_machine()
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        tuning = llvm.create_pipeline_tuning_options(speed_level=_OPTIMIZATION_LEVEL)
        # Loop bodies are long and rarely uniform, so vectorizing or unrolling them costs time and gains none.
        tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(module, builder)
        code: bytes = machine.emit_object(module)
        return code


@cache
def _engine() -> Any:
    """Return LLVM's engine, which owns the memory of loaded code."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())


def _load(name: str, code: bytes) -> Callable[[int], int]:
    """Return the function of an object file; a function is loaded once, also for kernels with equal code."""
    with _llvm_lock:
        if name not in _functions:
            engine = _engine()
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            engine.finalize_object()
            address = engine.get_function_address(name)
            _functions[name] = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(address)
        return _functions[name]


@cache
def _name(kernel: Callable[..., Any], layout: Layout) -> str:
    """Return the name of a compiled function, with a digest of everything that its code depends on."""
    inputs = f"{_describe_source(kernel)} {_describe_layout(layout)} {_describe_compiler()}"
    return f"{kernel.__name__}_{sha256(inputs.encode()).hexdigest()[:32]}"


@cache
def _describe_compiler() -> str:
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return f"{llvmlite.__version__} {_CPU} {_FEATURES} {sha256(sources).hexdigest()}"


def _describe_source(kernel: Callable[..., Any]) -> str:
    parts = []
    for function in _called_functions(kernel):
        code, names = function.__code__, _referenced_globals(function).items()
        constants = (f"{name} {value}" for name, value in names if not isinstance(value, FunctionType))
        parts += [code.co_code.hex(), f"{code.co_consts} {code.co_names} {code.co_varnames}", *constants]
    return " ".join(parts)


def _describe_layout(layout: Any) -> str:
    if isinstance(layout, tuple):
        return f"({' '.join(_describe_layout(value) for value in layout)})"
    if isinstance(layout, np.dtype):
        return layout.char  # str() takes ten times as long
    return f"{layout.__name__} {getattr(layout, '_fields', '')}" if isinstance(layout, type) else str(layout)


def _called_functions(kernel: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return a kernel and all functions that it calls, directly or indirectly, without duplicates."""
    functions = [kernel]
    for function in functions:
        callees = (value for value in _referenced_globals(function).values() if isinstance(value, FunctionType))
        functions += [callee for callee in callees if callee not in functions]
    return functions


def _referenced_globals(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals that a function refers to: functions and constants of modules."""
    module_globals = function.__globals__
    return {name: module_globals[name] for name in function.__code__.co_names if name in module_globals}


@cache
def _report_compilation() -> None:
    sys.stderr.write("compiling the simulator for this machine: later runs are quicker\n")
    sys.stderr.flush()


@cache
def _warn_of_no_cache() -> None:
    """Warn once in the main process; worker processes do not repeat the warning."""
    from multiprocessing import parent_process

    if parent_process() is None:
        warnings.warn(_NO_CACHE, RuntimeWarning, stacklevel=5)


_CPU, _FEATURES = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
_OPTIMIZATION_LEVEL = 2
_DIGEST_BYTES = sha256().digest_size
_NO_CACHE = (
    "compiled code cannot be kept, so every run compiles again: "
    "make the folder in PPTRACE_KERNEL_CACHE (or ~/.cache) writable"
)

_entry_points: dict[tuple[Callable[..., Any], Layout], Callable[[int], int]] = {}
"""Compiled code that is loaded in this process."""

_functions: dict[str, Callable[[int], int]] = {}
"""The functions in LLVM's engine, by name."""

REPORTED_BYTES = 4_000
"""Bytes of bytecode, compiled in about 0.12 s, from which compilation is reported."""

_compiled_sizes: list[int] = []
"""Bytes of bytecode of each kernel that this process compiled, to report only compilations that take long."""

_llvm_lock = Lock()
