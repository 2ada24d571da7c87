"""Every command on the page of questions runs, and a question takes at most two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from markdown import blocks

COMMANDS = [text for language, text in blocks(Path(__file__).parents[2] / "docs" / "questions.md") if language]


@pytest.mark.needs_plugins
def test_the_commands_run(shell: Any, examples: Path) -> None:
    for text in COMMANDS:
        assert shell.run(text, examples) or " -o " in text


def test_a_question_takes_at_most_two_commands() -> None:
    assert max(text.count("\n") - text.count("\\\n") for text in COMMANDS) == len(("simulate", "compare"))
