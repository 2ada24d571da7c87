"""Printed recipes of Megatron-Bridge against the library's source: names of recipes, sections and fields.

    python benchmarks/bench_bridge_recipes.py MEGATRON_BRIDGE MEGATRON_LM recipe.py...

``MEGATRON_BRIDGE`` and ``MEGATRON_LM`` are git repositories, with or without a work tree. ``recipe.py`` is a file
that ``pptrace plan -o recipe.py`` writes. The library itself needs GPUs and Transformer Engine, so its source is
read and not run. The check finds names that the library does not have, and no wrong combinations of values.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections import defaultdict
from pathlib import Path

SECTIONS = {
    "model": "GPTModelProvider MLAModelProvider", "train": "TrainingConfig",
    "ddp": "DistributedDataParallelConfig", "optimizer": "OptimizerConfig", "comm_overlap": "CommOverlapConfig",
    "mixed_precision": "MixedPrecisionConfig", "checkpoint": "CheckpointConfig",
    "dataset": "GPTDatasetConfig",
}  # fmt: skip
"""Classes of the sections of a ``ConfigContainer``."""
FOLDERS = {0: ("src/megatron/bridge",), 1: ("megatron/core", "megatron/training")}
"""Folders that are read in the first and the second repository."""
PREFIXES = ("MCore", "MTrain")
"""Prefixes with which the library imports base classes of the same names."""


class Source:
    """Classes and functions of Python sources."""

    def __init__(self) -> None:
        self.fields: dict[str, set[str]] = defaultdict(set)
        self.bases: dict[str, set[str]] = defaultdict(set)
        self.names: set[str] = set()

    def read(self, text: str) -> None:
        """Note the classes, functions and names of a module."""
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                self.names.add(node.name)
                self.bases[node.name] |= {_plain(base) for base in map(ast.unparse, node.bases)}
                self.fields[node.name] |= {
                    each.target.id for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                }  # fmt: skip
            elif isinstance(node, ast.FunctionDef):
                self.names.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                self.names |= {each.asname for each in node.names if each.asname}
            elif isinstance(node, ast.Assign):
                self.names |= {each.id for each in node.targets if isinstance(each, ast.Name)}

    def fields_of(self, name: str) -> set[str]:
        """Return the fields of a class and of its base classes."""
        found, queue = set[str](), [name]
        seen = set[str]()
        while queue:
            each = queue.pop()
            if each not in seen:
                seen.add(each)
                found |= self.fields[each]
                queue += self.bases[each]
        return found


def _plain(base: str) -> str:
    name = base.rpartition(".")[2]
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)


def read_repositories(repositories: list[str]) -> Source:
    """Return the classes and functions of the repositories."""
    source = Source()
    for index, repository in enumerate(repositories):
        listed = _git(repository, "ls-tree", "-r", "--name-only", "HEAD", *FOLDERS[index])
        for path in listed.splitlines():
            if path.endswith(".py"):
                source.read(_git(repository, "show", f"HEAD:{path}"))
    return source


def _git(repository: str, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", repository, *words], check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout  # fmt: skip


def unknown_names(recipe: str, source: Source) -> list[str]:
    """Return the imported names and the settings of a recipe that the sources do not have."""
    unknown = []
    for node in ast.walk(ast.parse(recipe)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("megatron."):
            unknown += [each.name for each in node.names if each.name not in source.names]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            setting = ast.unparse(node.targets[0])
            _, section, *fields = setting.split(".")
            classes = SECTIONS.get(section, "").split()
            if fields and not any(fields[0] in source.fields_of(name) for name in classes):
                unknown.append(setting)
    return unknown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs=2, metavar="REPOSITORY")
    parser.add_argument("recipes", nargs="+", type=Path, metavar="recipe.py")
    options = parser.parse_args()
    source = read_repositories(options.repositories)
    for path in options.recipes:
        recipe = path.read_text(encoding="utf-8")
        settings = sum(line.strip().startswith("cfg.") for line in recipe.splitlines())
        print(f"{path}: {settings} settings, unknown: {', '.join(unknown_names(recipe, source)) or 'none'}")


if __name__ == "__main__":
    main()
