"""Megatron-LM's functional tests: simulated memory and steps against what its continuous integration expects.

    git clone https://github.com/NVIDIA/Megatron-LM
    python benchmarks/bench_megatron_tests.py Megatron-LM [--list]

A test has arguments (``model_config.yaml``) and expected values by device (``golden_values_*.json``), among them
the allocated bytes after a step and their peak, on the last rank. The number of GPUs is in
``tests/test_utils/recipes``. Nothing of the simulation is fitted to these tests. Most of these models are so small
that their hosts bound the steps, so the steps show the time of a host per kernel.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any

import yaml

from pptrace import simulate
from pptrace.errors import PptraceError
from pptrace.plugins.registry import Registry
from pptrace_frameworks.recipe_files import read_recipe
from pptrace_frameworks.recipes import RecipeOptions, configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS, RECIPES = Path("tests/functional_tests/test_cases"), Path("tests/test_utils/recipes")
DEVICES = {"dev_dgx_a100": "a100-sxm", "dev_dgx_h100": "h100-sxm", "dev_dgx_gb200": "gb200"}
"""Devices by the environment in the names of expected values."""
ALLOCATED, PEAK, TIME = "mem-allocated-bytes", "mem-max-allocated-bytes", "iteration-time"
GIB = 2**30


def gpus_by_test(repository: Path) -> dict[str, int]:
    """Return the number of GPUs of each test that a recipe lists."""
    counts: dict[str, int] = {}
    for file in sorted((repository / RECIPES).glob("*/*.yaml")):
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        spec = document.get("spec", {})
        for product in document.get("products", ()):
            for name in product.get("test_case", ()):
                counts[name] = spec.get("nodes", 1) * spec.get("gpus", 8)
    return counts


def expected(file: Path) -> tuple[float, float, float] | None:
    """Return the allocated bytes after the last step, their peak, and the time of a step, or None without these.

    The time is the median of the second half of the steps.
    """
    document = json.loads(file.read_text(encoding="utf-8"))
    columns = [document.get(name) for name in (ALLOCATED, PEAK, TIME)]
    values = [list(column["values"].values()) if isinstance(column, dict) else [] for column in columns]
    after, peaks, steps = ([value for value in column if isinstance(value, int | float)] for column in values)
    return (after[-1], max(peaks), median(steps[len(steps) // 2 :])) if after and peaks and steps else None


def simulated(file: Path, device: str, gpus: int) -> tuple[float, float, float]:
    """Return the allocated bytes of the last rank without activations, their peak, and the step in seconds.

    Raises:
        PptraceError: the test cannot be simulated.
    """
    settings: dict[str, Any]
    settings, _ = configuration(read_recipe(file), RecipeOptions(device=device, gpus=gpus), Registry.load())
    settings["costs"] = settings.get("costs", {}) | {"reserved": "0 B", "fragmentation": 0.0}
    run = simulate(settings)
    memory, transient = run.metrics.memory, int(run.prepared.workload.transient_bytes[-1])
    return int(memory.static_bytes[-1]) - transient, int(memory.peak_bytes[-1]), run.metrics.step_ns / 1e9


def compared(repository: Path, kind: str) -> Iterator[tuple[str, str, list[float]]]:
    """Yield each test of a kind with its device, and simulated and expected figures; print those without."""
    counts = gpus_by_test(repository)
    for file in sorted((repository / TESTS / kind).glob("*/model_config.yaml")):
        for environment, device in DEVICES.items():
            golden = file.with_name(f"golden_values_{environment}.json")
            known = expected(golden) if golden.exists() and file.parent.name in counts else None
            if known is None:
                continue
            try:
                figures = simulated(file, device, counts[file.parent.name])
            except PptraceError as error:
                print(f"skipped {file.parent.name}: {error}"[:140])
                continue
            yield file.parent.name, device, [*figures, *known]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repository", type=Path, help="folder of Megatron-LM")
    parser.add_argument("--list", action="store_true", help="print each test")
    options = parser.parse_args()
    groups: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for kind in ("gpt", "moe"):
        for name, device, figures in compared(options.repository, kind):
            scaled = [figure / unit for figure, unit in zip(figures, (GIB, GIB, 1) * 2, strict=True)]
            groups[kind, device].append(scaled)
            if options.list:
                print(f"{name:90} {device:8}", *(f"{figure:8.3f}" for figure in scaled))
    print("tests device    number  after a step: error in GiB, median and mean absolute   peak   activations   "
          "steps: simulated to measured, median and quartiles")  # fmt: skip
    for (kind, device), rows in groups.items():
        errors = [
            [after - known for after, _, _, known, _, _ in rows],
            [peak - known for _, peak, _, _, known, _ in rows],
            [(peak - after) - (known_peak - known) for after, peak, _, known, known_peak, _ in rows],
        ]  # fmt: skip
        figures = "   ".join(f"{median(each):+.2f} {fmean(map(abs, each)):.2f}" for each in errors)
        least, half, most = quantiles([step / known for *_, step, _, _, known in rows], n=4)
        print(f"{kind:5} {device:9} {len(rows):6}  {figures}   {half:.2f} {least:.2f} {most:.2f}")


if __name__ == "__main__":
    main()
