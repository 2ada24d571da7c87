"""Plugins as providers of offers, fields of every offer, and commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from click import Command

API = 1
"""Version of the plugin interface; offers for another version are rejected."""

COMMANDS = {
    "simulate": "Simulate one training step: a summary, and traces with -o.",
    "costs": "Print the costs of actions by stage, and write them as an editable table.",
    "plan": "Find the best configuration of a model on a number of GPUs, with reasons.",
    "whatif": "Simulate the effect of single changes on a step.",
    "compare": "Compare schedules as formula, as table and simulated.",
    "crossover": "Find the values at which the faster of two schedules changes.",
    "diff": "Compare two steps, simulated or measured, action by action.",
    "replay": "Replay a measured step, and print how much of it the model explains.",
    "explain": "Print where the time of a step went, and what would shorten it.",
    "calibrate": "Fit costs and network to measured traces.",
    "sweep": "Simulate a grid of steps in parallel: a tidy table, and pictures.",
    "show": "Draw a schedule's idealised table.",
    "validate": "Check a schedule table in a file.",
    "open": "Open a trace in the Perfetto UI.",
    "network": "Show a cluster's links, its routes, and their use by a pipeline.",
    "convert": "Convert tables and traces between formats.",
    "plugins": "List plugins, what they offer, and what failed to load.",
    "new-plugin": "Write a schedule or network plugin to start from.",
    "schema": "Print the JSON Schema of configuration files.",
}
"""The core's commands and their help, whose names no plugin can offer; each is the ``command`` of a module in
``pptrace.cli``."""


class AnyOffer(Struct, frozen=True, kw_only=True, eq=False):
    """Fields of every offer."""

    name: str
    """The name that users type: lower-case words joined by hyphens."""
    summary: str
    """One line."""
    api: int = API
    """Version of the plugin interface that the offer is written for."""


class CommandOffer(AnyOffer, frozen=True, kw_only=True):
    """A command of ``pptrace``; ``pptrace --help`` shows its summary."""

    load: Callable[[], Command]
    """Returns the click command. It is called when the command runs, so its module is imported only then."""


Offer_co = TypeVar("Offer_co", covariant=True)


class Provider(Struct, frozen=True):
    """A plugin with the name of its entry point, and the distribution that installed it.

    >>> print(Provider(name="mine", distribution="pptrace-mine", version="1.0"))
    plugin 'mine' (pptrace-mine 1.0)
    """

    name: str
    """The entry point's name, or ``./mine.py:make`` for a schedule from a file."""
    distribution: str = ""
    """The distribution's name; empty for plugins without a distribution."""
    version: str = ""
    """The distribution's version; empty where unknown."""

    def __str__(self) -> str:
        if not self.distribution:
            return f"plugin '{self.name}'"
        return f"plugin '{self.name}' ({f'{self.distribution} {self.version}'.strip()})"


class Failure(Struct, frozen=True):
    """A plugin that failed to load, and the reason."""

    provider: Provider
    """The plugin."""
    reason: str
    """The reason, one line."""

    def __str__(self) -> str:
        return f"{self.provider}: {self.reason}"


class Provided(Struct, Generic[Offer_co], frozen=True, kw_only=True, eq=False):
    """An offer and its provider."""

    offer: Offer_co
    """The offer."""
    provider: Provider
    """The plugin."""

    @property
    def distribution(self) -> str:
        """The distribution's name."""
        return self.provider.distribution


class Offered(dict[str, Provided[Offer_co]]):
    """All offers of one kind by name; ``missing`` returns the offer of an unknown name or raises an error."""

    def __init__(
        self, known: Mapping[str, Provided[Offer_co]], missing: Callable[[str], Provided[Offer_co]]
    ) -> None:
        super().__init__(known)
        self._missing = missing

    def __missing__(self, name: str) -> Provided[Offer_co]:
        return self._missing(name)
