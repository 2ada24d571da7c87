"""Who offers what: a provider is a plugin with its distribution, and each offer keeps its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["AnyOffer", "Failure", "Offered", "Provided", "Provider"]


class AnyOffer(Protocol):
    """What every offer has."""

    @property
    def name(self) -> str:
        """As users type it."""
        ...

    @property
    def summary(self) -> str:
        """One line."""
        ...

    @property
    def api(self) -> int:
        """The version of the plugin interface that it was written for."""
        ...


Offer_co = TypeVar("Offer_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A plugin, named as its entry point is, with the distribution that installed it.

    >>> print(Provider(name="mine", distribution="pptrace-mine", version="1.0"))
    plugin 'mine' (pptrace-mine 1.0)
    """

    name: str
    """The entry point's name, or ``./mine.py:make`` for a schedule from a file."""
    distribution: str = ""
    """The distribution's name; empty for what no distribution installed."""
    version: str = ""
    """The distribution's version; empty where unknown."""

    def __str__(self) -> str:
        if not self.distribution:
            return f"plugin '{self.name}'"
        return f"plugin '{self.name}' ({f'{self.distribution} {self.version}'.strip()})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A plugin that was left out, and why."""

    provider: Provider
    """The plugin."""
    reason: str
    """What went wrong, one line."""

    def __str__(self) -> str:
        return f"{self.provider}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provided(Generic[Offer_co]):
    """An offer and its provider."""

    offer: Offer_co
    """What is offered."""
    provider: Provider
    """Who offers it."""

    @property
    def plugin(self) -> str:
        """The plugin's name."""
        return self.provider.name

    @property
    def distribution(self) -> str:
        """The distribution's name."""
        return self.provider.distribution

    @property
    def version(self) -> str:
        """The distribution's version."""
        return self.provider.version


class Offered(dict[str, Provided[Offer_co]]):
    """All offers of one sort by name; a name that is not among them is looked for elsewhere, or an error."""

    def __init__(
        self, known: Mapping[str, Provided[Offer_co]], missing: Callable[[str], Provided[Offer_co]]
    ) -> None:
        super().__init__(known)
        self._missing = missing

    def __missing__(self, name: str) -> Provided[Offer_co]:
        return self._missing(name)
