"""Whether a browser can open here, and what to do on another machine where none can."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING

from pptrace.viewer.site import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["forward_command", "has_display", "open_browser"]


def has_display(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Tell whether a browser started here would be seen by whoever typed the command.

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
    """Return the command, for the machine with the browser, that leads its ``port`` to ours."""
    return f"ssh -L {port}:{HOST}:{port} {socket.gethostname()}"


def open_browser(address: str, otherwise: Callable[[], None]) -> None:
    """Open ``address`` in a new tab, beside the caller; call ``otherwise`` where that fails."""

    def attempt() -> None:
        # a browser in text mode keeps its caller waiting, who has a trace to serve meanwhile
        if not webbrowser.open_new_tab(address):
            otherwise()

    threading.Thread(target=attempt, daemon=True).start()
