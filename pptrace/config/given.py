"""What callers from Python give: a configuration as a file or a mapping, and flags as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pptrace.config.resolve import document_of
from pptrace.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection

    from pptrace.config.yaml_file import Document

__all__ = ["Config", "check_arguments", "given_document"]

Config: TypeAlias = str | Path | Mapping[str, Any]
"""A YAML file, or the mapping that it would hold."""


def given_document(config: Config | None) -> Document:
    """Return what a configuration holds.

    Raises:
        ConfigError: no file's name and no mapping, or a file that cannot be read.
    """
    if config is None or isinstance(config, Mapping):
        return document_of(config)
    if not isinstance(config, str | PathLike):
        raise ConfigError(f"must be a file's name or a mapping, not {config!r:.60}", key="config")
    return document_of(Path(config))


def check_arguments(values: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse arguments that are no flags.

    Raises:
        ConfigError: the first such argument, with the nearest flag.
    """
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigError(f"no such argument{nearest(unknown[0], known)}", key=unknown[0])
