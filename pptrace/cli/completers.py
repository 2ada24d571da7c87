"""What the shell completes: names that plugins offer, words, and files by their suffix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from click import Context, Parameter

    Completer: TypeAlias = Callable[[Context, Parameter, str], list[CompletionItem[str]]]

__all__ = ["files", "listed_offers", "offers", "words"]


def files(*suffixes: str) -> Completer:
    """Return a completer of files with one of the suffixes, or of all files."""
    item = CompletionItem(" ".join(suffixes), "suffixes") if suffixes else CompletionItem("", "file")
    return lambda *_: [item]


def words(*known: str) -> Completer:
    """Return a completer of words, in their order."""
    return lambda _context, _parameter, start: [CompletionItem(word) for word in known if word.startswith(start)]


def offers(sort: str, *suffixes: str) -> Completer:
    """Return a completer of what plugins offer, and of files with one of the suffixes.

    Args:
        sort: the registry's attribute, such as ``schedules``.
        suffixes: of files that may stand where a name does.
    """

    def complete(_context: Context, _parameter: Parameter, start: str) -> list[CompletionItem[str]]:
        from pptrace.errors import PptraceError
        from pptrace.plugins.registry import Registry

        try:
            known = getattr(Registry.load(warn=lambda _: None), sort)
        except PptraceError:  # a prompt is no place to say what is wrong with a plugin
            known = {}
        items = [
            CompletionItem(name, help=known[name].offer.summary)
            for name in sorted(known)
            if name.startswith(start)
        ]
        return items + [CompletionItem(" ".join(suffixes), "suffixes")] * bool(suffixes)

    return complete


def listed_offers(sort: str) -> Completer:
    """Return a completer of what plugins offer, in a list separated by commas."""
    one = offers(sort)

    def complete(context: Context, parameter: Parameter, start: str) -> list[CompletionItem[str]]:
        before, comma, last = start.rpartition(",")
        return [
            CompletionItem(f"{before}{comma}{item.value}", help=item.help)
            for item in one(context, parameter, last)
        ]

    return complete
