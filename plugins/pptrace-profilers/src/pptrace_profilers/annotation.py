"""``pptrace annotate``: a small module that marks a pipeline's actions for PyTorch's profiler."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click

from pptrace.plugin import print_or_write

_PARTS = {
    "pytorch": ("pytorch.py.txt", "messages.py.txt", "pytorch_stages.py.txt"),
    "megatron": ("megatron.py.txt", "messages.py.txt", "megatron_schedules.py.txt"),
}
"""Parts of the module of each framework, in order."""
_IMPORTS = {"pytorch": "", "megatron": "import inspect\n"}
_EXAMPLES = """\b
pptrace annotate -o pptrace_annotate.py
# then, in Python, before the first step:
# import pptrace_annotate
# pptrace_annotate.annotate(schedule)"""


@click.command("annotate", epilog=_EXAMPLES)
@click.option(
    "--framework",
    type=click.Choice(tuple(_PARTS)),
    default="pytorch",
    help="The framework that runs the pipeline: torch.distributed.pipelining or Megatron-LM.",
    show_default=True,
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write it to this file.")
def command(framework: str, output: Path | None) -> None:
    """Print a module that marks forward, backward, send and receive, so that traces name these actions.

    The module depends only on the framework. Its first lines describe its use.
    """
    print_or_write(module_for(framework), output)


def module_for(framework: str) -> str:
    """Return the text of the module."""
    folder = resources.files("pptrace_profilers") / "annotated"
    header, messages, functions = ((folder / name).read_text(encoding="utf-8") for name in _PARTS[framework])
    imports = messages.replace("import functools\n", f"import functools\n{_IMPORTS[framework]}", 1)
    return header + imports + functions
