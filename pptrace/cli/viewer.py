"""The local server of traces."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import secrets
import socket
import sys
import threading
import time
import webbrowser
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct, field

from pptrace.errors import PptraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from _typeshed import WriteableBuffer


class Delivery:
    """Counter of requests in progress, and whether the trace was sent; shared by all request threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._in_progress = 0
        self._last = clock()
        self.complete = False

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one request as in progress."""
        with self._lock:
            self._in_progress += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_progress -= 1
                self._last = self._clock()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while one is in progress."""
        with self._lock:
            return 0.0 if self._in_progress else self._clock() - self._last


def has_display(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Return whether the user can see a browser that starts on this machine.

    >>> has_display({"DISPLAY": ":0"}, "linux"), has_display({}, "linux"), has_display({}, "darwin")
    (True, False, True)
    >>> has_display({"DISPLAY": "localhost:10.0", "SSH_CONNECTION": "10.0.0.2 50000 10.0.0.1 22"}, "linux")
    False
    """
    if environment.get("SSH_CONNECTION"):
        return False
    needs_server = platform not in {"darwin", "win32", "cygwin"}
    return not needs_server or any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def forward_command(port: int) -> str:
    """Return the command that forwards ``port`` from the browser's machine to this machine."""
    return f"ssh -L {port}:{HOST}:{port} {socket.gethostname()}"


def open_browser(address: str, on_failure: Callable[[], None]) -> None:
    """Open ``address`` in a new tab in a background thread; call ``on_failure`` if that fails."""

    def attempt() -> None:
        # a browser in text mode blocks its caller, which has to serve the trace
        if not webbrowser.open_new_tab(address):
            on_failure()

    threading.Thread(target=attempt, daemon=True).start()


_TICK_S = 0.1
_QUIET_S = 1.0
"""Time without requests after the trace is sent, for a browser that requests it twice."""
_QUIET_UI_S = 10.0
"""The same time with an offline UI, which loads some of its files later."""
_MOST_CONNECTIONS = 32
"""Maximum number of open connections, each with a thread; a browser opens six."""


class Server(ThreadingHTTPServer):
    """Serves one :class:`Site` on the loopback interface."""

    timeout = _TICK_S
    request_queue_size = 128
    """Connections that may wait to be accepted: a UI requests dozens of files simultaneously."""

    def __init__(self, site: Site, port: int) -> None:
        """Listen on ``port``, or on any free port for 0.

        Raises:
            PptraceError: the port is in use or cannot be opened.
        """
        self.site, self.delivery = site, Delivery()
        self._slots = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise PptraceError(_port_problem(error, site, port)) from None
        self.port: int = self.server_address[1]

    def server_bind(self) -> None:
        """Bind without a look-up of the host name, which can take seconds without a network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def run(self, timeout_s: float) -> bool:
        """Serve until the trace is fetched and no requests follow, or ``timeout_s`` pass without a request.

        Returns:
            Whether the trace was fetched.
        """
        quiet_s = _QUIET_S if self.site.ui is None else _QUIET_UI_S
        while True:
            self.handle_request()
            idle_s = self.delivery.idle_s
            if self.delivery.complete and idle_s >= quiet_s:
                return True
            if idle_s >= timeout_s:
                return self.delivery.complete

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; above the maximum number, it waits in the system's queue.

        Raises:
            OSError: too many connections are open, or the client closed this connection.
        """
        if not self._slots.acquire(timeout=_TICK_S):
            raise TimeoutError
        try:
            return super().get_request()
        except OSError:
            self._slots.release()
            raise

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection and release its slot."""
        super().shutdown_request(request)
        self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore closed connections and timeouts; other errors are bugs and show their traceback."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # typeshed's private alias


def _port_problem(error: OSError, site: Site, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        text = f"port {port} is in use, perhaps by another pptrace open or trace_processor --httpd; end that one"
    else:
        text = f"port {port} cannot be opened: {error.strerror}"
    if site.ui is None:
        return f"{text} (the public UI fetches from no other port; with --ui DIR, --port takes any)"
    return f"{text}, or choose another with --port (0 takes any free one)"


_BINARY = "application/octet-stream"
_TYPES = {
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}
"""Content types of a UI's files; the system's table may have plain text for scripts."""
_METHODS = "GET, OPTIONS"


class Handler(BaseHTTPRequestHandler):
    """A connection with one request."""

    server: Server
    server_version = "pptrace"
    sys_version = ""
    timeout = 60
    """Seconds for which a client may leave its receive window full."""
    request_timeout = 5
    """Seconds from connecting to the end of the request's headers."""

    def setup(self) -> None:
        """Limit the time for the whole request; the timeout of a socket restarts with each byte."""
        super().setup()
        self.rfile = io.BufferedReader(_Request(self.connection, self.request_timeout))

    def do_GET(self) -> None:
        """Send the trace, or a file of the UI."""
        with self.server.delivery.request():
            self._send_file()

    def do_OPTIONS(self) -> None:
        """Answer the browser's preflight before a cross-origin request."""
        with self.server.delivery.request():
            if self._file() is None:
                return
            self.send_response(HTTPStatus.NO_CONTENT)
            self.send_header("Access-Control-Allow-Methods", _METHODS)
            if self.headers.get("Access-Control-Request-Private-Network") == "true":
                self.send_header("Access-Control-Allow-Private-Network", "true")
            self.end_headers()

    def end_headers(self) -> None:
        """Add the headers of every response."""
        if self.server.site.ui is None:
            self.send_header("Access-Control-Allow-Origin", PUBLIC_UI)
        self.send_header("Allow", _METHODS)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing for single requests."""

    def _file(self) -> Path | None:
        """Return the requested file; send an error and return ``None`` if there is none or access is forbidden."""
        self.connection.settimeout(self.timeout)
        site = self.server.site
        try:
            site.check_source(self.headers.get_all("Host", []), self.headers.get("Origin"))
            file = site.find(self.path)
        except (ValueError, PermissionError) as error:
            forbidden = isinstance(error, PermissionError)
            self.send_error(HTTPStatus.FORBIDDEN if forbidden else HTTPStatus.BAD_REQUEST, explain=str(error))
            return None
        if file is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        return file

    def _send_file(self) -> None:
        path = self._file()
        if path is None:
            return
        try:
            file = path.open("rb")
        except OSError:  # gone since the server started
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file:
            size, is_trace = os.fstat(file.fileno()).st_size, path == self.server.site.trace
            self.send_response(HTTPStatus.OK)
            # no Content-Encoding for .gz: the UI needs the bytes of the file
            self.send_header("Content-Type", _BINARY if is_trace else _TYPES.get(path.suffix, _BINARY))
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.connection.sendfile(file) == size and is_trace:
                self.server.delivery.complete = True


class _Request(io.RawIOBase):
    """Input of a request, limited to a total time."""

    def __init__(self, connection: socket.socket, limit_s: float) -> None:
        self._connection, self._end_s = connection, time.monotonic() + limit_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Receive some bytes.

        Raises:
            TimeoutError: the time limit has passed.
        """
        remaining_s = self._end_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining_s)
        return self._connection.recv_into(buffer)


PUBLIC_UI = "https://ui.perfetto.dev"
HOST = "127.0.0.1"
PUBLIC_PORT = 9001
"""The only local port that the public UI's content security policy lets it fetch from."""
_HOST_NAMES = (HOST, "localhost")
_HOST_HEADER = re.compile(r"(\[[0-9a-f:.]+\]|[\w.~%!$&'()*+,;=-]+)(?::\d*)?", re.ASCII | re.IGNORECASE)
"""Name and port of a ``Host`` header (RFC 9110, section 7.2)."""
_SUFFIX = r"( \([\w-]+\))?( \(\d+\))?$"
_COMMANDS = (
    {"id": "dev.perfetto.PinTracksByRegex", "args": ["^(critical path|rank (0*[0-9]|0*1[0-5]))" + _SUFFIX]},
    {"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^rank 0+" + _SUFFIX]},
)
"""Start-up commands of the UI; older UIs skip them. Sixteen pinned ranks leave space for other tracks."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class Site(Struct, frozen=True, kw_only=True):
    """A trace with its served name, and an optional offline UI.

    >>> from pathlib import Path
    >>> site = Site(trace=Path("out/step 1&2.pftrace"), token="c5n0")
    >>> site.page(9001)
    'https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/c5n0/step_1_2.pftrace'
    """

    trace: Path
    """The trace file."""
    arranged: bool = False
    """Whether the UI pins the pipeline's tracks and expands the first rank's tracks; for traces of pptrace."""
    view: tuple[int, int] | None = None
    """Begin and end of the initial view in nanoseconds of the trace; the whole trace if ``None``."""
    ui: Path | None = None
    """The folder of an offline UI; the public UI if ``None``."""
    token: str = field(default_factory=secrets.token_urlsafe)
    """Secret first part of every served path; it excludes other users of this machine."""

    @property
    def name(self) -> str:
        """The trace's path below the token: its name in characters that URLs do not escape."""
        name = _UNSAFE.sub("_", self.trace.name).strip(".") or "trace"
        while self.ui is not None and (self.ui / name).exists():
            name = f"trace-{name}"
        return name

    def page(self, port: int) -> str:
        """Return the address at which the UI opens and fetches the trace from ``port``."""
        base = f"http://{HOST}:{port}/{self.token}"
        address = f"{base if self.ui else PUBLIC_UI}/#!/?url={base}/{self.name}"
        if self.view is not None:
            address += f"&visStart={self.view[0]}&visEnd={self.view[1]}"
        if not self.arranged:
            return address
        return f"{address}&startupCommands={quote(json.dumps(_COMMANDS, separators=(',', ':')))}"

    def find(self, target: str) -> Path | None:
        """Return the file of a request's target; ``None`` if the site has no such file.

        Raises:
            PermissionError: the target does not begin with the token.
        """
        try:
            path = unquote(urlsplit(target).path, errors="strict")
        except ValueError:
            path = ""
        token, _, name = path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            raise PermissionError("the address has no valid token")
        if name == self.name:
            return self.trace
        return None if self.ui is None else _file_in(self.ui, name or "index.html")

    def check_source(self, hosts: Sequence[str], origin: str | None) -> None:
        """Check that a request names this machine as host, and has this UI or no page as origin.

        Another host name indicates DNS rebinding. A page of another origin must not detect that the trace exists.

        Args:
            hosts: the values of all ``Host`` headers.
            origin: the value of the ``Origin`` header.

        Raises:
            ValueError: there is not exactly one valid ``Host`` header.
            PermissionError: the host or the origin is not allowed.
        """
        host = _HOST_HEADER.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            raise ValueError("a request needs exactly one valid Host header")
        ui = PUBLIC_UI if self.ui is None else f"http://{host[0]}"
        if host[1].lower() not in _HOST_NAMES or origin not in {None, ui}:
            raise PermissionError("the host or the origin is not that of the viewer")


def _file_in(folder: Path, path: str) -> Path | None:
    parts = path.split("/")
    if any(part in {"", ".", ".."} or "\\" in part or "\0" in part for part in parts):
        return None
    try:
        root = folder.resolve()
        file = root.joinpath(*parts).resolve()
        return file if file.is_relative_to(root) and file.is_file() else None
    except (OSError, RuntimeError):  # a name is too long, or links are cyclic
        return None
