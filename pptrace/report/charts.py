"""Files of matplotlib charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.errors import OutputError, PptraceError
from pptrace.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INK, MUTED = "#1b1f24", "#8c959f"
"""Colours of text and of secondary elements."""

CYCLE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f", "#000000")
"""Colours for any colour vision: Okabe and Ito, Color Universal Design (2008),
https://jfly.uni-koeln.de/color/, with grey instead of yellow, which is too pale on white."""

_METADATA = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata without time and version, by suffix."""

_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "pptrace",  # ids in SVG are random without one
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def check_picture(path: Path) -> None:
    """Check the suffix of a picture and that matplotlib is installed.

    Raises:
        OutputError: another suffix than .png, .svg or .pdf.
        PptraceError: matplotlib is not installed.
    """
    if path.suffix.lower() not in _METADATA:
        raise OutputError(f"a picture ends in {', '.join(_METADATA)}", file=path)
    _check_library(f"{path}: ")


def write_picture(path: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Write the figure that ``draw`` fills; equal drawings give equal bytes.

    Args:
        path: a .png, .svg or .pdf file.
        size: width and height in inches.
        draw: gets a :class:`matplotlib.figure.Figure`.

    Raises:
        OutputError: another suffix, or a file that cannot be written.
        PptraceError: matplotlib is not installed.
    """
    check_picture(path)
    with replace_file(path) as temporary:
        save_picture(temporary, path.suffix.lower(), size, draw)


def save_picture(path: Path, suffix: str, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Write the figure that ``draw`` fills in the format of a suffix.

    Raises:
        PptraceError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    _check_library()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # a picture does not depend on the user's settings
        mpl.rcParams.update(_SETTINGS)
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(path, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])


def _check_library(where: str = "") -> None:
    try:
        import matplotlib as mpl  # noqa: F401 - whether it is there
    except ImportError as error:
        message = f"{where}pictures need matplotlib: pip install matplotlib (or 'pptrace[plot]')"
        raise PptraceError(message) from error
