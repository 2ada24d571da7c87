"""Published steps of Megatron-Bridge with what its recipes say, read from a clone of its repository.

    python benchmarks/recipe_rows.py Megatron-Bridge steps.csv [-o steps.csv]

For each row of Megatron-Bridge, the recipe of the release's tag with the row's model, device and precision and the
nearest sizes is read, as by ``pptrace recipe``. With the same sizes, apart from the global batch, its settings
become columns of the row. Each row with other sizes is printed. No file of the clone is changed or copied.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.plugin import PptraceError, Registry, replace_file
from pptrace_accuracy.records import build_cases, read_rows, read_rules
from pptrace_frameworks.recipe_files import read_recipe, recipe_names
from pptrace_frameworks.recipes import RecipeOptions, configuration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pptrace_accuracy.records import Case

TAGS = {
    "25.09": ["v0.1.0rc3", "v0.1.0rc4"], "25.11": ["v0.2.0"], "26.02": ["v0.3.0"],
    "26.02.01": ["v0.3.1", "v0.3.0"], "26.04": ["v0.4.0"], "26.04.01": ["v0.4.2", "v0.4.0"],
    "26.06": ["v0.5.0"], "26.06.01": ["v0.5.1", "v0.5.0"], "26.08": ["v0.6.0"],
}  # fmt: skip
"""Tags by release, after docs/releases and dates; tables of a patch release also have rows of the one before."""
FOLDERS = ("scripts/performance/configs", "src/megatron/bridge/perf_recipes")
SIZES = ("tp", "pp", "cp", "ep", "vp", "dp")
KEYS: dict[str, Any] = {
    "schedule.name": None, "model.layout": None, "model.recompute": "none", "model.recompute_modules": [],
    "model.fused_experts": False, "model.fp8_attention": False, "costs.dispatcher": None,
    "costs.cuda_graphs": False,
}  # fmt: skip
"""Columns of a mixture of experts by setting, each with the value where a recipe does not have the setting."""
UNUSUAL: dict[str, Any] = {
    "costs.fused_loss": True, "costs.aligned_dispatch": True, "costs.exp_avg": None,
    "costs.exp_avg_sq": None, "costs.optimizer": None, "costs.accumulation": None, "costs.fused_routing": None,
    "model.first_bf16_layers": None, "model.last_bf16_layers": None, "costs.outer_sharding": None,
    "model.product_precisions": None, "data_parallel.reduce_each": None, "data_parallel.reshard": None,
    "data_parallel.shard": None, "model.offload_modules": None,
}  # fmt: skip
"""Columns by setting that are blank where a recipe has this value, which most have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A recipe and its configuration."""

    name: str
    settings: Mapping[str, Any]

    def differences(self, row: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the sizes of a row's configuration and of the recipe where they differ."""
        found = {
            name: (row["parallel"].get(name, 1), self.settings["parallel"].get(name, 1)) for name in SIZES
        } | {name: (row["batch"][name], self.settings["batch"][name]) for name in ("micro", "global")}
        return {name: sizes for name, sizes in found.items() if sizes[0] != sizes[1]}

    def is_of(self, row: Mapping[str, Any]) -> bool:
        """Return whether the recipe has the model, the device and the precision of a row's configuration."""
        model, own = row["model"], self.settings["model"]
        return bool(
            own.get("preset") == model.get("preset")
            and own.get("precision") == model["precision"]
            and self.settings["device"] == row["device"]["preset"]
        )

    def columns(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return the columns of a row: the recipe's name, and the settings of a mixture of experts."""
        columns = {"recipe": self.name}
        if "dispatcher" not in self.settings.get("costs", {}):
            return columns  # a dense model, or a matrix of 25.09, whose run_script.py has further settings
        for key, absent in KEYS.items():
            section, _, name = key.partition(".")
            columns[key] = _text(self.settings.get(section, {}).get(name, absent))
        for key, usual in UNUSUAL.items():
            section, _, name = key.partition(".")
            value = self.settings.get(section, {}).get(name, usual)
            columns[key] = "" if value == usual else _text(value)
        if row["model"].get("mtp") == 0:
            columns["model.layout"] = columns["model.layout"].replace("m", "")
        return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """A clone of Megatron-Bridge, and a folder for the files of its tags."""

    path: Path
    folder: Path
    known: dict[str, list[Read]] = field(default_factory=dict)

    def recipes(self, tag: str) -> list[Read]:
        """Return the recipes of a tag that are configurations; a model or device without a preset has none."""
        if tag not in self.known:
            self.known[tag] = list(self._read(tag))
        return self.known[tag]

    def _read(self, tag: str) -> Iterator[Read]:
        command = ["git", "-C", str(self.path), "archive", tag, "scripts/performance", "src/megatron/bridge"]
        archive = subprocess.run(command, check=False, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(self.folder / tag, filter="data")
        registry = Registry.load()
        for file in sorted(each for place in FOLDERS for each in (self.folder / tag / place).rglob("*")):
            if file.suffix != ".yaml" and not _has_recipes(file):
                continue
            for name in recipe_names(file):
                try:
                    settings, _ = configuration(read_recipe(file, name), RecipeOptions(), registry)
                except PptraceError:
                    continue
                yield Read(name=f"{tag} {name}", settings=settings)


def main() -> None:
    """Print the rows whose recipe has other sizes, and write the table with the recipes' columns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("steps", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    added = ("recipe", *KEYS, *UNUSUAL)
    rows = [
        (line, {name: "" if name in added and _release(row) else text for name, text in row.items()})
        for line, row in read_rows(arguments.steps)
    ]
    with tempfile.TemporaryDirectory() as folder:
        clone = Clone(path=arguments.clone, folder=Path(folder))
        columns = [_columns(clone, case) for case in build_cases(rows, read_rules())]
    if arguments.output:
        text = io.StringIO()
        names = dict.fromkeys([*rows[0][1], *added])
        writer = csv.DictWriter(text, [*names], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **new} for (_, row), new in zip(rows, columns, strict=True))
        with replace_file(arguments.output) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8")


def _release(row: Mapping[str, str]) -> str:
    """Return the release of Megatron-Bridge that a row is of; empty for another source."""
    release = re.match(r"Megatron-Bridge (\d+\.\d+(?:\.\d+)?)", row["source"])
    return release[1] if release else ""


def _columns(clone: Clone, case: Case) -> dict[str, str]:
    """Return the columns of a row; none for a row without a recipe of its sizes, which is printed."""
    release, row = _release(case.row), case.settings
    if not release or case.skipped:
        return {}
    candidates = [recipe for tag in TAGS[release] for recipe in clone.recipes(tag) if recipe.is_of(row)]
    best = min(candidates, key=lambda recipe: _distance(recipe, row), default=None)
    differing = best.differences(row) if best else {}
    if best is None or differing:
        sizes = ", ".join(f"{name} {own}, not {recipe}" for name, (own, recipe) in differing.items())
        place = f"{case.line}: {case.row['source']}, {case.row['model']} on {case.row['gpu']}"
        sys.stdout.write(f"{place}: {best.name if best else 'no recipe'}: {sizes}\n")
    return best.columns(row) if best and differing.keys() <= {"global"} else {}


def _distance(recipe: Read, row: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of differing sizes without and with the global batch."""
    differing = recipe.differences(row)
    return len(differing.keys() - {"global"}), len(differing)


def _has_recipes(file: Path) -> bool:
    """Return whether a file in Python has recipes, and not the functions that read them."""
    return file.suffix == ".py" and not file.stem.endswith(("_pretrain", "_finetune", "__"))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    main()
