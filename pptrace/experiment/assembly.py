"""What is known of a run while its parts are built one after another."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from pptrace.config.flags import HEADLINES
from pptrace.config.open_sections import OpenSection
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydantic import BaseModel

    from pptrace.config.experiment import Experiment
    from pptrace.config.resolve import Resolved
    from pptrace.hooks.provider import Provided
    from pptrace.hooks.registry import Registry

__all__ = ["Assembly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The configuration and the plugins that took part; every step returns another one that knows more."""

    resolved: Resolved
    """The configuration, filled in further by every part."""
    registry: Registry
    """The plugins."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Distribution and version of each plugin that took part."""

    @property
    def experiment(self) -> Experiment:
        """What the configuration says."""
        return self.resolved.experiment

    def at(self, resolved: Resolved) -> Assembly:
        """Return this with a configuration that is filled in further."""
        return replace(self, resolved=resolved)

    def using(self, provided: Provided[Any]) -> Assembly:
        """Return this with a note of whose offer is used."""
        if not provided.distribution:
            return self
        return replace(self, plugins={**self.plugins, provided.distribution: provided.version})

    def options(
        self, key: str, model: Any, preset: Mapping[str, Any] | None = None
    ) -> tuple[Assembly, dict[str, Any]]:
        """Return checked options, and this with them filled in: for a parameter model its fields, else none.

        Raises:
            ConfigError: an option that is unknown, missing or of another type.
        """
        section = getattr(self.experiment, key)
        if model is not None:
            self._refuse_other_forms(key, section, model().model_fields)
            resolved, checked = self.resolved.options(key, model(), preset or {})
            return self.at(resolved), dict(checked.model_dump())
        apart = getattr(section, "options", None)
        for name in section.values if apart is None else apart:
            prefix = key if apart is None else f"{key}.options"
            called = section.policy if key == "p2p" else section.name
            own = apart is not None and name in type(section).model_fields
            message = f"it is no option: write {key}.{name}" if own else f"{called} takes no options: remove it"
            raise self.resolved.error(f"{prefix}.{name}", message)
        return self, {}

    def _refuse_other_forms(self, key: str, section: BaseModel | None, known: Collection[str]) -> None:
        """Refuse the keys that other sections have in place of this one's."""
        values = section.values if isinstance(section, OpenSection) else {}
        if "options" in values and "options" not in known:
            message = f"options stand beside {key}.{HEADLINES[key]}, without a key of their own"
            raise self.resolved.error(f"{key}.options", message)
        if "name" in values and "name" not in known:
            raise self.resolved.error(f"{key}.name", f"it is no parameter: write {key}.{HEADLINES[key]}")
