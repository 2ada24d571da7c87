"""The executor of a sweep, as the user names it: ``processes``, or ``NAME:key=value`` with options of its own."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pptrace.config.yaml_file import parse_value
from pptrace.errors import ConfigError
from pptrace.hooks.build import checked_options
from pptrace.hooks.call import call_plugin, plugin_error
from pptrace.model.request import ExecutorRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.hooks.offers import ExecutorOffer
    from pptrace.hooks.provider import Provided
    from pptrace.hooks.registry import Registry

__all__ = ["ExecutorChoice", "choose"]

_KEY = "executor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorChoice:
    """What the points of a sweep run on."""

    provided: Provided[ExecutorOffer]
    """The offer, and whose it is."""
    request: ExecutorRequest
    """What each executor is built from."""

    @property
    def in_process(self) -> bool:
        """Whether points run in this process."""
        return self.provided.offer.in_process

    def check_registry(self, *, shared: bool) -> None:
        """Refuse a registry of the caller's own where other processes would not have it.

        Raises:
            ConfigError: they would not.
        """
        if shared and not self.in_process:
            message = "runs in other processes, which load plugins anew: take serial, or no registry"
            raise ConfigError(f"{self.provided.offer.name} {message}", key=_KEY)

    def start(self) -> Executor:
        """Return an executor.

        Raises:
            PluginError: the plugin raised, or returned no executor.
        """
        provider, offer = self.provided.provider, self.provided.offer
        built: object = call_plugin(provider, offer.build, self.request)
        if not isinstance(built, Executor):
            message = f"returned {built!r:.60}, expected a concurrent.futures.Executor"
            raise plugin_error(provider, f"executor {offer.name!r} {message}")
        return built


def choose(choice: str | Mapping[str, Any], registry: Registry, workers: int) -> ExecutorChoice:
    """Return the executor that a user names, its options checked.

    Args:
        choice: ``NAME``, ``NAME:key=value:key=value``, or a mapping with ``name`` and options.
        registry: the plugins.
        workers: how many points run at once.

    Raises:
        PluginError: no plugin offers it.
        ConfigError: an option that it does not take.
    """
    name, given = _read(choice) if isinstance(choice, str) else _name_and_options(choice)
    provided = registry.executors[name]
    options = checked_options(provided, given, _KEY)
    return ExecutorChoice(provided=provided, request=ExecutorRequest(workers=workers, options=options))


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options; what has no equals sign belongs to the value before it, as in an address."""
    name, *parts = text.split(":")
    settings: list[str] = []
    for part in parts:
        if "=" in part:
            settings.append(part)
        elif settings:
            settings[-1] += f":{part}"
        else:
            raise ConfigError(f"{part!r} is no option: write {name}:key=value", key=_KEY)
    pairs = (setting.partition("=") for setting in settings)
    return name, {key.strip(): parse_value(value, f"--executor {text}") for key, _, value in pairs}


def _name_and_options(choice: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if not isinstance(choice.get("name"), str):
        raise ConfigError("missing: name the executor, such as processes", key=f"{_KEY}.name")
    return choice["name"], {key: value for key, value in choice.items() if key != "name"}
