"""Programs that start in milliseconds: each is forked from a Python that has imported its modules.

A program has a process group, standard streams and an exit status, like a program that is started anew.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

__all__ = ["ForkedPython", "Program"]

PPTRACE = "from pptrace.cli.main import main; main()"
"""The code of the command ``pptrace``."""


class ForkedPython:
    """A Python with imported modules, a context manager. It runs one program at a time."""

    def __init__(self, *modules: str) -> None:
        self._streams = tempfile.TemporaryDirectory()
        self._server = subprocess.Popen(
            [sys.executable, "-P", __file__, *modules], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()
        self._streams.cleanup()

    def start(self, folder: Path, *arguments: str, program: str | Path = PPTRACE) -> Program:
        """Start code, or the file of a path, with arguments in a folder."""
        assert self._server.stdin is not None
        streams = Path(tempfile.mkdtemp(dir=self._streams.name))
        for name in ("stdout", "stderr"):
            (streams / name).touch()
        request = {
            "program": str(program), "is_file": isinstance(program, Path), "arguments": arguments,
            "folder": str(folder), "streams": str(streams), "environment": dict(os.environ),
        }  # fmt: skip
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        assert self._server.stdout is not None
        return Program(process=int(self._server.stdout.readline()), streams=streams, reports=self._server.stdout)

    def run(
        self, folder: Path, *arguments: str, program: str | Path = PPTRACE, limit_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        started = self.start(folder, *arguments, program=program)
        status = started.wait(limit_s)
        return subprocess.CompletedProcess(arguments, status, started.printed("stdout"), started.printed("stderr"))


@dataclass(frozen=True, kw_only=True)
class Program:
    """A running program."""

    process: int
    """Its process, which leads a process group."""
    streams: Path
    """Folder of what it prints: ``stdout`` and ``stderr``."""
    reports: Any
    """Pipe with its exit status at its end."""

    def printed(self, stream: str) -> str:
        """Return what it has printed so far."""
        return (self.streams / stream).read_text(encoding="utf-8")

    def wait(self, limit_s: float) -> int:
        """Return its exit status, negative for a signal; kill it at the limit.

        Raises:
            TimeoutExpired: the limit has passed.
        """
        in_time, _, _ = select.select([self.reports], [], [], limit_s)
        if not in_time:
            os.killpg(self.process, signal.SIGKILL)
        status = int(self.reports.readline())
        if not in_time:
            raise subprocess.TimeoutExpired(str(self.process), limit_s)
        return status


def serve(modules: list[str]) -> dict[str, Any] | None:
    """Fork a process per requested program; return its request there, and nothing here at the end."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        process = os.fork()
        if not process:
            return dict(json.loads(line))
        os.write(1, b"%d\n" % process)
        _, status = os.waitpid(process, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))
    return None


def become(
    program: str, *, is_file: bool, arguments: list[str], folder: str, streams: str, environment: Any
) -> NoReturn:
    """Run a program in this process, and end it without clearing its modules, which takes long."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate((os.devnull, f"{streams}/stdout", f"{streams}/stderr")):
        os.dup2(os.open(path, os.O_RDWR), number)
    sys.argv = [program if is_file else "-c", *arguments]
    status: object = 0
    try:
        if is_file:
            sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
        else:
            exec(program, {"__name__": "__main__"})  # noqa: S102 - as python -c does
    except SystemExit as stop:
        status = stop.code
    except BaseException:  # noqa: BLE001 - as Python does at the end
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__" and (asked := serve(sys.argv[1:])) is not None:
    become(**asked)
