"""Standard output, progress and safe display in the terminal."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from pptrace.errors import OutputError
from pptrace.sanitize import printable, printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from pptrace.report.document import Document, Printed


_OLD_KEYS = {
    "actions.start_ns": "at_ns",
    "bottleneck": "lever",
    "causes": "culprits",
    "causes.kind": "sort",
    "check.simulated_ns": "own_ns",
    "divergence.local_ns": "own_ns",
    "divergence.predecessors": "behind",
    "divergence.start_ns": "at_ns",
    "links.equal_links": "alike",
    "places.slower": "behind",
    "policies.slower": "price",
    "rows.common_policy_arguments": "alike_arguments",
    "rows.common_policy_step_ns": "alike_step_ns",
    "rows.variant": "form",
}
"""Keys of JSON that had another name, and this name."""


def echo_json(values: Any) -> None:
    """Print values as JSON.

    Renamed keys also appear under their old names, and ``deprecated`` maps these to the new ones.
    """
    import json

    click.echo(json.dumps(_with_old_keys(values), indent=2, ensure_ascii=False))


def _with_old_keys(values: Any) -> Any:
    """Return a document or a list of documents with old keys, and which ones they are."""
    if isinstance(values, list):
        return [_with_old_keys(document) for document in values]
    old_keys: dict[str, str] = {}

    def renamed(value: Any, parent: str) -> Any:
        if isinstance(value, list):
            return [renamed(part, parent) for part in value]
        if not isinstance(value, dict):
            return value
        new = {}
        for key, part in value.items():
            path = f"{parent}{key}"
            new[key] = renamed(part, f"{path}.")
            if old := _OLD_KEYS.get(path):
                new[old], old_keys[f"{parent}{old}"] = new[key], path
        return new

    document = renamed(values, "")
    return {**document, "deprecated": old_keys} if old_keys else document


def echo_documents(documents: Document | Sequence[Document], *, as_json: bool) -> None:
    """Print one document, or a list of several, as JSON or as text for the terminal's width."""
    from shutil import get_terminal_size

    from pptrace.report.document import Document, plain, text_of

    if as_json:
        echo_json(plain(documents))
        return
    width = get_terminal_size().columns if sys.stdout.isatty() else None
    several = [documents] if isinstance(documents, Document) else documents
    click.echo("\n\n".join(text_of(document, width) for document in several))


def echo_result(result: Printed, *, as_json: bool) -> None:
    """Print a result as JSON or as its summary."""
    if as_json:
        echo_json(result.to_dict())
    else:
        click.echo(result.summary())


def report_written(paths: Iterable[Path | str]) -> None:
    """Print the names of written files on standard error."""
    for path in paths:
        click.echo(f"wrote {printable_line(str(path))}", err=True)


def echo_notes(notes: Iterable[object]) -> None:
    """Print notes on standard error."""
    for note in notes:
        click.echo(printable_line(f"note: {note}"), err=True)


@contextmanager
def status(first: str) -> Iterator[Callable[[str], None] | None]:
    """Show a line on standard error during a block; yield a function that changes it, None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(file=raw(sys.stderr)).status(first) as display:
        yield lambda text: display.update(escape(printable_line(text)))


class _Printable:
    """A text stream with escaped control characters."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream

    def write(self, text: str) -> int:
        """Write text, and return its length."""
        self.raw.write(printable(text))
        return len(text)

    def writelines(self, parts: Any) -> None:
        """Write texts."""
        for part in parts:
            self.write(part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


class _StandardOutput(io.FileIO):
    """The bytes of standard output; errors name it."""

    def write(self, content: Any, /) -> int:
        """Write bytes, and return how many.

        Raises:
            BrokenPipeError: the reader closed the pipe.
            OutputError: another error.
        """
        try:
            return super().write(content)
        except BrokenPipeError:
            raise
        except OSError as error:
            is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            reason = "is full: free some space, or write elsewhere"
            reason = reason if is_full else f"cannot be written: {error.strerror}"
            raise OutputError(f"standard output {reason}") from error


@contextmanager
def plain_streams() -> Iterator[None]:
    """Escape control characters on standard error and on terminals during a block.

    Output to files and programs is unchanged except for invalid UTF-8. It has its own descriptor: descriptor 1,
    for plugins and their programs, is a duplicate of standard error.
    """
    original = sys.stdout, sys.__stdout__, sys.stderr
    sys.stdout = sys.__stdout__ = results = _results(sys.stdout)  # type: ignore[misc,assignment] # for shutil
    sys.stderr = cast("TextIO", _Printable(sys.stderr or io.StringIO()))
    if results.isatty():
        sys.stdout = cast("TextIO", _Printable(results))
    try:
        yield
    finally:
        sys.stdout, sys.__stdout__, sys.stderr = original  # type: ignore[misc] # as above
        if results is not original[0]:
            with suppress(OSError, OutputError):  # the error has been reported
                results.close()


def _results(stdout: TextIO | None) -> TextIO:
    """Return a stream for results: a duplicate of Python's standard output.

    Descriptor 1 stays a duplicate of standard error until the process ends, as C code flushes its buffers then.
    """
    if not isinstance(stdout, io.TextIOWrapper):
        return stdout or io.StringIO()
    if stdout is not sys.__stdout__:
        stdout.reconfigure(errors="backslashreplace")
        return stdout
    _open_error_descriptor()
    duplicate = _StandardOutput(os.dup(1), "w")
    os.dup2(2, 1)
    return io.TextIOWrapper(
        duplicate if stdout.write_through else io.BufferedWriter(duplicate), stdout.encoding, "backslashreplace",
        line_buffering=stdout.line_buffering, write_through=stdout.write_through,
    )  # fmt: skip


def _open_error_descriptor() -> None:
    """Open descriptor 2 on the null device if it is closed, so that no file gets its number."""
    try:
        os.fstat(2)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def raw(stream: TextIO) -> TextIO:
    """Return the stream without escapes, for renderers that escape text themselves."""
    return stream.raw if isinstance(stream, _Printable) else stream
