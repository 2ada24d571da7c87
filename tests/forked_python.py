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
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

__all__ = ["ForkedPython", "Program"]

PPTRACE = "from pptrace.cli.main import main; main()"
"""The code of the command ``pptrace``."""
_MOST_BYTES = 1 << 17
"""Limit of a request."""
_COMMAND = """\
#!{python} -IS
import json, os, socket, sys
program, arguments = {program!r}, sys.argv[1:]
if not program:
    if not arguments or arguments[0].startswith("-"):
        os.execv({python!r}, [{python!r}, *arguments])
    program, arguments = os.path.abspath(arguments[0]), arguments[1:]
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
request = {{"program": program, "is_file": {is_file}, "arguments": arguments, "folder": os.getcwd(),
            "environment": dict(os.environ)}}
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
server.recv(32)
status = int(server.recv(32))
sys.exit(status if status >= 0 else 128 - status)
"""


class ForkedPython:
    """A Python with imported modules, from which programs are forked; a context manager."""

    def __init__(self, *modules: str, python: str = sys.executable) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._python, self._address = python, f"{self._folder.name}/server"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(self._address)
            server.listen()
            self._server = subprocess.Popen(
                [python, "-P", __file__, str(server.fileno()), *modules], pass_fds=[server.fileno()],
                stdin=subprocess.PIPE, start_new_session=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()
        self._folder.cleanup()

    def write_commands(self, folder: Path) -> None:
        """Write ``pptrace``, which runs here, and ``python``, which runs files here."""
        for name, program in (("pptrace", PPTRACE), ("python", "")):
            file = folder / name
            file.write_text(
                _COMMAND.format(python=self._python, address=self._address, program=program, is_file=not program)
            )
            file.chmod(0o755)

    def start(self, folder: Path, *arguments: str, program: str | Path = PPTRACE, **streams: int) -> Program:
        """Start code, or the file of a path, with arguments in a folder.

        ``stdout`` and ``stderr`` are open files in place of those that ``printed`` reads.
        """
        request = {
            "program": str(program), "is_file": isinstance(program, Path), "arguments": arguments,
            "folder": str(folder), "environment": dict(os.environ),
        }  # fmt: skip
        printed = Path(tempfile.mkdtemp(dir=self._folder.name))
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.connect(self._address)
        with ExitStack() as opened:
            files = [opened.enter_context(Path(os.devnull).open()).fileno()]
            for name in ("stdout", "stderr"):
                file = opened.enter_context((printed / name).open("w"))
                files.append(streams.get(name, file.fileno()))
            socket.send_fds(server, [json.dumps(request).encode()], files)
        return Program(process=int(server.recv(32)), streams=printed, server=server)

    def run(
        self,
        folder: Path,
        *arguments: str,
        program: str | Path = PPTRACE,
        limit_s: float = 300,
        **streams: int,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        started = self.start(folder, *arguments, program=program, **streams)
        status = started.wait(limit_s)
        return subprocess.CompletedProcess(arguments, status, started.printed("stdout"), started.printed("stderr"))


@dataclass(frozen=True, kw_only=True)
class Program:
    """A running program; ``wait`` once."""

    process: int
    """Its process, which leads a process group."""
    streams: Path
    """Folder of what it prints: ``stdout`` and ``stderr``."""
    server: socket.socket
    """Gives its exit status at its end."""

    def printed(self, stream: str) -> str:
        """Return what it has printed so far."""
        return (self.streams / stream).read_text(encoding="utf-8")

    @property
    def has_ended(self) -> bool:
        """Whether its exit status is known."""
        return bool(select.select([self.server], [], [], 0)[0])

    def wait(self, limit_s: float = 300) -> int:
        """Return its exit status, negative for a signal; kill it at the limit.

        Raises:
            TimeoutExpired: the limit has passed.
        """
        with self.server:
            in_time, _, _ = select.select([self.server], [], [], limit_s)
            if not in_time:
                os.killpg(self.process, signal.SIGKILL)
                raise subprocess.TimeoutExpired(str(self.process), limit_s)
            return int(self.server.recv(32))


def serve(server: socket.socket) -> dict[str, Any] | None:
    """Fork a process per requested program; return its request there, and nothing here when the input ends."""
    while server in select.select([server, sys.stdin], [], [])[0]:
        client, _ = server.accept()
        with client:
            if not os.fork():
                return follow(client)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return None


def follow(client: socket.socket) -> dict[str, Any]:
    """Fork the program of a client; return its request there, and here tell the client its process and status."""
    content, streams, _, _ = socket.recv_fds(client, _MOST_BYTES, 3)
    process = os.fork()
    if not process:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return dict(json.loads(content))
    for number in (0, 1, 2, *streams):  # a reader of these waits for the program alone
        os.close(number)
    client.send(b"%d" % process)
    _, status = os.waitpid(process, 0)
    client.send(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def become(program: str, *, is_file: bool, arguments: list[str], folder: str, environment: Any) -> NoReturn:
    """Run a program in this process, and end it without clearing its modules, which takes long."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program if is_file else "-c", *arguments]
    sys.path.insert(0, str(Path(program).parent) if is_file else "")
    status: object = 0
    try:
        if is_file:
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


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        asked = serve(listening)
    if asked is not None:
        become(**asked)
