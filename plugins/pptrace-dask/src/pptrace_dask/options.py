"""Options of the executor."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class DaskOptions(BaseModel):
    """Where the workers are."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    scheduler: str | None = None
    """Address of a scheduler that runs already, such as tcp://10.0.0.1:8786; processes here unless given."""
    timeout: Annotated[float, Field(gt=0, le=3600)] = 30
    """Seconds to wait for the scheduler and its first worker."""
