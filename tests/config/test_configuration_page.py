"""The page about configuration has every key with its default, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter

from pptrace.api import simulate
from pptrace.builtin.costs import TableOptions, UnitOptions
from pptrace.builtin.networks import HockneyOptions
from pptrace.config.experiment import Experiment
from pptrace.sim.policy import StreamPer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ (.*)\n((?:(?!#).*\n)*)", PAGE, re.MULTILINE))
OPTIONS = {"network: hockney": HockneyOptions, "costs: unit": UnitOptions, "costs: table": TableOptions}


def test_every_key_has_a_line_with_its_default() -> None:
    shown = {key: text for title in set(SECTIONS) - set(OPTIONS) for key, text in rows(SECTIONS[title]).items()}

    for key, field, default in keys(Experiment):
        assert key in shown, f"write a line about {key}"
        assert is_default(shown[key], field, default), key


@pytest.mark.parametrize("section", OPTIONS)
def test_the_cores_own_options_have_a_line_each(section: str) -> None:
    shown = rows(SECTIONS[section])

    there = {
        key: (field, default) for key, field, default in keys(OPTIONS[section], f"{section.partition(':')[0]}.")
    }
    assert shown.keys() == there.keys()
    assert [key for key, text in shown.items() if not is_default(text, *there[key])] == []


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "step.yaml").write_text(example)
    rows = [[f"{rank}{kind}0" for kind in "FB"] for rank in range(4)]
    (tmp_path / "table.csv").write_text("".join(",".join(row) + "\n" for row in rows))

    run = simulate(tmp_path / "step.yaml", schedule=str(tmp_path / "table.csv"), microbatches=1)

    assert run.prepared.policy.stream is StreamPer.DIRECTION
    assert run.prepared.workload.f_ns.tolist() == [9_000_000, 10_000_000, 10_000_000, 12_000_000]


def rows(text: str) -> dict[str, str]:
    """Return the keys of a section's table with their defaults."""
    return dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \| .+ \|$", text, re.MULTILINE))


def keys(model: type[BaseModel], prefix: str = "", given: Any = ...) -> Iterator[tuple[str, FieldInfo, Any]]:
    """Yield every key below a model with its default: ``...`` where it is needed, None where it has none.

    Args:
        model: the model.
        prefix: what stands before its keys.
        given: the model's own default, ``...`` where it is needed.
    """
    for name, field in model.model_fields.items():
        default = getattr(given, name, field.default)
        if field.is_required() and not isinstance(given, BaseModel):
            default = given
        section = next((m for m in (field.annotation, *get_args(field.annotation)) if is_model(m)), None)
        if section is None:
            yield f"{prefix}{field.alias or name}", field, default
        else:
            yield from keys(section, f"{prefix}{name}.", default)


def is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def is_default(text: str, field: FieldInfo, default: Any) -> bool:
    """Return whether a default is what the page says: a value as in a file, ``none`` or ``needed``."""
    if default is ... or default is None:
        return text == ("needed" if default is ... else "none")
    read = TypeAdapter(Annotated[field.annotation, "", *field.metadata]).validate_python(yaml.safe_load(text))
    return bool(read == default)
