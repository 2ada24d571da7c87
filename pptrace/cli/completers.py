"""Shell completion of words, of names that plugins offer, and of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from click import Context, Parameter

    Items: TypeAlias = list[CompletionItem[str]]
    Completer: TypeAlias = Callable[[Context, Parameter, str], Items]


def files(_context: Context, _parameter: Parameter, start: str) -> Items:
    """Return the item with which click makes the shell complete a file name."""
    return [CompletionItem(start, "file")]


def words(*known: str) -> Completer:
    """Return a completer of words, in their order."""
    return lambda _context, _parameter, start: [CompletionItem(word) for word in known if word.startswith(start)]


def offers(kind: str, *, or_file: bool = False) -> Completer:
    """Return a completer of names that plugins offer.

    Args:
        kind: the registry's attribute, such as ``schedules``.
        or_file: whether the value can also be a file. Its item comes first, because click's script for bash drops
            all items before it; bash then completes file names where no name matches.
    """

    def complete(context: Context, parameter: Parameter, start: str) -> Items:
        from pptrace.errors import PptraceError
        from pptrace.plugins.registry import Registry

        try:
            known = getattr(Registry.load(warn=lambda _: None), kind)
        except PptraceError:  # completion shows no errors of plugins
            known = {}
        names = [
            CompletionItem(name, help=known[name].offer.summary)
            for name in sorted(known)
            if name.startswith(start)
        ]
        return (files(context, parameter, start) if or_file else []) + names

    return complete


def listed_offers(kind: str) -> Completer:
    """Return a completer of names that plugins offer, in a list separated by commas."""
    complete_name = offers(kind)

    def complete(context: Context, parameter: Parameter, start: str) -> Items:
        before, comma, last = start.rpartition(",")
        return [
            CompletionItem(f"{before}{comma}{item.value}", help=item.help)
            for item in complete_name(context, parameter, last)
        ]

    return complete
