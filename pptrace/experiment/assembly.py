"""What is known of a run while its parts are built one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.config.experiment import Experiment
    from pptrace.config.resolve import Resolved
    from pptrace.hooks.provider import Provided
    from pptrace.hooks.registry import Registry

__all__ = ["Assembly"]


@dataclass(slots=True)
class Assembly:
    """The configuration and the plugins that took part, as they become known."""

    resolved: Resolved
    """The configuration, filled in further by every part."""
    registry: Registry
    """The plugins."""
    plugins: dict[str, str]
    """Distribution and version of each plugin that took part."""

    @property
    def experiment(self) -> Experiment:
        """What the configuration says."""
        return self.resolved.experiment

    def uses(self, provided: Provided[Any]) -> Any:
        """Note whose offer is used, and return it."""
        if provided.distribution:
            self.plugins[provided.distribution] = provided.version
        return provided.offer

    def options(self, key: str, model: Any, preset: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return checked options: for a parameter model its fields, else nothing may be given."""
        if model is None:
            section = getattr(self.experiment, key)
            extra = section.options if key == "schedule" else section.values
            if extra:
                name = next(iter(extra))
                prefix = "schedule.options" if key == "schedule" else key
                raise self.resolved.error(f"{prefix}.{name}", f"{section.name} takes no options: remove it")
            return {}
        self.resolved, checked = self.resolved.options(key, model(), preset or {})
        return dict(checked.model_dump())
