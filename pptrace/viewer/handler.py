"""Answers the requests of a Perfetto UI: the trace, its preflights, an offline UI's own files."""

from __future__ import annotations

import io
import os
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import IO, TYPE_CHECKING

from pptrace.viewer.byte_range import byte_range
from pptrace.viewer.site import PUBLIC_UI

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from _typeshed import WriteableBuffer

    from pptrace.viewer.server import Server

__all__ = ["Handler"]

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
"""Content types of a UI's files; the system's own table may call a script plain text."""
_METHODS = "GET, HEAD, OPTIONS"


class Handler(BaseHTTPRequestHandler):
    """One connection, which carries one request."""

    server: Server
    server_version = "pptrace"
    sys_version = ""
    timeout = 60
    """Seconds that a client may leave its window full."""
    request_timeout = 5
    """Seconds from connecting to the end of the request's headers."""

    def setup(self) -> None:
        """Limit the time for the whole request: the timeout of a socket starts anew with each byte."""
        super().setup()
        self.rfile = io.BufferedReader(_Request(self.connection, self.request_timeout))

    def do_GET(self) -> None:
        """Send the trace, the part of it asked for, or a file of the UI."""
        with self.server.delivery.request():
            self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Send what ``GET`` would, without the body."""
        with self.server.delivery.request():
            self._answer(with_body=False)

    def do_OPTIONS(self) -> None:
        """Allow the browser's question before a request across origins."""
        with self.server.delivery.request():
            if self._file() is not None:
                self._allow()

    def end_headers(self) -> None:
        """Add what every answer carries."""
        if self.server.site.ui is None:
            self.send_header("Access-Control-Allow-Origin", PUBLIC_UI)
        self.send_header("Allow", _METHODS)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Stay silent: the terminal shows what happened to the trace, not each request."""

    def _file(self) -> Path | None:
        """Return the file that the request names; where it may not have one, answer so and return ``None``."""
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

    def _allow(self) -> None:
        self.send_response(HTTPStatus.NO_CONTENT)
        self.send_header("Access-Control-Allow-Methods", _METHODS)
        self.send_header("Access-Control-Allow-Headers", "Range")
        if self.headers.get("Access-Control-Request-Private-Network") == "true":
            self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def _answer(self, *, with_body: bool) -> None:
        path = self._file()
        if path is None:
            return
        try:
            file = path.open("rb")
        except OSError:  # gone since the server started
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file:
            self._send(path, file, with_body=with_body)

    def _send(self, path: Path, file: IO[bytes], *, with_body: bool) -> None:
        size = os.fstat(file.fileno()).st_size
        try:
            part = byte_range(self.headers.get("Range"), size)
        except IndexError:
            self._refuse_range(size)
            return
        start, stop = part or (0, size)
        self._send_head(path, start, stop, size if part else None)
        if with_body and self._send_body(file, start, stop - start) and path == self.server.site.trace:
            self.server.delivery.sent(start, stop, size=size)

    def _send_head(self, path: Path, start: int, stop: int, whole: int | None) -> None:
        self.send_response(HTTPStatus.OK if whole is None else HTTPStatus.PARTIAL_CONTENT)
        if whole is not None:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{whole}")
        # no Content-Encoding on a .gz: the UI is to have the bytes of the file
        kind = _BINARY if path == self.server.site.trace else _TYPES.get(path.suffix, _BINARY)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def _send_body(self, file: IO[bytes], start: int, count: int) -> bool:
        return count == 0 or self.connection.sendfile(file, start, count) == count

    def _refuse_range(self, size: int) -> None:
        self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
        self.send_header("Content-Range", f"bytes */{size}")
        self.send_header("Content-Length", "0")
        self.end_headers()


class _Request(io.RawIOBase):
    """What a client sends before its time is over."""

    def __init__(self, connection: socket, limit_s: float) -> None:
        self._connection, self._end_s = connection, time.monotonic() + limit_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Receive some bytes.

        Raises:
            TimeoutError: the time is over.
        """
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)
