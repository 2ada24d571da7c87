"""Guard a network that a plugin built: what its paths raise, or say wrongly, is the plugin's error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.errors import PluginError
from pptrace.network.contract import Links, Paths
from pptrace.network.links import check_paths
from pptrace.plugins.guards import plugin_code, plugin_error

if TYPE_CHECKING:
    from pptrace.network.contract import Network
    from pptrace.plugins.offers import Provider
    from pptrace.steps.columns import Int32s

__all__ = ["GuardedNetwork"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedNetwork:
    """A plugin's network, asked on its behalf."""

    provider: Provider
    """The plugin."""
    name: str
    """The name under which it is offered."""
    network: Network
    """What the plugin built."""

    @property
    def links(self) -> Links:
        """All shared links.

        Raises:
            PluginError: the plugin raised, or what it returned are no links.
        """
        name = f"links of network {self.name!r}"
        with plugin_code(self.provider, type(self.network), name=name):
            links: object = self.network.links
        if not isinstance(links, Links):
            raise plugin_error(self.provider, f"{name} are {links!r:.60}, expected Links")
        return links

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return the paths from each ``src`` to each ``dst`` rank.

        Raises:
            PluginError: the plugin raised, or what it returned are no paths of these pairs.
        """
        name = f"paths of network {self.name!r}"
        with plugin_code(self.provider, self.network.paths, name=name):
            paths: object = self.network.paths(src, dst)
        if not isinstance(paths, Paths):
            raise plugin_error(self.provider, f"{name} returned {paths!r:.60}, expected Paths")
        try:
            check_paths(paths, src.size, len(self.network.links))
        except PluginError as error:
            raise plugin_error(self.provider, str(error)) from error
        return paths
