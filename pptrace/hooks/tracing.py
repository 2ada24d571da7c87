"""Print every hook call with what came of it, for authors of plugins."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, TextIO

from pptrace.hooks.call import MOST_OFFERS, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pluggy import HookImpl, PluginManager, Result

__all__ = ["trace_calls"]


def trace_calls(manager: PluginManager, stream: TextIO) -> None:
    """Print one line per hook call of ``manager`` to ``stream``: the hook, the plugin and its offers."""

    def before(hook: str, impls: Sequence[HookImpl], arguments: Mapping[str, object]) -> None:
        """Print nothing: the line tells call and result together."""

    def after(
        outcome: Result[list[object]], hook: str, impls: Sequence[HookImpl], arguments: Mapping[str, object]
    ) -> None:
        del arguments
        plugins = ", ".join(impl.plugin_name for impl in impls)
        print(f"pptrace: {hook}() of {plugins} -> {_told(outcome)}", file=stream)

    manager.add_hookcall_monitoring(before, after)


def _told(outcome: Result[list[object]]) -> str:
    """Say what a call gave; a generator is run for that and its list put in its place."""
    if outcome.exception is not None:
        return one_line(outcome.exception)
    try:
        results = [
            list(islice(item, MOST_OFFERS + 1)) if isinstance(item, Iterator) else item
            for item in outcome.get_result()
        ]
    except Exception as error:  # noqa: BLE001 - a plugin's generator may raise anything
        outcome.force_exception(error)
        return one_line(error)
    outcome.force_result(results)
    offers = [offer for item in results for offer in (item if isinstance(item, list | tuple) else [item])]
    return ", ".join(str(getattr(offer, "name", repr(offer))) for offer in offers) or "nothing"
