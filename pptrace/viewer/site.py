"""What may be served: one trace, and the files of an offline UI if there is one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HOST", "PUBLIC_PORT", "PUBLIC_UI", "Site"]

PUBLIC_UI = "https://ui.perfetto.dev"
HOST = "127.0.0.1"
PUBLIC_PORT = 9001
"""The only local port that the public UI's content security policy lets it fetch from."""
_HOST_NAMES = (HOST, "localhost")
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
    >>> site = Site(trace=Path("out/step 1&2.pftrace"))
    >>> site.page(9001)
    'https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/step_1_2.pftrace'
    """

    trace: Path
    """The trace file."""
    arranged: bool = False
    """Whether the UI is to pin the pipeline's tracks and open the first rank's, as traces of ours have them."""
    view: tuple[int, int] | None = None
    """What the UI shows first, from and to, in the trace's nanoseconds; all of it where ``None``."""
    ui: Path | None = None
    """The folder of an offline UI; the public one where ``None``."""

    @property
    def name(self) -> str:
        """The trace's path on the server: its name, in letters that no part of a URL escapes."""
        name = _UNSAFE.sub("_", self.trace.name).strip(".") or "trace"
        while self.ui is not None and (self.ui / name).exists():
            name = f"trace-{name}"
        return name

    def page(self, port: int) -> str:
        """Return the address at which the UI opens and fetches the trace from ``port``."""
        server = f"http://{HOST}:{port}"
        address = f"{server if self.ui else PUBLIC_UI}/#!/?url={server}/{self.name}"
        if self.view is not None:
            address += f"&visStart={self.view[0]}&visEnd={self.view[1]}"
        if not self.arranged:
            return address
        return f"{address}&startupCommands={quote(json.dumps(_COMMANDS, separators=(',', ':')))}"

    def find(self, target: str) -> Path | None:
        """Return the file that a request's target names; ``None`` where it may not be served."""
        try:
            path = unquote(urlsplit(target).path, errors="strict").removeprefix("/")
        except ValueError:
            return None
        if path == self.name:
            return self.trace
        return None if self.ui is None else _inside(self.ui, path or "index.html")

    def trusts(self, host: str | None, origin: str | None) -> bool:
        """Tell whether a request comes by this machine's own name, and from a page of this UI.

        Another name is a page that rebinds its own to this machine; another origin is a page that
        must not even learn that the trace was there.
        """
        if host is None or _host_name(f"http://{host}") not in _HOST_NAMES:
            return False
        if origin is None or self.ui is None:
            return origin in {None, PUBLIC_UI}
        return _host_name(origin) in _HOST_NAMES


def _host_name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


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
