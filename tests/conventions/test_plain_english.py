"""Pages, help texts and messages are plain technical English: the field's terms, no idioms, no personification."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pptrace.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

ROOT = Path(__file__).parents[2]
BETTER = {
    r"levers?": "bottleneck or saving",
    r"own group": "tensor-, context- or expert-parallel collectives",
    r"(?:through|by) the same door": "with the same API",
    r"(?:its|their) way\b(?= (?:to|back|through))": "link or path",
    r"forgotten": "ignored",
    r"hesitations?": "host delay",
    r"(?:is|are|was|were|be) told": "is reported",
    r"whatever|whoever|nobody": "any, all, none",
    r"all else|the rest": "the noun: all other keys, the remaining time",
    r"says? (?:of|so|what|which|how|where|nothing|little|when|whether)": "has, prints, states",
    r"(?:does|do|did) not say": "does not state, does not contain",
    r"knows? (?:of|no|what|nothing)": "has, contains, models",
    r"what (?:it|that|they) (?:is|are) worth": "the uncertainty, the value",
    r"what (?:is|are) (?:left|kept|known|drawn)": "the noun",
    r"so many times": "a multiple",
    r"half again": "1.5 times",
    r"of its own|one's own": "separate, custom",
    r"comes? out": "is simulated as, results in",
    r"makes? up for": "compensates for",
    r"stands? (?:beside|behind|side by side)|beside each other": "in parallel, adjacent",
    r"asked for": "requested",
    r"at work": "the cause",
    r"by the clock": "elapsed time",
    r"in vain": "without use",
    r"the lesser": "the smaller",
    r"lies between": "the link between",
    r"(?:can|cannot) be had": "is public, is available",
    r"to its word": "checks the claim",
}
"""Words that readers stumbled on, and the plain ones in their place."""
PATTERN = re.compile(rf"\b(?:{'|'.join(BETTER)})\b", re.IGNORECASE)
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`]*`|https?://\S+")
LONGEST_SENTENCE = 25
"""Words of the longest sentence on a page; a link or a piece of code is one word."""
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[A-Z`*(\[\"0-9]|pptrace |torchtitan |nanotron )")
PARAGRAPH_END = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*|#>] ?|\d+\. ))")
STUDIES = "examples/paper-"
"""Reports on papers, whose phrases their own tests hold."""


def test_pages_are_plain() -> None:
    assert [remark for page in pages() for remark in remarks(str(page.relative_to(ROOT)), prose(page))] == []


def test_sentences_are_short() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {words} words: {sentence}"
        for page in pages()
        for sentence in sentences(page)
        if (words := len(re.findall(r"\S*\w\S*", sentence))) > LONGEST_SENTENCE
    ]

    assert found == []


def test_help_is_plain() -> None:
    assert [remark for name, text in helps(cli, "pptrace") for remark in remarks(name, text)] == []


def test_messages_are_plain() -> None:
    found = []
    for path in sorted((ROOT / "pptrace").rglob("*.py")):
        for raised in (
            node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Raise)
        ):
            texts = [node.value for node in ast.walk(raised) if isinstance(node, ast.Constant)]
            text = CODE.sub("", " ".join(part for part in texts if isinstance(part, str)))
            found += remarks(f"{path.relative_to(ROOT)}:{raised.lineno}", text)

    assert found == []


@pytest.mark.parametrize("text", ["The file says what is measured.", "whatever the network", "a name of its own"])
def test_a_sentence_of_the_house_gets_a_remark(text: str) -> None:
    assert remarks("page", text)


def remarks(where: str, text: str) -> list[str]:
    """Return a line for every word of the list, with what to write instead."""
    lines = enumerate(text.splitlines(), 1)
    found = ((number, match[0]) for number, line in lines for match in PATTERN.finditer(line))
    return [f"{where}:{number}: {words!r}, better: {advice(words)}" for number, words in found]


def advice(words: str) -> str:
    return next(
        better for pattern, better in BETTER.items() if re.match(rf"(?:{pattern})\b", words, re.IGNORECASE)
    )


def prose(page: Path) -> str:
    """Return a page without its code, line by line."""
    text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))
    return CODE.sub(lambda code: "\n" * code[0].count("\n"), text)


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page's paragraphs, list items and cells; a semicolon ends a clause of a cell."""
    text = CODE.sub("Code", FENCE.sub("\n", page.read_text(encoding="utf-8")))
    for paragraph in PARAGRAPH_END.split(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)):
        if not paragraph.startswith("    "):
            parts = re.split(r"[|;]", paragraph) if paragraph.lstrip().startswith("|") else [paragraph]
            for part in parts:
                yield from SENTENCE_END.split(" ".join(part.split()))


def pages() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "*.md"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in result.stdout.splitlines() if not line.startswith(STUDIES)]


def helps(group: click.Group, path: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of every command of the core."""
    from pptrace.plugins.providers import COMMANDS

    for name in COMMANDS:
        command = group.get_command(None, name)  # type: ignore[arg-type] # the core's commands need no context
        assert command is not None
        options = [getattr(option, "help", None) or "" for option in command.params]
        yield f"{path} {name}", "\n".join([command.help or "", COMMANDS[name], *options])
