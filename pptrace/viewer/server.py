"""A server on this machine alone, which ends by itself once the UI has the trace."""

from __future__ import annotations

import errno
import sys
import threading
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING

from pptrace.errors import PptraceError
from pptrace.viewer.delivery import Delivery
from pptrace.viewer.handler import Handler
from pptrace.viewer.site import HOST

if TYPE_CHECKING:
    import socket
    from typing import Any

    from pptrace.viewer.site import Site

__all__ = ["Server"]

_TICK_S = 0.1
_QUIET_S = 1.0
"""After the trace went out: time for a browser that asks twice."""
_QUIET_UI_S = 10.0
"""The same with an offline UI, which loads parts of itself when they are first needed."""
_MOST_CONNECTIONS = 32
"""Connections that are open at once, each with a thread; a browser opens six."""


class Server(ThreadingHTTPServer):
    """Serves one :class:`Site` on the loopback interface."""

    timeout = _TICK_S
    request_queue_size = 128
    """Connections that may wait to be accepted: a UI asks for dozens of files at once."""

    def __init__(self, site: Site, port: int) -> None:
        """Listen on ``port``, or on any free one for 0.

        Raises:
            PptraceError: the port is taken or not ours to open.
        """
        self.site, self.delivery = site, Delivery()
        self._slots = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise PptraceError(_why_not(error, site, port)) from None
        self.port: int = self.server_address[1]

    def server_bind(self) -> None:
        """Bind without looking the host's name up, which can take seconds off line."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def run(self, timeout_s: float) -> bool:
        """Serve until the trace is fetched and all is quiet, or ``timeout_s`` pass without a request.

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
        """Accept a connection; beyond the most at once it waits in the system's queue.

        Raises:
            OSError: too many connections are open, or this one is gone.
        """
        if not self._slots.acquire(timeout=_TICK_S):
            raise TimeoutError
        try:
            return super().get_request()
        except OSError:
            self._slots.release()
            raise

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection, so that another one may be open."""
        super().shutdown_request(request)
        self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Let a browser hang up; any other error is a bug and shows its traceback."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # typeshed's private alias


def _why_not(error: OSError, site: Site, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        what = f"port {port} is in use, perhaps by another pptrace open or trace_processor --httpd; end that one"
    else:
        what = f"port {port} cannot be opened: {error.strerror}"
    if site.ui is None:
        return f"{what} (the public UI fetches from no other port; with --ui DIR, --port takes any)"
    return f"{what}, or choose another with --port (0 takes any free one)"
