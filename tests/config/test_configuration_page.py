"""The page about configuration says what the settings say (``--regenerate`` writes it), and its example runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, TypeAdapter

from pptrace.api import simulate
from pptrace.config.choices import StreamPer
from pptrace.config.schema import Experiment
from pptrace.plugins.builtin_models import HockneyOptions, UnitOptions
from pptrace.plugins.table_costs import SegmentOptions, TableOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest
    from pydantic.fields import FieldInfo

TIMES = " \N{MULTIPLICATION SIGN} "
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^(##+ (.*)\n)((?:(?!#).*\n)*)", re.MULTILINE)
KEY = re.compile(r"^\| `([\w.]+)` \|", re.MULTILINE)
TABLE = re.compile(r"(?:^\| `[\w.]+` \|.*\n)+", re.MULTILINE)
OPTIONS = {
    "network: hockney": HockneyOptions,
    "costs: unit": UnitOptions,
    "costs: table": TableOptions,
    "segment: a part of an action": SegmentOptions,
}


def test_every_table_says_what_the_settings_say(pytestconfig: pytest.Config) -> None:
    page = SECTION.sub(lambda section: section[1] + TABLE.sub(table_of(section[2]), section[3]), PAGE)

    if pytestconfig.getoption("--regenerate"):
        (ROOT / "docs" / "configuration.md").write_text(page, encoding="utf-8")
    assert page == PAGE


def test_every_key_of_an_experiment_stands_in_one_table() -> None:
    own = "".join(section[3] for section in SECTION.finditer(PAGE) if section[2] not in OPTIONS)

    assert sorted(KEY.findall(own)) == sorted(key for key, _, _ in keys(Experiment))


def test_the_example_runs(tmp_path: Path) -> None:
    _, example = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "step.yaml").write_text(example)
    rows = [[f"{rank}{kind}0" for kind in "FB"] for rank in range(4)]
    (tmp_path / "table.csv").write_text("".join(",".join(row) + "\n" for row in rows))

    run = simulate(tmp_path / "step.yaml", schedule=str(tmp_path / "table.csv"), microbatches=1)

    assert run.prepared.policy.stream is StreamPer.DIRECTION
    assert run.prepared.workload.f_ns.tolist() == [9_000_000, 10_000_000, 10_000_000, 12_000_000]


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


def table_of(title: str) -> Callable[[re.Match[str]], str]:
    """Return what writes a section's table: all options of an offer, else the keys that are there."""
    if title in OPTIONS:
        result = list(keys(OPTIONS[title], f"{title.partition(':')[0]}."))
        return lambda _: "".join(line(*item) for item in result)
    known = {key: (key, field, default) for key, field, default in keys(Experiment)}
    return lambda table: "".join(line(*known[key]) for key in KEY.findall(table[0]))


def line(key: str, field: FieldInfo, default: Any) -> str:
    """Return a key's line of a table, as its field says it."""
    meaning = re.sub(r"^[A-Z](?![A-Z])", lambda first: first[0].lower(), str(field.description)).removesuffix(".")
    return f"| `{key}` | {shown(field, default)} | {meaning.replace(' x ', TIMES)} |\n"


def shown(field: FieldInfo, default: Any) -> str:
    """Return a default as a file has it, or that there is none, or must be a value."""
    if default is ... or default is None:
        return "needed" if default is ... else "none"
    value = TypeAdapter(Annotated[field.annotation, "", *field.metadata]).dump_python(default, mode="json")
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    )
