"""The README's tables have every key of a model, a device and the costs, each with its default and a meaning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pytest
import yaml
from pydantic import TypeAdapter

from pptrace_models.accelerator import Accelerator
from pptrace_models.models import MODELS
from pptrace_models.options import RooflineOptions
from pptrace_models.transformer import Transformer

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ (.*)\n((?:(?!#).*\n)*)", PAGE, re.MULTILINE))
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| .+ \|$", re.MULTILINE)


@pytest.mark.parametrize(
    ("section", "model"), [("model", Transformer), ("device", Accelerator), ("costs: roofline", RooflineOptions)]
)
def test_every_key_has_a_line_with_its_default(section: str, model: type[BaseModel]) -> None:
    shown = dict(ROW.findall(SECTIONS[section]))

    assert list(shown) == list(model.model_fields)
    assert [name for name, field in model.model_fields.items() if not is_default(shown[name], field)] == []


def test_every_preset_of_a_model_has_a_row() -> None:
    assert re.findall(r"^\| `([\w.-]+)` \| \d+ \| \d+ \|", SECTIONS["Presets"], re.MULTILINE) == [
        offer.name for offer in MODELS
    ]


def is_default(text: str, field: FieldInfo) -> bool:
    """Return whether a default is what the page says: a value as in a file, ``none`` or ``needed``."""
    if field.is_required():
        return text == "needed"
    if field.default is None:
        return text == "none"
    read = TypeAdapter(Annotated[field.annotation, "", *field.metadata]).validate_python(yaml.safe_load(text))
    return bool(read == field.default)
