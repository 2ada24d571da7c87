"""Memory of Megatron-LM's functional tests: simulated against the values that its continuous integration expects.

    git clone https://github.com/NVIDIA/Megatron-LM
    python benchmarks/bench_megatron_tests.py Megatron-LM [--list]

A test has arguments (``model_config.yaml``) and expected values by device (``golden_values_*.json``), among them
the allocated bytes after a step and their peak, on the last rank. The number of GPUs is in
``tests/test_utils/recipes``. Nothing of the simulation is fitted to these tests. Steps are not compared: most of
these models are so small that their hosts bound the time.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median
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
ALLOCATED, PEAK = "mem-allocated-bytes", "mem-max-allocated-bytes"
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


def expected_bytes(file: Path) -> tuple[float, float] | None:
    """Return the allocated bytes after the last step and their peak; None without these values."""
    document = json.loads(file.read_text(encoding="utf-8"))
    columns = [document.get(name) for name in (ALLOCATED, PEAK)]
    values = [list(column["values"].values()) if isinstance(column, dict) else [] for column in columns]
    known = [[value for value in column if isinstance(value, int | float)] for column in values]
    return (known[0][-1], max(known[1])) if all(known) else None


def simulated_bytes(file: Path, device: str, gpus: int) -> tuple[int, int]:
    """Return the allocated bytes of the last rank without activations, and their peak.

    Raises:
        PptraceError: the test cannot be simulated.
    """
    settings: dict[str, Any]
    settings, _ = configuration(read_recipe(file), RecipeOptions(device=device, gpus=gpus), Registry.load())
    settings["costs"] = settings.get("costs", {}) | {"reserved": "0 B", "fragmentation": 0.0}
    run = simulate(settings)
    memory, transient = run.metrics.memory, int(run.prepared.workload.transient_bytes[-1])
    return int(memory.static_bytes[-1]) - transient, int(memory.peak_bytes[-1])


def compared(repository: Path, kind: str) -> Iterator[tuple[str, str, list[float]]]:
    """Yield each test of a kind with its device, and simulated and expected bytes; print those without."""
    counts = gpus_by_test(repository)
    for file in sorted((repository / TESTS / kind).glob("*/model_config.yaml")):
        for environment, device in DEVICES.items():
            golden = file.with_name(f"golden_values_{environment}.json")
            expected = expected_bytes(golden) if golden.exists() and file.parent.name in counts else None
            if expected is None:
                continue
            try:
                simulated = simulated_bytes(file, device, counts[file.parent.name])
            except PptraceError as error:
                print(f"skipped {file.parent.name}: {error}"[:140])
                continue
            yield file.parent.name, device, [*simulated, *expected]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("repository", type=Path, help="folder of Megatron-LM")
    parser.add_argument("--list", action="store_true", help="print each test")
    options = parser.parse_args()
    groups: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for kind in ("gpt", "moe"):
        for name, device, sizes in compared(options.repository, kind):
            groups[kind, device].append([size / GIB for size in sizes])
            if options.list:
                print(f"{name:90} {device:8}", *(f"{size / GIB:8.2f}" for size in sizes))
    print("tests device    number  after a step: error in GiB, median and mean absolute   peak   activations")
    for (kind, device), rows in groups.items():
        errors = [
            [after - known for after, _, known, _ in rows], [peak - known for _, peak, _, known in rows],
            [(peak - after) - (known_peak - known) for after, peak, known, known_peak in rows],
        ]  # fmt: skip
        figures = "   ".join(f"{median(each):+.2f} {fmean(map(abs, each)):.2f}" for each in errors)
        print(f"{kind:5} {device:9} {len(rows):6}  {figures}")


if __name__ == "__main__":
    main()
