"""YAML 1.2 becomes plain values with places, and what is broken gets one line with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pptrace.config.overrides import parse_value
from pptrace.config.places import Place
from pptrace.config.yaml_document import parse_yaml, read_yaml
from pptrace.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("y", "y"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("-7", -7),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("1:30", "1:30"),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("0b1", "0b1"),
        ("1f1b", "1f1b"),
        ("'8'", "8"),
        ("400 Gb/s", "400 Gb/s"),
        ("[1, {a: ~}]", [1, {"a": None}]),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("!!str 8", "8"),
    ],
)
def test_scalars_have_the_types_of_yaml_1_2(text: str, value: object) -> None:
    result = parse_value(text, "test")

    assert result == value
    assert type(result) is type(value)


def test_every_key_and_item_has_its_line_and_column() -> None:
    document = parse_yaml("a:\n  b: 1\n  c: [x, {d: 2}]\n", "step.yaml")

    assert document.places == {
        "a": Place(source="step.yaml", line=1, column=1),
        "a.b": Place(source="step.yaml", line=2, column=3),
        "a.c": Place(source="step.yaml", line=3, column=3),
        "a.c[0]": Place(source="step.yaml", line=3, column=7),
        "a.c[1]": Place(source="step.yaml", line=3, column=10),
        "a.c[1].d": Place(source="step.yaml", line=3, column=11),
    }


def test_an_alias_stands_for_its_anchor() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x", "t").value == {"a": {"b": 1}, "c": {"b": 1}}


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b: c", "t:1:5: broken YAML: mapping values are not allowed here"),
        ("a: [1", "t:1:6: broken YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\n\tb: 2", "t:2:1: broken YAML: found character '\\t'"),
        ("a: 'x", "t:1:6: broken YAML: found unexpected end of stream"),
        ("a: *x", "t:1:4: broken YAML: found undefined alias 'x'"),
        ("a: 1\n---\nb: 2", "t:2:1: broken YAML: expected a single document in the stream, but found another"),
        ("a: 1\nb: {c: 1}\na: 2", "t:3:1: a: the key is repeated, first on line 1; keep one"),
        ("b: {c: 1, c: 2}", "t:1:11: b.c: the key is repeated"),
        ("true: x", "t:1:1: a key must be text; put it in quotes"),
        ("? [a]\n: x", "t:1:3: a key must be text"),
        ("~: x", "t:1:1: a key must be text"),
        ("a: !!python/object:os.system x", "t:1:4: a: tag 'tag:yaml.org,2002:python/object:os.system'"),
        ("a: !mine {b: 1}", "t:1:4: a: tag '!mine' is not allowed here; leave it out"),
        ("a: !!int eight", "t:1:4: a: tag 'tag:yaml.org,2002:int' is not allowed"),
        ("a: !!binary eA==", "is not allowed here"),
        (f"a: {'9' * 5000}", "t:1:4: a: a number of 5000 characters is too long"),
        ("a: \x01", "t:1:4: broken YAML: character '\\x01' is not allowed"),
        (r'a: "\ud800"', "t:1:4: a: half of a surrogate pair is not text"),
        (r'a: "\Uffffffff"', "t: the text is no YAML"),
        ("[" * 3000, "t: values are nested more than 32 deep"),
        ("a: &a [*a]", "values are nested more than 32 deep"),
        (LAUGHS, "more than 100000 values, aliases counted each time"),
    ],
)
def test_broken_yaml_is_one_line_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "t")

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_are_counted_where_none_is_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pptrace.config.yaml_document._MOST_VALUES", 100)

    assert len(parse_yaml("[" + "1," * 98 + "]", "t").value) == 98
    with pytest.raises(ConfigError, match="t: more than 100 values"):
        parse_yaml("[" + "1," * 101 + "]", "t")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; write at least"),
        (b"# nothing but this\n", "the file is empty"),
        (b"- a\n- b\n", "step.yaml:1:1: the top level must be a mapping"),
        (b"1f1b", "the top level must be a mapping"),
        (b"\x7fELF\0\0", "is a binary file, not YAML text"),
        (b"a: 1\nb: \xff", "step.yaml:2: is not UTF-8 text"),
        (b"a" * (2**20 + 1), "is larger than a configuration may be, 1024 KiB"),
    ],
)
def test_a_file_without_a_mapping_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "step.yaml").write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        read_yaml(tmp_path / "step.yaml")

    assert message in str(caught.value)
    assert "step.yaml" in str(caught.value)


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file$"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r": is a directory; name a YAML file in it$"):
        read_yaml(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"x: cannot be read: Not a directory$"):
        read_yaml(tmp_path / "file" / "x")
    with pytest.raises(ConfigError, match="no such file"):
        read_yaml(Path("a\0b"))


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "step.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")

    assert read_yaml(tmp_path / "step.yaml").value == {"a": 1}


WORDS = "1f1b no null NULL true False 4 007 0x1F 0o17 1.5 1e3 2. 1.e-3 a.b-c_d 0b1 1_000 2026-11-23 0x 1-"


@pytest.mark.parametrize("text", [*WORDS.split(), "9" * 40])
def test_a_word_means_alone_what_it_means_in_a_document(text: str) -> None:
    found, whole = parse_value(text, "--set"), parse_yaml(text, "--set").value

    assert (found, type(found)) == (whole, type(whole))
