"""A model or a device kept in a file is a preset by the file's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace import simulate
from pptrace.plugin import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SMALL = "{layers: 8, hidden: 1024, heads: 16, ffn: 4096, vocabulary: 32000}"


def step(**sections: Any) -> dict[str, Any]:
    return {
        "schedule": "gpipe", "parallel": {"pp": 4}, "batch": {"microbatches": 8, "sequence": 2048},
        "device": "h100-sxm", **sections,
    }  # fmt: skip


def test_a_model_in_a_file_is_what_its_keys_are_and_is_called_as_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    inline = {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000}

    named, plain = simulate(step(model="small.yaml")), simulate(step(model=inline))
    assert named.metrics.step_ns == plain.metrics.step_ns
    assert named.summary().startswith("small.yaml on h100-sxm")
    changed = simulate(step(model={"preset": "small.yaml", "layers": 16}))
    assert changed.metrics.step_ns > named.metrics.step_ns


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "missing.yaml: no such file"),
        ("[1]", "small.yaml:1:1: the top level must be a mapping of keys, such as layers: 32"),
        ("{layers: 8, widht: 3}", "model.widht"),
    ],
)
def test_a_file_that_holds_no_model_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "missing.yaml" if text is None else "small.yaml"
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        simulate(step(model=name))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
