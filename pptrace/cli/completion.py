"""``pptrace completion``: complete commands and options in the shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["command"]


_EXAMPLES = """\b
bash: eval "$(pptrace completion bash)"
zsh: eval "$(pptrace completion zsh)"
fish: pptrace completion fish | source"""


@click.command("completion", epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell."""
    from pptrace.cli.main import cli

    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(script(cli, {}, "pptrace", "_PPTRACE_COMPLETE").source())
