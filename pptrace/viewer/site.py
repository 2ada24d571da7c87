"""What may be served: one trace, and the files of an offline UI if there is one, behind a secret token."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["HOST", "PUBLIC_PORT", "PUBLIC_UI", "Site"]

PUBLIC_UI = "https://ui.perfetto.dev"
HOST = "127.0.0.1"
PUBLIC_PORT = 9001
"""The only local port that the public UI's content security policy lets it fetch from."""
_HOST_NAMES = (HOST, "localhost")
_HOST_HEADER = re.compile(r"(\[[0-9a-f:.]+\]|[\w.~%!$&'()*+,;=-]+)(?::\d*)?", re.ASCII | re.IGNORECASE)
"""Name and port of a ``Host`` header (RFC 9110, section 7.2)."""
_COMMANDS = (
    {"id": "dev.perfetto.PinTracksByRegex", "args": [r"^(critical path|rank (0*[0-9]|0*1[0-5]))( \(\d+\))?$"]},
    {"id": "dev.perfetto.ExpandTracksByRegex", "args": [r"^rank 0+( \(\d+\))?$"]},
)
"""What the UI does first; viewers that do not know them skip them. Sixteen ranks leave room for what is below."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One trace under one name, and perhaps an offline UI around it.

    >>> from pathlib import Path
    >>> site = Site(trace=Path("out/step 1&2.pftrace"), token="c5n0")
    >>> site.page(9001)
    'https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/c5n0/step_1_2.pftrace'
    """

    trace: Path
    """The trace file."""
    arranged: bool = False
    """Whether the UI is to pin the pipeline's tracks and open the first rank's, as traces of ours have them."""
    view: tuple[int, int] | None = None
    """What the UI shows first, from and to, in the trace's nanoseconds; all of it where ``None``."""
    ui: Path | None = None
    """The folder of an offline UI; the public one where ``None``."""
    token: str = field(default_factory=secrets.token_urlsafe)
    """The first part of every path that is served. Other users of this machine do not know it."""

    @property
    def name(self) -> str:
        """The trace's path below the token: its name, in letters that no part of a URL escapes."""
        name = _UNSAFE.sub("_", self.trace.name).strip(".") or "trace"
        while self.ui is not None and (self.ui / name).exists():
            name = f"trace-{name}"
        return name

    def page(self, port: int) -> str:
        """Return the address at which the UI opens and fetches the trace from ``port``."""
        served = f"http://{HOST}:{port}/{self.token}"
        address = f"{served if self.ui else PUBLIC_UI}/#!/?url={served}/{self.name}"
        if self.view is not None:
            address += f"&visStart={self.view[0]}&visEnd={self.view[1]}"
        if not self.arranged:
            return address
        return f"{address}&startupCommands={quote(json.dumps(_COMMANDS, separators=(',', ':')))}"

    def find(self, target: str) -> Path | None:
        """Return the file that a request's target names; ``None`` where there is no such file to serve.

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
        return None if self.ui is None else _inside(self.ui, name or "index.html")

    def check_source(self, hosts: Sequence[str], origin: str | None) -> None:
        """Do nothing for a request that names this machine, and comes from a page of this UI or from no page.

        Another host name belongs to a page that rebinds its own name to this machine. A page of another
        origin must not even learn that the trace is there.

        Args:
            hosts: the values of all ``Host`` headers.
            origin: the value of the ``Origin`` header.

        Raises:
            ValueError: there is not exactly one valid ``Host`` header.
            PermissionError: the host or the origin is another one.
        """
        host = _HOST_HEADER.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            raise ValueError("a request needs exactly one valid Host header")
        ui = PUBLIC_UI if self.ui is None else f"http://{host[0]}"
        if host[1].lower() not in _HOST_NAMES or origin not in {None, ui}:
            raise PermissionError("the host or the origin is not that of the viewer")


def _inside(folder: Path, path: str) -> Path | None:
    parts = path.split("/")
    if any(part in {"", ".", ".."} or "\\" in part or "\0" in part for part in parts):
        return None
    try:
        root = folder.resolve()
        found = root.joinpath(*parts).resolve()
        return found if found.is_relative_to(root) and found.is_file() else None
    except (OSError, RuntimeError):  # a name too long, links that go in a circle
        return None
