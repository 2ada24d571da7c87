"""Tables that PyTorch's pipeline runtime executes, and the manifest of a run of one: what its stages did."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, ValidationError, convert, field, to_builtins

from pptrace.plugin import ConfigError, Kind, Registry, Schedule, ScheduleError, load, prepare, replace_file
from pptrace.steps.pytorch_tables import unsupported_parts
from pptrace_torch.scaled_model import ScaledModel  # noqa: TC001 - msgspec reads the types of fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


_LOWEST, _WAITS_SINCE = (2, 13), (2, 15)
_INSTALL = "pip install 'torch>=2.13'"


def require_torch() -> None:
    """Check that PyTorch is installed and recent enough, without importing it.

    Raises:
        ConfigError: it is missing or too old.
    """
    try:
        installed = version("torch")
    except PackageNotFoundError:
        raise ConfigError(f"PyTorch is not installed: {_INSTALL}") from None
    if _release_of(installed) < _LOWEST:
        lowest = ".".join(map(str, _LOWEST))
        raise ConfigError(f"PyTorch {installed} is too old, {lowest} or later runs tables: {_INSTALL}")


def _release_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def read_table(file: Path) -> Schedule:
    """Return the table of a file.

    Raises:
        PptraceError: the file cannot be read, or holds no valid table.
    """
    return prepare(load(None, flags={"schedule": str(file)}), Registry.load()).schedule


def check_table(table: Schedule) -> None:
    """Refuse a table that PyTorch would refuse, misread, or run with wrong gradients.

    Raises:
        ScheduleError: the first reason, and what to do.
    """
    for part, reason in unsupported_parts(table):
        raise ScheduleError(f"PyTorch cannot run this table, which has {part}: {reason}")


NAME = "run.manifest.json"
"""File of a run's folder that holds the manifest."""

_VERSION = 1


class StageTimes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times and message size of one stage and microbatch of the table."""

    forward_ns: int
    """Forward."""
    input_gradient_ns: int
    """Input gradient."""
    weight_gradient_ns: int
    """Weight gradient."""
    backward_ns: int
    """Whole backward."""
    message_bytes: int
    """Activations that the stage sends to the next one."""


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run's traces do not say.

    Format: a JSON object with these fields, ``version`` and no others. Times are integer nanoseconds.
    """

    table: tuple[tuple[str, ...], ...]
    """Cells of each rank's row: computations only."""
    microbatches: int
    """Microbatches of a step."""
    slices: int = 1
    """Slices of each microbatch's sequence; with several, the table's microbatches are slices."""
    stages: tuple[StageTimes, ...] = ()
    """Configured times of each stage; empty for real modules and for programs of users."""
    classes: tuple[tuple[StageTimes, ...], ...] = ()
    """Times of the stages for microbatches of further classes."""
    microbatch_class: tuple[int, ...] = ()
    """Class of each microbatch of the table: 0 for :attr:`stages`, ``c`` for ``classes[c - 1]``; empty: all 0."""
    model: ScaledModel | None = None
    """Modules of the stages; None for sleeping stages and for programs of users."""
    p2p: dict[str, Any] = field(default_factory=dict)
    """What issued the messages, as the section ``p2p`` of a configuration; empty where unknown."""
    backend: str
    """Communication backend: ``gloo`` or ``nccl``."""
    empty_input_gradient: bool
    """Whether the first stage's input gradient is empty, and its weight gradient the whole backward."""
    versions: dict[str, str]
    """Versions of pptrace, PyTorch and Python."""

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[str]], *, backend: str, slices: int = 1,
        policy_options: Mapping[str, Any] = MappingProxyType({"table_runtime": True}), **content: Any,
    ) -> Self:  # fmt: skip
        """Return the manifest of a table that runs here.

        ``policy_options`` are options of the policy ``torch`` without the release, by default those of
        :func:`load`; ``content`` has further fields.
        """
        schedule = Schedule.from_rows(rows)
        has_waits = _release_of(version("torch")) >= _WAITS_SINCE
        return cls(
            table=tuple(map(tuple, rows)), microbatches=schedule.microbatches // slices, slices=slices,
            backend=backend,
            p2p={
                "policy": "torch", "options": {**policy_options, **({"version": "2.15"} if has_waits else {})}
            },
            empty_input_gradient=bool(((schedule.kind == Kind.I) & (schedule.stage == 0)).any()),
            versions={
                "pptrace": version("pptrace"), "torch": version("torch"), "python": platform.python_version(),
            },
            **content,
        )  # fmt: skip

    def write(self, folder: Path) -> None:
        """Write the manifest into a run's folder.

        Raises:
            OutputError: it cannot be written.
        """
        text = json.dumps({"version": _VERSION, **to_builtins(self)}, indent=1)
        with replace_file(folder / NAME) as temporary:
            temporary.write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the manifest of a run's folder.

        Raises:
            ConfigError: the folder has none, or one that cannot be read.
        """
        file = folder / NAME
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop("version") != _VERSION:
                raise ConfigError("is of another version: run it again with this one", file=file)
            return convert(content, cls)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"cannot be read ({reason}): name a folder of pptrace torch run", file=file
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ValidationError):
            raise ConfigError("is not a manifest of a run: run it again", file=file) from None

    @property
    def schedule(self) -> Schedule:
        """The table."""
        return Schedule.from_rows(self.table)

    def times(self, stage: int, microbatch: int) -> StageTimes:
        """Return the configured times of a stage for a microbatch of the table."""
        number = self.microbatch_class[microbatch] if self.microbatch_class else 0
        return (self.stages, *self.classes)[number][stage]

    def whole_times(self, slices: int = 1) -> tuple[StageTimes, ...]:
        """Return the mean times of each stage for a microbatch, or for one of ``slices`` equal slices of it."""
        count = self.microbatches * self.slices
        parts = self.microbatches * slices
        return tuple(
            StageTimes(**{
                name: sum(getattr(self.times(stage, microbatch), name) for microbatch in range(count)) // parts
                for name in StageTimes.__struct_fields__
            })
            for stage in range(len(self.stages))
        )  # fmt: skip
