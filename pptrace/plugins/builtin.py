"""The core's plugin: networks, policies, costs, executors and trace formats without presets."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.config.choices import PolicyName
from pptrace.lazy import deferred
from pptrace.plugins.hookspecs import hookimpl
from pptrace.traces import kineto, perfetto

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugins import offers
    from pptrace.steps.message_calls import Policy


@hookimpl
def pptrace_networks() -> Iterable[offers.NetworkOffer]:
    """Offer the networks without contention."""
    from pptrace.plugins.offers import NetworkOffer

    yield NetworkOffer(
        name="hockney",
        summary="Every pair of ranks alone: overhead + bytes / bandwidth + latency.",
        build=deferred("pptrace.plugins.builtin_models:hockney"),
        options=lambda: import_module("pptrace.plugins.builtin_models").HockneyOptions,
    )
    yield NetworkOffer(
        name="ideal",
        summary="Messages take no time.",
        build=lambda _: import_module("pptrace.plugins.builtin_models").Flat(),
    )


@hookimpl
def pptrace_stacks() -> Iterable[offers.StackOffer]:
    """Offer the stack that changes nothing."""
    from pptrace.plugins.offers import StackOffer

    yield StackOffer(name="ideal", summary="No framework: the defaults of every key.")


@hookimpl
def pptrace_message_policies() -> Iterable[offers.MessagePolicyOffer]:
    """Offer the policies that are not of a framework; their settings are keys of the section ``p2p``."""
    from pptrace.plugins.offers import MessagePolicyOffer

    for policy in PolicyName:
        summary = f"{policy.means[:1].upper()}{policy.means[1:]}."
        yield MessagePolicyOffer(name=policy.value, summary=summary, build=partial(_policy, policy))


@hookimpl
def pptrace_cost_models() -> Iterable[offers.CostModelOffer]:
    """Offer costs that need no model or device."""
    from pptrace.plugins.offers import CostModelOffer

    yield CostModelOffer(
        name="unit",
        summary="Abstract units of time: forward 1, backward 2 unless said otherwise.",
        build=deferred("pptrace.plugins.builtin_models:unit"),
        options=lambda: import_module("pptrace.plugins.builtin_models").UnitOptions,
    )
    yield CostModelOffer(
        name="table",
        summary="Times and bytes per stage, as written or as calibrated.",
        build=deferred("pptrace.plugins.table_costs:table"),
        options=lambda: import_module("pptrace.plugins.table_costs").TableOptions,
    )


@hookimpl
def pptrace_executors() -> Iterable[offers.ExecutorOffer]:
    """Offer a pool of local processes, and the current process."""
    from pptrace.plugins.offers import ExecutorOffer

    yield ExecutorOffer(
        name="processes",
        summary="Processes on this machine, one per core.",
        build=lambda request: import_module("pptrace.plugins.builtin_executors").Processes(request.workers),
    )
    yield ExecutorOffer(
        name="serial",
        summary="This process, one point after another.",
        build=lambda _: import_module("pptrace.plugins.builtin_executors").Serial(),
        in_process=True,
    )


@hookimpl
def pptrace_exporters() -> Iterable[offers.ExporterOffer]:
    """Offer the writers of both trace formats."""
    from pptrace.plugins.offers import ExporterOffer

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
    for suffix in (".svg", ".png", ".pdf"):
        summary = f"A picture of the step in time, {suffix[1:].upper()}: why each rank waits, the critical path."
        write = partial(deferred("pptrace.report.step_drawing:write"), suffix=suffix)
        yield ExporterOffer(name=suffix[1:], summary=summary, suffixes=(suffix,), write=write)


@hookimpl
def pptrace_importers() -> Iterable[offers.ImporterOffer]:
    """Offer the readers of traces that pptrace wrote."""
    from pptrace.plugins.offers import ImporterOffer

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


def _policy(name: PolicyName, *_: object) -> Policy:
    from pptrace.steps.message_calls import Policy

    return Policy(name=name)
