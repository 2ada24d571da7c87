"""Sections whose keys plugins read: a preset with what changes it, or a name with its options beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from pptrace.config.quantity import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT_COSTS", "CostChoice", "Device", "NetworkChoice", "OpenSection", "Preset"]


DEFAULT_COSTS = "unit"
"""The cost model of a step without a model."""


class OpenSection(BaseModel):
    """A section that takes keys of plugins."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def values(self) -> dict[str, Any]:
        """What stands beside the section's own key, for a plugin to check."""
        return dict(self.__pydantic_extra__ or {})


class Preset(OpenSection):
    """A model or device: a preset's name, its parameters, or a preset with some changed."""

    preset: str | None = Field(
        default=None,
        min_length=1,
        description="A preset that a plugin offers, or a file of parameters (.yaml), whose name stands for it; "
        "keys beside it change it.",
    )


class Device(Preset):
    """A device, and those of other pipeline ranks where they are unlike."""

    ranks: dict[str, str | dict[str, Any]] | None = Field(
        default=None,
        min_length=1,
        description="Devices of some pipeline ranks, by rank or range of ranks: a preset's name, or parameters. "
        "With a preset among them they are a device of their own, else they change the one beside ranks, which "
        "all other ranks have.",
        examples=[{"4-7": "a100-sxm"}, {"3": {"compute_efficiency": 0.5}}],
    )

    def limited(self, size_bytes: int, written: Device | None = None) -> dict[str, str]:
        """Return settings by which no device has more memory than a limit; none without ``ranks``.

        Args:
            size_bytes: the limit.
            written: the section before presets' values were filled in, for settings as short as it is; this one
                has them filled in.
        """
        if not self.ranks:
            return {}

        def least(values: Mapping[str, Any]) -> str:
            return f"{min(size_bytes, parse_size(values['memory']))} B"

        ranks = {}
        for key, one in self.ranks.items():
            own = written.ranks.get(key, one) if written and written.ranks else one
            given = {"preset": own} if isinstance(own, str) else own
            ranks[key] = {**given, "memory": least(one if isinstance(one, dict) else self.values)}
        return {"device.memory": least(self.values), "device.ranks": json.dumps(ranks)}


class NetworkChoice(OpenSection):
    """A network by name, with its options beside the name."""

    name: str = Field(description="Network that a plugin offers, such as hockney; its options stand beside it.")


class CostChoice(OpenSection):
    """A cost model by name, with its options beside the name."""

    name: str | None = Field(
        default=None,
        description="Cost model that a plugin offers, its options beside it; unit unless given, or with a model "
        "the cost model that reads models.",
    )
