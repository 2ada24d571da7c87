"""Whatever a file or a command line holds, loading gives an experiment or one clear line."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pptrace.config.flags import FLAGS
from pptrace.config.resolution import load
from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SECTIONS = ["model", "parallel", "batch", "schedule", "device", "network", "p2p", "costs", "data_parallel"]
INNER = ["pp", "dp", "vp", "global", "micro", "microbatches", "sequence", "name", "options", "preset"]
KEYS = [*SECTIONS, *INNER, "policy", "stream", "eager", "receive", "overlap", "bandwidth", "latency"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.sampled_from(["1f1b", "t.csv", "async", "ordered", "8", "5 us", "64 KiB", "400 Gb/s"]),
    st.integers(1, 64),
)
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(KEYS), below, max_size=5),
    max_leaves=20,
)
TREES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=9)
YAML_PIECES = st.lists(
    st.sampled_from([*KEYS, ": ", "- ", "\n", "\x85", "\ufeff", *",[]{}?&*!|>'\"#%@`~ \t\\"])
    | st.text(max_size=3),
    max_size=40,
).map("".join)
RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def loads_or_explains(file: Path | None, sets: Sequence[str] = (), **flags: object) -> None:
    with contextlib.suppress(UnicodeEncodeError):
        " ".join(sets).encode()
        try:
            resolved = load(file, sets, flags)
        except ConfigError as error:
            line = str(error)
            assert line.isprintable(), ascii(line)
            assert len(line) < 1500
            line.encode()
        else:
            json.dumps(resolved.to_dict(), allow_nan=False)
            assert all(origin for _, _, origin in resolved.explain())


@RELAXED
@given(content=st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"\xff\xfea\0")
@example(b"%YAML 3.0\n---\na: 1")
@example(b"? a\n: b\n? c")
@example(b"a: !<tag:yaml.org,2002:map> x")
@example(b"!!set {a, b}")
def test_any_bytes_are_an_experiment_or_one_clear_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "step.yaml"
    file.write_bytes(content)
    loads_or_explains(file)


@RELAXED
@given(text=YAML_PIECES)
def test_any_text_like_yaml_is_an_experiment_or_one_clear_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "step.yaml"
    file.write_bytes(text.encode("utf-8", "replace"))
    loads_or_explains(file)


@RELAXED
@given(tree=TREES)
def test_any_values_under_known_keys_are_an_experiment_or_one_clear_line(tmp_path: Path, tree: object) -> None:
    file = tmp_path / "step.yaml"
    file.write_text(yaml.safe_dump(tree, allow_unicode=False), encoding="utf-8")
    loads_or_explains(file, schedule="t.csv")


@RELAXED
@given(
    sets=st.lists(
        st.text(max_size=20)
        | st.builds("{}.{}={}".format, st.sampled_from(KEYS), st.sampled_from(KEYS), st.text(max_size=20))
        | st.builds("{}={}".format, st.sampled_from(KEYS), VALUES.map(str)),
        max_size=4,
    ),
    flags=st.dictionaries(st.sampled_from(sorted(FLAGS)), VALUES, max_size=4),
)
def test_any_command_line_is_an_experiment_or_one_clear_line(sets: list[str], flags: dict[str, object]) -> None:
    loads_or_explains(None, sets, **flags)
