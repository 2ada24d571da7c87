"""How figures were counted: sentences for the detailed output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import format_size

if TYPE_CHECKING:
    from pptrace.plugin import CostRequest
    from pptrace_models.options import RooflineOptions
    from pptrace_models.ranks import Devices
    from pptrace_models.transformer import Transformer

__all__ = ["notes_of"]


def notes_of(
    model: Transformer, devices: Devices, options: RooflineOptions, request: CostRequest
) -> tuple[str, ...]:
    """Return one sentence each."""
    skipped = model.causal and model.flash_attention
    memory_kept = f"{format_size(options.reserved)} reserved"
    if options.fragmentation:
        memory_kept += f" and {options.fragmentation:.1%} of what is allocated that the allocator holds besides"
    notes = [
        f"MFU counts forward and twice that, nothing computed again, against the dense {model.precision} peak"
        + (", with causal attention halved." if model.causal else "."),
        f"Times count {'half of the' if skipped else 'the whole'} attention core"
        + (", whose masked half flash attention skips." if skipped else "."),
        "Collectives of the rank's own group are exposed, in the forward and in the input-gradient backward.",
        f"Memory holds {options.gradients} gradients, {_adam(options)} (ZeRO {options.zero}), {memory_kept}.",
    ]
    if options.kernels == "shapes":
        notes.append(
            "Each kernel takes what its shape says: tiles and waves of products, blocks of attention, bytes."
        )
    if not devices.are_alike:
        notes.append("Ranks have unlike devices: stages take what they do on theirs, and MFU counts all peaks.")
    if options.spread:
        notes.append("Computation takes as long as on the slowest of the job's devices, in expectation.")
    if model.again == {"core_attn"} and model.flash_attention:
        notes.append("Selective recomputation frees nothing: flash attention keeps no score matrix.")
    return (*notes, *_network_notes(devices, request))


def _adam(options: RooflineOptions) -> str:
    """Return the optimizer with the precisions of its main weights and moments, one where they are the same."""
    kept = [options.main_params or "fp32", options.exp_avg or "fp32", options.exp_avg_sq or "fp32"]
    return f"Adam in {kept[0] if len(set(kept)) == 1 else ', '.join(kept)}"


def _network_notes(devices: Devices, request: CostRequest) -> list[str]:
    if request.collectives is not None:
        used = "Collectives and the reduction of gradients are timed on the cluster's links"
        return [f"{used}; the device's scale-up figures and data_parallel are not used."]
    notes = []
    if request.dp > 1 and not request.data_parallel:
        notes.append("The data-parallel network is not described: reducing gradients over it takes no time.")
    wide = max(request.tp * request.cp, (request.etp or request.tp) * request.ep)
    if wide > devices.scale_up_size:
        place = "the data-parallel network" if request.data_parallel else "links taken to be as fast as the node's"
        notes.append(f"Groups that span {wide} devices pass the node's {devices.scale_up_size} and use {place}.")
    return notes
