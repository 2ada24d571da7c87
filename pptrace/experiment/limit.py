"""A limit to every rank's memory, as settings that the costs of a configuration read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pptrace.config.quantity import exact_size, parse_size
from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pptrace.config.resolve import Resolved
    from pptrace.experiment.costs import Costs
    from pptrace.hooks.offers import CostModelOffer

__all__ = ["LIMITS", "limit_settings", "memory_limit"]

LIMITS = ("device.memory", "costs.capacity")
"""Keys under which cost models read what a device holds, each a parameter of its section."""


def memory_limit(text: object, source: str) -> int:
    """Read a limit such as ``76GiB``, in bytes.

    Raises:
        ConfigError: no size, or none above zero.
    """
    try:
        size = parse_size(text)
    except ConfigError as error:
        raise ConfigError(error.message, file=source) from None
    if not size:
        raise ConfigError("nothing fits into 0 bytes", file=source)
    return size


def limit_settings(resolved: Resolved, costs: Costs, size_bytes: int, source: str) -> dict[str, Any]:
    """Return the settings by which costs know of a limit.

    Args:
        resolved: the configuration as it was written.
        costs: its costs.
        size_bytes: the limit.
        source: what to call it in errors.

    Raises:
        ConfigError: the costs know no memory.
    """
    offer = costs.offer.offer
    key = next((key for key in LIMITS if _reads(offer, key)), None)
    if key is None:
        message = (
            f"costs {offer.name} know no memory: give a model and a device, or costs with bytes and a capacity"
        )
        raise ConfigError(message, file=source)
    device = costs.resolved.experiment.device
    given: dict[str, Any] = {}
    if key.startswith("device.") and resolved.experiment.device is None and device is not None:
        # A cluster's own device, which a setting below ``device`` would take the place of.
        own = {name: value for name, value in device.values.items() if f"device.{name}" in costs.resolved.origins}
        given = {"device.preset": device.preset} if device.preset else {f"device.{k}": v for k, v in own.items()}
    if key.startswith("device.") and device is not None and device.ranks:
        return {**given, **device.limited(size_bytes, resolved.experiment.device)}
    own_costs = costs.request.options.get("capacity")
    if key == "costs.capacity" and isinstance(own_costs, list):
        return {key: json.dumps([exact_size(min(size, size_bytes)) for size in own_costs])}
    return {**given, key: exact_size(size_bytes)}


def _reads(offer: CostModelOffer, key: str) -> bool:
    section, _, name = key.partition(".")
    parameters: type[BaseModel] | None = None
    if section == "device":
        parameters = offer.device() if offer.device else None
    elif offer.options:
        parameters = offer.options()
    return parameters is not None and name in parameters.model_fields
