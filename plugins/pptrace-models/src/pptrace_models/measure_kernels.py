"""``pptrace measure-kernels``: a script for the user's own GPU that measures a configuration's matrix products."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pptrace.plugin import Registry, load, prepare, print_or_write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import KernelCost


_EXAMPLES = """\b
pptrace measure-kernels llama.yaml -o measure_kernels.py
# then, on the machine with the GPU:
python measure_kernels.py -o kernels.json
pptrace simulate llama.yaml --set costs.kernels=shapes --set costs.kernel_table=kernels.json"""
_PLACE = "MEASURED = {}"
"""The line of the script that says what it measures."""
_CHECKED = ("multiprocessors", "peak_bf16")
"""What a table says of its device, beside the products."""


@click.command("measure-kernels", epilog=_EXAMPLES)
@click.argument("config", metavar="CONFIG")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key of the configuration.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it to this file.")
def command(config: str, sets: tuple[str, ...], output: Path | None) -> None:
    """Print a PyTorch script that measures the matrix products of CONFIG on a GPU.

    It depends on PyTorch alone, and writes a table that costs.kernel_table takes.
    """
    resolved = load(Path(config), (*sets, "costs.name=roofline", "costs.kernels=shapes"), {})
    prepared = prepare(resolved, Registry.load())
    listed = prepared.workload.kernels
    text = script_for(listed() if listed else (), _device(prepared.resolved.to_dict()))
    print_or_write(text, output)


def script_for(kernels: Iterable[KernelCost], device: dict[str, Any]) -> str:
    """Return the script's text.

    Args:
        kernels: kernels of a step's actions; each distinct matrix product is measured once.
        device: peak and multiprocessors of the target device.
    """
    products = sorted({kernel.product for kernel in kernels if kernel.product is not None})
    description = {"device": device, "products": products}
    script = resources.files("pptrace_models") / "measure_kernels.py.txt"
    assignment = f"MEASURED = json.loads({json.dumps(description)!r})"
    return script.read_text(encoding="utf-8").replace(_PLACE, assignment, 1)


def _device(configuration: dict[str, Any]) -> dict[str, Any]:
    from pptrace_models.accelerator import Accelerator
    from pptrace_models.transformer import checked

    device = checked(Accelerator, {k: v for k, v in configuration["device"].items() if k != "preset"}, "device")
    return {name: getattr(device, name) for name in _CHECKED}
