"""``pptrace recipe``: the configuration that simulates a training job of a framework."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pptrace.plugin import Registry, print_or_write
from pptrace_frameworks.recipe_files import read_recipe, recipe_names, recipe_of_text
from pptrace_frameworks.recipes import Given, configuration, configuration_text

_EXAMPLES = """\b
pptrace recipe deepseek_workload_base_configs.py
pptrace recipe deepseek_workload_base_configs.py DEEPSEEK_V3_PRETRAIN_CONFIG_GB200_FP8_MX_V2 -o job.yaml
pptrace recipe pretrain.sh --device h100-sxm --gpus 256 -o job.yaml
pptrace simulate job.yaml
"""


@click.command("recipe", epilog=_EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.argument("name", required=False, default="")
@click.option("--model", default="", metavar="PRESET", help="The model; by default that in the recipe's name.")
@click.option("--device", default="", metavar="PRESET", help="The device; by default that in the recipe's name.")
@click.option("--gpus", type=click.IntRange(1), default=None, metavar="N", help="The job's number of GPUs.")
@click.option(
    "--stack", default="", metavar="STACK", help="The software stack; by default that of the repository."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the configuration: .yaml."
)
def command(
    file: Path, name: str, *, model: str, device: str, gpus: int | None, stack: str, output: Path | None
) -> None:
    """Print the configuration that simulates the recipe NAME in FILE.

    FILE has recipes of Megatron-Bridge (.py, .yaml), or a configuration of NeMo or of a test case of Megatron-LM
    (.yaml). With another suffix, or - for standard input, it is a script or line with Megatron-LM's arguments.
    Without NAME, the names of several recipes are printed. No code of a recipe runs.
    """
    if str(file) == "-":
        recipe = recipe_of_text(sys.stdin.read(), "standard input")
    else:
        names = recipe_names(file)
        if len(names) > 1 and not name and output is None:
            click.echo("\n".join(names))
            return
        recipe = read_recipe(file, name)
    given = Given(model=model, device=device, gpus=gpus or 0, stack=stack)
    settings, notes = configuration(recipe, given, Registry.load())
    for note in notes:
        click.echo(f"note: {note}", err=True)
    print_or_write(configuration_text(recipe, settings), output)
