"""Offers of plugins by kind, except commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field

from pptrace.plugins.providers import AnyOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor
    from fractions import Fraction
    from pathlib import Path

    from pydantic import BaseModel

    from pptrace.network.contract import Network
    from pptrace.plugins.requests import CostRequest, ExecutorRequest, NetworkRequest, ScheduleRequest
    from pptrace.report.document import Section
    from pptrace.steps.actions import Action
    from pptrace.steps.message_calls import Policy
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload
    from pptrace.timeline.measurement import ImportRequest, Measurement, Step
    from pptrace.timeline.timeline import Timeline

Rows: TypeAlias = "Sequence[Sequence[str | Action | None]]"


class ScheduleOffer(AnyOffer, frozen=True, kw_only=True):
    """A pipeline schedule, by its paper's name."""

    build: Callable[[ScheduleRequest], Schedule | Rows]
    """Returns the table: a :class:`~pptrace.steps.schedule.Schedule`, or one list of actions per rank."""
    options: Callable[[], type[BaseModel]] | None = None
    """Returns the parameter model of its options; called on first use."""
    check: Callable[[ScheduleRequest], None] | None = None
    """Raises :class:`~pptrace.errors.ConstraintError` for unsupported sizes."""
    bubble: Callable[[ScheduleRequest], Fraction | None] | None = None
    """Closed form of idle time over ranks times step time, for backward = 2 forward; None where unknown."""
    bubble_is_exact: bool = True
    """Whether tables have exactly this bubble; false for a paper's approximate formula."""
    peak_activations: Callable[[ScheduleRequest], Sequence[Fraction] | None] | None = None
    """Closed form of each rank's peak activations, in units of one stage and microbatch; None where unknown."""
    parts: Callable[[ScheduleRequest], int] | None = None
    """Returns the number of equal-sized parts into which it divides each microbatch; 1 by default."""
    part_times: Callable[[ScheduleRequest], Sequence[Fraction]] | None = None
    """Returns each part's share of a microbatch's time, in order; equal shares by default."""
    chunks: Callable[[ScheduleRequest], int] | None = None
    """Returns the default number of chunks per rank; the request's number by default."""
    has_pairs: bool = False
    """Whether its tables may have overlapped pairs, which hide communication where costs have segments. Plans and
    ``compare --memory`` read it before they build a table."""
    weight_versions: int = 1
    """Versions of the weights that a rank holds."""
    only_by_name: bool = False
    """Whether advice and plans take it only by its name, since it changes more than the order: gradients are those
    of older weights, or the state of stages is in host memory."""
    searches: bool = False
    """Whether its table is the result of a search, which may be slow; comparisons with all schedules skip it."""
    constraints: str = ""
    """The supported sizes as one sentence."""
    source: str = ""
    """The paper or code that describes it."""


class NetworkOffer(AnyOffer, frozen=True, kw_only=True):
    """A network model."""

    build: Callable[[NetworkRequest], Network]
    options: Callable[[], type[BaseModel]] | None = None


class MessagePolicyOffer(AnyOffer, frozen=True, kw_only=True):
    """A policy that issues the messages between pipeline ranks: a value of ``p2p.policy``."""

    build: Callable[[Schedule, Mapping[str, Any]], Policy]
    """Returns the policy for a table and validated options: a core policy, or a policy with a program that places
    every message. Raises :class:`~pptrace.errors.ConstraintError` for a table whose messages it cannot place, or
    for options that this table does not support."""
    options: Callable[[], type[BaseModel]] | None = None
    source: str = ""
    """The code or paper that describes it."""


class CostModelOffer(AnyOffer, frozen=True, kw_only=True):
    """A model of the time and memory of a step's actions."""

    build: Callable[[CostRequest], Workload]
    options: Callable[[], type[BaseModel]] | None = None
    model: Callable[[], type[BaseModel]] | None = None
    """Returns the parameter model of ``CostRequest.model``; None if it reads no model."""
    device: Callable[[], type[BaseModel]] | None = None
    """Returns the parameter model of ``CostRequest.device``; None if it reads no device."""


class ModelOffer(AnyOffer, frozen=True, kw_only=True):
    """A preset of a model: the values that a user would otherwise write under ``model:``."""

    values: Mapping[str, Any]
    source: str = ""


class DeviceOffer(AnyOffer, frozen=True, kw_only=True):
    """A preset of a device: the values that a user would otherwise write under ``device:``."""

    values: Mapping[str, Any]
    source: str = ""


class StackRule(Struct, frozen=True, kw_only=True):
    """Values of a software stack for the configurations that match."""

    set: Mapping[str, Any]
    """Values by configuration key, such as ``costs.gradients``. Keys that the user writes override them."""
    source: str
    """The file, flag or document that a value comes from, or ``fitted to`` and the data."""
    when: Mapping[str, Any] = field(default_factory=dict)
    """Conditions by configuration key, all of which hold: a value, a pattern with ``*``, a list of either, or a
    range as ``{"min": 2}`` or ``{"max": 8}``. The keys include those of presets and of earlier rules."""
    unless: Mapping[str, Any] = field(default_factory=dict)
    """Conditions of which none holds."""


class StackOffer(AnyOffer, frozen=True, kw_only=True):
    """A preset of a software stack: what a release of a framework does to the time and memory of a step."""

    rules: Sequence[StackRule] = ()
    """Rules in order; a later rule overrides an earlier one."""
    inherits: str = ""
    """The stack whose rules come first; empty for none."""
    framework: str = ""
    """The framework that runs it, for which ``pptrace plan`` prints arguments: ``megatron``, ``torchtitan`` or
    ``pytorch``; by default that of the stack that it inherits."""


class ClusterOffer(AnyOffer, frozen=True, kw_only=True):
    """A preset of a cluster: the values that a user would otherwise write under ``cluster:``."""

    values: Mapping[str, Any]
    """``node`` and ``fabric`` (each a network's name and options), ``gpus`` and ``nics`` per node, ``nodes``."""
    device: str | Mapping[str, Any] = ""
    """The cluster's device: a preset's name or a device's values; default of configurations without a device."""
    source: str = ""


class ExecutorOffer(AnyOffer, frozen=True, kw_only=True):
    """An executor for the points of a sweep."""

    build: Callable[[ExecutorRequest], Executor]
    """Returns a new executor, also after one broke; ``shutdown(wait=False)`` ends an executor immediately."""
    options: Callable[[], type[BaseModel]] | None = None
    in_process: bool = False
    """Whether calls run in this process; else functions, arguments and results have to be pickled."""


class ExporterOffer(AnyOffer, frozen=True, kw_only=True):
    """A trace format that pptrace writes."""

    suffixes: tuple[str, ...]
    """File name endings that choose it, such as ``.pftrace``; callers handle a trailing ``.gz``."""
    write: Callable[[Timeline, Path, Mapping[str, Any]], None]
    """Writes the timeline to a path (a temporary name; the caller renames it)."""
    takes_rank: bool = False
    """Whether ``write`` has an option ``rank`` and writes only that rank; otherwise callers trim the timeline."""
    file_per_rank: bool = False
    """Whether a file holds one rank, so that callers write ``step.et`` as ``step.0.et``, ``step.1.et``, ..."""


class ImporterOffer(AnyOffer, frozen=True, kw_only=True):
    """A trace format that pptrace reads."""

    recognises: Callable[[Path, bytes], bool]
    """Whether a file is of this format, from its path and first 4096 (decompressed) bytes.

    The bytes of Chrome JSON reach 4096 bytes beyond the start of its events.
    """
    read: Callable[[Sequence[Path]], Timeline] | None = None
    """Reads the files of one step that pptrace wrote into a timeline."""
    measure: Callable[[Sequence[Path], ImportRequest], Measurement] | None = None
    """Reads a run's files into all its measured steps and lists unknown data. An importer has this or ``read``."""
    advise: Callable[[Path], str] | None = None
    """Returns what a file is that no importer recognises, and what to do; empty for an unknown file."""


class ExplanationPart(Struct, frozen=True, kw_only=True, eq=False):
    """Sections, values and pictures that an analysis adds to the explanation of a measured step."""

    sections: tuple[Section, ...] = ()
    """Sections before those of the step."""
    values: object = None
    """Values for ``--json``, under the name of the offer; None for no entry."""
    write_picture: Callable[[Path], None] | None = None
    """Writes a picture (.png, .svg, .pdf); None for no picture."""
    timeline: Callable[[], Timeline] | None = None
    """Returns the step that ``-o`` writes as a trace; None for no step."""
    notes: tuple[str, ...] = ()
    """Descriptions of data that could not be analysed; each is a line on the standard error."""


class ExplanationOffer(AnyOffer, frozen=True, kw_only=True):
    """An analysis of measured runs for ``pptrace explain``."""

    explain: Callable[[Measurement, Step], ExplanationPart | None]
    """Analyses a run, of which one step is explained; returns None for a run that it does not apply to."""
