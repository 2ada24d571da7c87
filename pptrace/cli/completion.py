"""``pptrace completion``: complete commands and options in the shell."""

from __future__ import annotations

from importlib.resources import files

import click

__all__ = ["command"]


_EXAMPLES = """\b
bash: eval "$(pptrace completion bash)"
zsh: eval "$(pptrace completion zsh)"
fish: pptrace completion fish | source"""


@click.command("completion", epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell: commands, options, what plugins offer, and files."""
    script = files("pptrace.cli") / "shells" / f"pptrace.{shell}"
    click.echo(script.read_text(encoding="utf-8"), nl=False)
