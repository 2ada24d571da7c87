"""LLVM's text, made code of this machine, and the place on the disk where that is kept."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import llvmlite
import llvmlite.binding as llvm

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HERE", "Code", "built", "keep", "kept", "loaded"]

Code = bytes
"""An object file."""


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=_CPU, features=_FEATURES, opt=_EFFORT, jit=True)


def built(text: str) -> Code:
    """Compile a module's text."""
    with _one_at_a_time:
        module = llvm.parse_assembly(text)
        machine = _target()
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        tuning = llvm.create_pipeline_tuning_options(speed_level=_EFFORT)
        tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, tuning)
        builder.getModulePassManager().run(module, builder)
        code: bytes = machine.emit_object(module)
        return code


def loaded(code: Code, name: str) -> Callable[[int], int]:
    """Return a function of compiled code, which takes an address and returns an integer."""
    with _one_at_a_time:
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address(name))
        _engines.append(engine)  # its memory is the code's
    return function


def kept(name: str) -> Code | None:
    """Return the code that was kept under a name; None where there is none, or the file holds anything else."""
    try:
        content = (_folder() / name).read_bytes()
    except OSError:
        return None
    code = content[_DIGEST_BYTES:]
    return code if content == _content(name, code) else None


def keep(name: str, code: Code) -> None:
    """Keep code under a name.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.{os.getpid()}"
    try:
        part.write_bytes(_content(name, code))
        part.replace(folder / name)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _content(name: str, code: Code) -> bytes:
    """Return the content of a file: the digest of its name and code, and the code."""
    return sha256(name.encode() + code).digest() + code


def _folder() -> Path:
    told = os.environ.get("NUMBA_CACHE_DIR", "")
    if told:
        return Path(told)
    cached = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cached) if cached else Path.home() / ".cache") / "pptrace"


_CPU, _FEATURES = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()

_EFFORT = 2
"""LLVM's level of optimisation. Loops are left as they are: their bodies are long and seldom alike."""

HERE = f"{llvmlite.__version__} {_CPU} {_FEATURES}"
"""What compiled code is for."""

_DIGEST_BYTES = sha256().digest_size

_engines: list[Any] = []
_one_at_a_time = Lock()
