"""The core's own plugin: what has no content of its own, offered through the hooks that others use."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pptrace.config.choices import PolicyName
from pptrace.export import gantt, kineto, perfetto
from pptrace.hooks.offers import (
    CostModelOffer,
    ExecutorOffer,
    ExporterOffer,
    ImporterOffer,
    MessagePolicyOffer,
    NetworkOffer,
)
from pptrace.hooks.specs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Executor

    from pydantic import BaseModel

    from pptrace.model.request import CostRequest, ExecutorRequest, NetworkRequest
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network
    from pptrace.schedule.policy import Policy
    from pptrace.schedule.table import Schedule

__all__ = [
    "pptrace_cost_models",
    "pptrace_executors",
    "pptrace_exporters",
    "pptrace_importers",
    "pptrace_message_policies",
    "pptrace_networks",
]


@hookimpl
def pptrace_networks() -> Iterable[NetworkOffer]:
    """Offer the networks in which messages never meet."""
    yield NetworkOffer(
        name="hockney",
        summary="Every pair of ranks alone: overhead + bytes / bandwidth + latency.",
        build=_hockney,
        options=_hockney_options,
    )
    yield NetworkOffer(name="ideal", summary="Messages take no time.", build=_ideal)


@hookimpl
def pptrace_message_policies() -> Iterable[MessagePolicyOffer]:
    """Offer the ways to issue messages that are no framework's; their settings stand in the section itself."""
    for word in PolicyName:
        summary = f"{word.means[:1].upper()}{word.means[1:]}."
        yield MessagePolicyOffer(name=word.value, summary=summary, build=partial(_policy, word))


@hookimpl
def pptrace_cost_models() -> Iterable[CostModelOffer]:
    """Offer costs that need no model of anything."""
    yield CostModelOffer(
        name="unit",
        summary="Abstract units of time: forward 1, backward 2 unless said otherwise.",
        build=_unit,
        options=_unit_options,
    )
    yield CostModelOffer(
        name="table",
        summary="Times and bytes per stage, as written or as calibrated.",
        build=_table,
        options=_table_options,
    )


@hookimpl
def pptrace_executors() -> Iterable[ExecutorOffer]:
    """Offer this machine's processes, and this process alone."""
    yield ExecutorOffer(name="processes", summary="Processes on this machine, one per core.", build=_processes)
    yield ExecutorOffer(
        name="serial", summary="This process, one point after another.", build=_serial, in_process=True
    )


@hookimpl
def pptrace_exporters() -> Iterable[ExporterOffer]:
    """Offer the writers of both trace formats."""
    yield ExporterOffer(
        name="perfetto",
        summary="Perfetto protobuf with typed fields, for ui.perfetto.dev.",
        suffixes=(".pftrace",),
        write=perfetto.write,
        takes_rank=True,
    )
    yield ExporterOffer(
        name="kineto",
        summary="Chrome JSON as PyTorch's profiler writes it, for any trace viewer.",
        suffixes=(".json",),
        write=kineto.write,
        takes_rank=True,
    )
    for suffix, write in ((".svg", gantt.write_svg), (".png", gantt.write_png), (".pdf", gantt.write_pdf)):
        summary = f"A picture of the step in time, {suffix[1:].upper()}: why each rank waits, the critical path."
        yield ExporterOffer(name=suffix[1:], summary=summary, suffixes=(suffix,), write=write)


@hookimpl
def pptrace_importers() -> Iterable[ImporterOffer]:
    """Offer the readers of our own files."""
    yield ImporterOffer(
        name="perfetto",
        summary="Perfetto traces that pptrace wrote.",
        recognises=perfetto.recognises,
        read=perfetto.read,
    )
    yield ImporterOffer(
        name="kineto",
        summary="Chrome JSON traces that pptrace wrote.",
        recognises=kineto.recognises,
        read=kineto.read,
    )


def _hockney(request: NetworkRequest) -> Network:
    from pptrace.builtin.networks import hockney

    return hockney(request)


def _hockney_options() -> type[BaseModel]:
    from pptrace.builtin.networks import HockneyOptions

    return HockneyOptions


def _ideal(request: NetworkRequest) -> Network:
    from pptrace.network.flat import ideal

    del request
    return ideal()


def _unit(request: CostRequest) -> Workload:
    from pptrace.builtin.unit_costs import unit

    return unit(request)


def _unit_options() -> type[BaseModel]:
    from pptrace.builtin.unit_costs import UnitOptions

    return UnitOptions


def _table(request: CostRequest) -> Workload:
    from pptrace.builtin.table_costs import table

    return table(request)


def _table_options() -> type[BaseModel]:
    from pptrace.builtin.table_costs import TableOptions

    return TableOptions


def _processes(request: ExecutorRequest) -> Executor:
    from pptrace.builtin.executors import Processes

    return Processes(request.workers)


def _serial(request: ExecutorRequest) -> Executor:
    from pptrace.builtin.executors import Serial

    del request
    return Serial()


def _policy(name: PolicyName, schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    from pptrace.schedule.policy import Policy

    del schedule, options
    return Policy(name=name)
